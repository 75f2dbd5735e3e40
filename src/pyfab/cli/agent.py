"""``pyfab agent``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pyfab.cli._options import add_json, add_token, address, token

if TYPE_CHECKING:
    from pyfab.cli._options import Commands


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser("agent", help="be the other side of tests that run on another host")
    command.add_argument("--listen", type=address, metavar="HOST:PORT", help="default: 127.0.0.1:29480")
    add_token(command, "who has it can run programs here as this user")
    command.add_argument(
        "--attached",
        action="store_true",
        help="read the token from standard input, and end when whoever started this agent has gone",
    )
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    from pyfab.testing.agent import DEFAULT_PORT, serve

    secret = sys.stdin.readline().strip() if options.attached else token(options)
    serve(
        options.listen or f"127.0.0.1:{DEFAULT_PORT}", secret, attached=options.attached, as_json=options.json
    )
    return 0
