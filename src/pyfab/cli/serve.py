"""``pyfab serve``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyfab.cli._options import UsageError, add_file, add_json, add_token, address, token

if TYPE_CHECKING:
    from pyfab.cli._options import Commands


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser("serve", help="let others read arrays in .npy files, files and folders")
    add_file(
        command,
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="a .npy file, served under its name without .npy; another file or a folder, under its name",
    )
    command.add_argument(
        "--name", action="append", default=[], metavar="NAME=FILE", help="serve a file or folder under NAME"
    )
    command.add_argument(
        "--listen",
        type=address,
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="default: a free port of 127.0.0.1",
    )
    add_token(command, "clients must know it")
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    from pyfab.tools.serve import serve

    named = [(_name(path), path) for path in options.files]
    for text in options.name:
        name, equals, path = text.partition("=")
        if not (name and equals and path) or "[" in name:
            raise UsageError(f"--name {text}: write NAME=FILE, the name without '['")
        named.append((name, Path(path)))
    if not named:
        raise UsageError("no file to serve")
    if any(not name for name, _ in named):
        raise UsageError("the folder / has no name; give it one with --name NAME=/")
    paths = dict(named)
    if len(paths) < len(named):
        raise UsageError("two files have one name; tell them apart with --name NAME=FILE")
    serve(paths, options.listen, token(options), as_json=options.json)
    return 0


def _name(path: Path) -> str:
    return path.stem if path.suffix == ".npy" and not path.is_dir() else path.resolve().name
