"""``pyfab doctor``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pyfab.cli._options import Output, add_json, print_json

if TYPE_CHECKING:
    from pyfab.cli._options import Commands


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "doctor", help="what this build and machine can do, why not more, and what mends it"
    )
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    from pyfab.tools.cards import request
    from pyfab.tools.doctor import report, tables

    found = report()
    if options.json:
        print_json(found)
    else:
        console = Output()
        console.print(", ".join(f"{name} {value}" for name, value in found["build"].items()), markup=False)
        for table in tables(found):
            console.print(table)
        for check in found["checks"]:
            if check["mend"]:
                print(f"{check['name']}: {check['mend']}")
        if asked := request(providers=found["providers"]):
            print(asked)
    if not found["usable"]:
        print("pyfab doctor: no provider is usable here", file=sys.stderr)
    return 0 if found["usable"] else 1
