"""``pyfab links``."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import pyfab
from pyfab.cli._options import Output, add_json, count, links, print_json

if TYPE_CHECKING:
    from pyfab.cli._options import Commands


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "links",
        help="show over which link processes reach each other, and why: local ones, or those of a job",
    )
    command.add_argument("--links", type=links, help="default: $FI_LNX_PROV_LINKS, else shm+tcp")
    command.add_argument("--procs", type=count, default=2, help="local processes to start (default: 2)")
    command.add_argument(
        "--job",
        action="store_true",
        help="start none: be a rank of the job that torchrun, mpirun or srun started; rank 0 prints",
    )
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    spec = options.links or os.environ.get("FI_LNX_PROV_LINKS") or "shm+tcp"
    if options.job:
        with pyfab.Group.from_env(domain=spec) as group:
            tables = group.allgather(group.links())
        if group.rank != 0:
            return 0
    else:
        tables = pyfab.spawn(pyfab.Group.links, options.procs, links=spec, timeout=60)
    if options.json:
        print_json({str(rank): table.records() for rank, table in enumerate(tables)})
    else:
        for table in tables:
            Output().print(table)
    return 0
