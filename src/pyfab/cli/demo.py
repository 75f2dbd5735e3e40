"""``pyfab demo``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyfab.cli._options import Output, add_file, add_json, count, links, print_json

if TYPE_CHECKING:
    from pyfab.cli._options import Commands


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "demo", help="shard real data over local processes and read it one-sidedly, verified"
    )
    add_file(
        command,
        "--data",
        type=Path,
        metavar="FILE",
        help=".npy or .csv; default: handwritten digits, shipped",
    )
    command.add_argument("--procs", type=count, default=4, help="processes (default: 4)")
    command.add_argument(
        "--links",
        type=links,
        default="shm+tcp",
        help="each of these links alone, then all together (default: shm+tcp)",
    )
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    from pyfab.tools.demo import demo

    found = demo(options.data, options.procs, options.links, Output(quiet=options.json))
    if options.json:
        print_json(found)
    return 0 if found["verified"] else 1
