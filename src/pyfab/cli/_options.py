"""Arguments and output that several commands share."""

from __future__ import annotations

import argparse
import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyfab
from pyfab.meeting import tokens
from pyfab.meeting.addresses import split_address
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class UsageError(ValueError):
    """Wrong usage that the parser does not notice; the exit status is 2."""


FILE = {
    "bash": "_shtab_compgen_files",
    "zsh": "_files",
    "tcsh": "f",
    "fish": "(__fish_complete_path (commandline -ct))",
}
"""How each shell completes the name of a file, for shtab: `add_argument(...).complete = FILE`."""


def add_json(command: argparse.ArgumentParser) -> None:
    """Adds the option that has the result printed as JSON."""
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def add_file(command: argparse._ActionsContainer, *names: str, **how: Any) -> None:
    """Adds an argument that is the name of a file."""
    command.add_argument(*names, **how).complete = FILE  # type: ignore[attr-defined]


def add_token(command: argparse.ArgumentParser, text: str) -> None:
    """Adds the options for the secret that both sides know."""
    group = command.add_mutually_exclusive_group()
    add_file(
        group,
        "--token-file",
        metavar="FILE",
        help=f"holds the token in its first line, - for standard input: {text} (default: $PYFAB_TOKEN, or one that only this"
        " user's processes here find)",
    )
    group.add_argument(
        "--token",
        help="the token itself, which all users of this machine can read in its list of processes as long as this runs:"
        " prefer --token-file or $PYFAB_TOKEN",
    )


def token(options: argparse.Namespace) -> str | None:
    """The token that `add_token`'s options give, or else the environment; None if neither does."""
    given: str | None = options.token if options.token_file is None else _read_token(options.token_file)
    return tokens.stated(given)


def _read_token(file: str) -> str:
    if file == "-":
        return _token_in(sys.stdin.readline(), "standard input")
    with open(file) as stream:
        found = os.fstat(stream.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
            raise UsageError(
                f"other users can read the token in {file} (mode {stat.S_IMODE(found.st_mode):04o}); run: chmod go= {file}"
            )
        return _token_in(stream.readline(), file)


def _token_in(line: str, where: str) -> str:
    if not line.strip():
        raise UsageError(f"the first line of {where} holds no token")
    return line.strip()


def address(text: str) -> str:
    """The type of an argument that is ``host:port``."""
    try:
        split_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def status_of(process: subprocess.Popen[Any]) -> int:
    """Waits for a process; returns its exit status as a shell gives it."""
    status = process.wait()
    return status if status >= 0 else 128 - status


def check_folder(file: Path | None) -> None:
    """Raises FileNotFoundError if the folder of a result is missing. To be called before the work for the result begins."""
    if file is not None and not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file.parent))


def links(text: str) -> str:
    """The type of an argument that names links, which need not be here."""
    try:
        pyfab.getinfo(text)
    except pyfab.InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error.strerror)) from None
    except pyfab.FabricError:
        pass  # nothing here matches, which the command says itself
    return text


def count(text: str) -> int:
    """The type of an argument that is a positive number."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1")
    return number


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2))


class Output(Console):
    """Tables on stdout. Whoever has read enough of them ends the command as `main` says, and not as rich does."""

    def on_broken_pipe(self) -> None:
        """Called where a write met BrokenPipeError."""
        raise BrokenPipeError


class TransferProgress:
    """A progress bar on stderr, if that is a terminal. It is called with the bytes that have arrived and with all there are."""

    def __init__(self, title: str) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=self._console)
        self._task = self._bar.add_task(escape(title), total=None)

    def __call__(self, arrived: int, total: int) -> None:
        self._bar.update(self._task, completed=arrived, total=total)

    def __enter__(self) -> TransferProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()
