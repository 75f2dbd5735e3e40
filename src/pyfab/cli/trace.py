"""``pyfab trace``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyfab.cli._options import UsageError, add_file, status_of

if TYPE_CHECKING:
    from pyfab.cli._options import Commands


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "trace", help="run a program and write a time line of its operations in Chrome's trace format"
    )
    add_file(
        command,
        "-o",
        "--output",
        type=Path,
        default=Path("trace.json"),
        metavar="TRACE.json",
        help="for ui.perfetto.dev or chrome://tracing (default: trace.json)",
    )
    command.add_argument("--json", action="store_true", help="the remark on stderr as JSON")
    add_file(
        command,
        "program",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM ...",
        help="script.py, or any command that starts Python, with its arguments",
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the program's exit status as a shell gives it."""
    from pyfab.meeting.interruption import told_of_the_end
    from pyfab.tracing.time_line import Record, merge
    from pyfab.tracing.trace import VARIABLE

    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise UsageError("no program to trace: write pyfab trace -o trace.json script.py")
    if program[0].endswith(".py"):
        program = [sys.executable, *program]
    options.output.touch()
    with Record() as record:
        former = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is left to the program
        try:
            process = subprocess.Popen(
                program,
                env=os.environ | {VARIABLE: record.place},
                preexec_fn=lambda: signal.signal(signal.SIGINT, former),
            )
            with told_of_the_end(process.send_signal):  # what was recorded is still written
                status = status_of(process)
        finally:
            signal.signal(signal.SIGINT, former)
        operations, processes = merge(record, options.output)
    told = {"trace": str(options.output), "operations": operations, "processes": processes, "status": status}
    if options.json:
        print(json.dumps(told), file=sys.stderr)
    else:
        print(f"{options.output}: {operations} operations of {processes} processes", file=sys.stderr)
    return status
