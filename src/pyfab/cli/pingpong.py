"""``pyfab pingpong``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyfab.cli._measuring import add_options, measure

if TYPE_CHECKING:
    from pyfab.cli._options import Commands

_SIZES = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20]


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "pingpong", help="send messages to and fro, checked: half a round trip for each size"
    )
    add_options(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    options.sizes = options.sizes or _SIZES
    return measure(options, ("latency",), ("message",))
