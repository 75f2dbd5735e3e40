"""What `pyfab bench` and `pyfab pingpong` share: a measurement here, with a listener elsewhere, or the listener itself."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyfab.cli._options import (
    Output,
    UsageError,
    add_file,
    add_json,
    add_token,
    address,
    check_folder,
    count,
    links,
    print_json,
    token,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyfab.bench import Comparison, Measurements

_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of both commands."""
    command.add_argument(
        "peer",
        nargs="?",
        type=address,
        metavar="HOST:PORT",
        help="where --listen runs; without: a process of this machine",
    )
    command.add_argument(
        "--listen", type=address, metavar="HOST:PORT", help="be the other side, until Ctrl-C; port 0: any"
    )
    add_token(command, "both sides must know it")
    command.add_argument(
        "--links",
        action="append",
        type=links,
        metavar="SPEC",
        help="measure over this link; may be repeated (default: shm+tcp). With --listen: use it in place of what is asked for",
    )
    command.add_argument(
        "--sizes", nargs="+", type=size, metavar="BYTES", help="for example 8 4K 1M; multiples of 8"
    )
    command.add_argument(
        "--rounds", type=count, default=10, help="in which all cases take turns (default: 10)"
    )
    command.add_argument(
        "--round-ms", type=float, default=30.0, metavar="MS", help="of one case in one round (default: 30)"
    )
    add_json(command)
    add_file(
        command, "--plot", type=Path, metavar="FILE", help="draw a .png, .svg, .pdf, or .html in one file"
    )
    add_file(command, "--save", type=Path, metavar="RUN.json", help="keep the figures")
    add_file(command, "--compare", type=Path, metavar="RUN.json", help="show them beside those of a kept run")
    command.add_argument(
        "--fail-below",
        type=float,
        metavar="SPEED",
        help="exit status 1 if anything is slower than this times the kept run, for example 0.9",
    )


def size(text: str) -> int:
    """The type of an argument that is a size: the bytes of ``8``, ``64K``, ``1M``, ``1G``."""
    digits = text.rstrip("kKmMgG")
    factor = _SUFFIXES.get(text[len(digits) :].lower())
    if factor is None or not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: write bytes as 8, 64K or 1M")
    if (number := int(digits) * factor) % 8 or number == 0:
        raise argparse.ArgumentTypeError(f"{text}: sizes are multiples of 8")
    return number


def measure(
    options: argparse.Namespace,
    metrics: Sequence[str],
    operations: Sequence[str] | None,
    memory: Sequence[str] = ("mapped",),
) -> int:
    """Does what the options say; returns the exit status."""
    if options.listen is not None:
        if options.peer is not None:
            raise UsageError("--listen waits for others: leave the address out")
        return _listen(options)
    if options.fail_below is not None and options.compare is None:
        raise UsageError("--fail-below needs --compare")

    from pyfab import bench

    for file in (options.save, options.plot):
        check_folder(file)
    saved = bench.load(options.compare) if options.compare else None
    if options.plot:
        from pyfab.bench._plot import check

        check(options.plot)
    with _Steps() as steps:
        found = bench.measure(
            metrics,
            options.links or "shm+tcp",
            options.sizes,
            operations=operations,
            memory=memory,
            peer=options.peer,
            token=token(options),
            rounds=options.rounds,
            round_ms=options.round_ms,
            progress=steps,
            partial=True,
        )
    comparison = found.compare(saved) if saved else None
    try:
        if options.save:
            found.save(options.save)
        if options.plot:
            found.write_plot(options.plot)
    finally:  # the figures are shown even where they cannot be kept
        _print(found, comparison, options.json)
    if found.interrupted:
        print("interrupted: figures are of fewer rounds, or missing", file=sys.stderr)
        return 130
    return _judge(comparison, options.fail_below)


def _print(found: Measurements, comparison: Comparison | None, as_json: bool) -> None:
    if as_json:
        told = found.to_dict()
        if comparison is not None:
            told["comparison"] = {
                "ratios": comparison.records(),
                "missing": comparison.missing,
                "changed": comparison.changed,
            }
        print_json(told)
        return
    from pyfab.bench._facts import remarks

    console = Output()
    console.print(found)
    for remark in remarks(found.facts):
        console.print(remark, style="yellow", markup=False)
    if comparison is not None:
        console.print(comparison)
        for name, (then, now) in comparison.changed.items():
            console.print(f"{name}: {then} then, {now} now", style="yellow", markup=False)
        if comparison.missing:
            console.print(
                f"not in the kept run: {', '.join(comparison.missing)}", style="yellow", markup=False
            )


def _judge(comparison: Comparison | None, limit: float | None) -> int:
    if comparison is None or limit is None:
        return 0
    if not comparison:
        raise ValueError(
            "the kept run has none of these figures; measure the same sizes, links and operations"
        )
    slower = comparison.slower_than(limit)
    for row in slower:
        name = f"{row.metric} of {row.operation}, {row.size} bytes over {row.links}"
        print(f"slower: {name}: {row.speed:.2f} times the kept run, not {limit:g}", file=sys.stderr)
    return 1 if slower else 0


def _listen(options: argparse.Namespace) -> int:
    from pyfab.bench import Listener
    from pyfab.meeting.interruption import told_to_stop
    from pyfab.meeting.tokens import announced

    if options.links and len(options.links) > 1:
        raise UsageError("--listen takes one --links at most")
    links = options.links[0] if options.links else None

    def tell(line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more
            print(line, file=sys.stderr)

    with told_to_stop() as stop, Listener(options.listen, token(options), links, tell) as listener:
        made = {"token": listener.token.secret} if listener.token.name else {}
        if options.json:
            print(json.dumps({"listening": listener.address, "open_to": listener.open_to, **made}))
        else:
            if made:
                print(announced(listener.token.secret))
            print(f"listening on {listener.address} to {listener.open_to}")
        sys.stdout.flush()
        stop.wait()
    return 0


class _Steps:
    """A progress bar on stderr, if that is a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # The bar is refreshed between measurements; a thread that refreshes it would disturb them.
        self._bar = Progress(
            *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("measuring", total=None)

    def __call__(self, done: int, steps: int) -> None:
        self._bar.update(self._task, completed=done, total=steps, refresh=True)

    def __enter__(self) -> _Steps:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
