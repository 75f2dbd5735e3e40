"""The command line: one module for each command.

A command ``name`` is a module ``cli/name.py`` with

    def add(commands) -> None:    # registers the subparser: commands.add_parser("name", help=...).set_defaults(run=run)
    def run(options) -> int:      # does the work; returns the exit status: 0 for success, 1 for a failure that it has reported

and stands in `_COMMANDS` below, in the order of ``pyfab --help``. What only this command needs is imported in `run`, so that
``pyfab --help`` and completion stay quick. `run` may raise OSError (as every FabricError is), ValueError, LookupError and
ImportError: `main` prints them as ``pyfab name: message`` and returns 1, or 2 for a `UsageError`. Results go to stdout, progress
and remarks to stderr; every command that finds something out has ``--json``. `_options` has the arguments and the output that
commands share.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyfab
from pyfab.cli import agent, bench, demo, doctor, fetch, info, links, pingpong, serve, trace, validate
from pyfab.cli._options import UsageError

_COMMANDS = (demo, serve, fetch, info, links, doctor, pingpong, bench, trace, validate, agent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit status is 0 for success, 1 for a failure that a message names, 2 for wrong usage."""
    options = argparse.Namespace(command="--print-completion")
    if arguments is None:  # this process is the command
        _fill_missing_streams()
        _end_orderly()
    try:
        parser().parse_args(arguments, options)
        run: Callable[[argparse.Namespace], int] = options.run
        status = run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, ValueError, LookupError, ImportError) as error:
        print(f"pyfab {options.command}: {_words(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130


def _fill_missing_streams() -> None:
    """A stream that was closed before the start is None here. It becomes /dev/null, under its own number if that is free."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as the process


def _end_orderly() -> None:
    """SIGTERM and SIGHUP, unless they are ignored, end the command by SystemExit, so that drafts are removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda told, _: sys.exit(128 + told))


def _words(error: Exception) -> object:
    """What an error says to somebody who sees no code."""
    if isinstance(error, KeyError):
        return error.args[0]
    if isinstance(error, OSError) and error.strerror and not isinstance(error, pyfab.FabricError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return error


def parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    whole = argparse.ArgumentParser(
        prog="pyfab", description="One-sided communication: put, get and update a peer's memory."
    )
    whole.add_argument("--version", action="version", version=f"pyfab {pyfab.__version__}")
    whole.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh", "fish"),
        help='print what completes pyfab in this shell: eval "$(pyfab --print-completion bash)"',
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return whole


def command_names() -> list[str]:
    """All commands, in the order of ``pyfab --help``."""
    return [command.__name__.rpartition(".")[2] for command in _COMMANDS]


class _PrintCompletion(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: object
    ) -> None:
        del namespace
        try:
            import shtab
        except ImportError:
            parser.exit(1, "pyfab: completion needs shtab: pip install shtab\n")
        if values not in shtab.SUPPORTED_SHELLS:
            parser.exit(1, f"pyfab: this version of shtab knows no {values}: pip install --upgrade shtab\n")
        script = shtab.complete(parser, shell=values)
        # zsh would take what follows a colon in a metavar for the completion's action.
        print(script.replace(":HOST:PORT:", r":HOST\:PORT:") if values == "zsh" else script)
        parser.exit()
