"""``pyfab fetch``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyfab.cli._options import (
    TransferProgress,
    UsageError,
    add_file,
    add_json,
    add_token,
    address,
    check_folder,
    print_json,
    token,
)

if TYPE_CHECKING:
    from pyfab.cli._options import Commands


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser("fetch", help="read a served array, or a part of it, into a .npy file")
    command.add_argument("address", type=address, metavar="HOST:PORT")
    command.add_argument(
        "selection",
        nargs="?",
        metavar="NAME[INDEX]",
        help="images, images[10:20], 'images[:, 3]'; without: list",
    )
    add_file(command, "-o", "--output", type=Path, metavar="OUT.npy", help="default: NAME.npy")
    add_token(command, "the server's")
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    from pyfab.tools.fetch import ArrayClient, parse_selection

    if options.selection is None:
        with ArrayClient(options.address, token(options)) as client:
            names, folders = client.names(), client.folders()
        if options.json:
            print_json(names | {f"{name}/": {} for name in folders})
        else:
            for name, kind in names.items():
                print(f"{name}: {tuple(kind['shape'])} {kind['dtype']}")
            for name in folders:
                print(f"{name}: a folder")
        return 0
    try:
        name, index = parse_selection(options.selection)
    except ValueError as error:
        raise UsageError(str(error)) from None
    output = options.output or Path(f"{Path(name).name}.npy")
    check_folder(output)
    with (
        ArrayClient(options.address, token(options)) as client,
        TransferProgress(options.selection) as progress,
    ):
        array = client.fetch(name, index, output, progress)
    if options.json:
        told = {"file": str(output), "shape": array.shape, "dtype": str(array.dtype), "nbytes": array.nbytes}
        print_json(told)
    else:
        print(f"{output}: {array.shape} {array.dtype}, {array.nbytes:,} bytes")
    return 0
