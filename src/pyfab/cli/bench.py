"""``pyfab bench``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyfab.cli._measuring import add_options, measure

if TYPE_CHECKING:
    from pyfab.cli._options import Commands

_METRICS = ("latency", "bandwidth", "rate")
_OPERATIONS = ("put", "get", "fetch_add", "atomic", "message", "write_many", "read_many")


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "bench", help="measure latency, bandwidth and rate between two processes or two machines"
    )
    add_options(command)
    command.add_argument(
        "--metrics", nargs="+", choices=_METRICS, default=_METRICS, help="what to measure (default: all)"
    )
    command.add_argument("--operations", nargs="+", choices=_OPERATIONS, help="default: all of each metric")
    command.add_argument(
        "--memory",
        nargs="+",
        choices=("mapped", "other"),
        default=["mapped"],
        help="the target's: from Domain.alloc, or an ordinary array (default: mapped)",
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    return measure(options, options.metrics, options.operations, options.memory)
