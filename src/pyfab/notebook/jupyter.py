"""``%load_ext pyfab``: cells that run in several ranks."""

from __future__ import annotations

import argparse
import atexit
import sys
from itertools import groupby
from typing import Any, NoReturn

from IPython.core.error import UsageError
from pyfab.meeting.ranks import ranks_text
from pyfab.notebook.cell_ranks import CellRanks, Report


class CellError(Exception):
    """What ranks raised in a cell; IPython shows their tracebacks in place of this one's."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def load(shell: Any) -> None:
    """Gives an IPython shell the magics ``%%pyfab`` and ``%pyfab``."""
    shell.register_magic_function(_Magic(shell).pyfab, "line_cell", "pyfab")


class _Magic:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ranks: CellRanks | None = None  # the ranks that stay, if there are any
        atexit.register(self._stop)

    def pyfab(self, line: str, cell: str | None = None) -> None:
        """Runs cells in local processes, the ranks of one group.

        %%pyfab [-n RANKS] [--links SPEC] [--timeout SECONDS]
            runs the cell in RANKS processes (2) that end with it. They are forked from this one, so they have copies of all its
            variables, and besides them `group`, `np` and `pyfab`. Shows what each rank prints and displays, and the value of its
            last expression, in the order of the ranks. `await` works. If a rank raises, the others have two seconds to end
            before they are interrupted; after SECONDS, and on Ctrl-C, all are. SPEC is that of a Domain (shm+tcp).

        %pyfab start [-n RANKS] [--links SPEC]
            starts ranks that stay: the %%pyfab cells that follow run in them, and find the variables of those before. After a
            cell that failed, `group` is a new one, and windows of the former are closed.

        %pyfab stop
            ends them.

        %pyfab
            says whether there are any.
        """
        if cell is None:
            self._line(line)
        else:
            self._cell(line, cell)

    def _line(self, line: str) -> None:
        options = _arguments("%pyfab", line)
        if options.action == "start":
            if self._ranks is not None:
                raise UsageError(f"{self._ranks.size} ranks are running; %pyfab stop ends them")
            self._ranks = self._start(options)
        elif options.action == "stop":
            self._stop()
        if self._ranks is None:
            print("no ranks are running; %pyfab start -n 4 starts some")
        else:
            print(f"{self._ranks.size} ranks over {self._ranks.links} run the cells that begin with %%pyfab")

    def _cell(self, line: str, cell: str) -> None:
        options = _arguments("%%pyfab", line)
        ranks = self._ranks
        if ranks is None:
            ranks = self._start(options)
        elif options.n not in (None, ranks.size) or options.links not in (None, ranks.links):
            raise UsageError(
                f"{ranks.size} ranks over {ranks.links} are running, which %%pyfab {line} does not fit; %pyfab stop ends them"
            )
        failed = True
        try:
            reports = ranks.run(self._shell.transform_cell(cell), options.timeout)
            failed = any(report.error for report in reports)
        except BaseException:
            self._ranks = None if not ranks.alive else self._ranks
            raise
        finally:
            if ranks is not self._ranks:
                ranks.end(patient=not failed)
        self._show(reports)
        if failed and ranks is self._ranks:
            self._recover(ranks)
        _raise(reports)

    def _recover(self, ranks: CellRanks) -> None:
        """Makes a new group, because ranks may have left the former one in the middle of a collective call."""
        if ranks.alive:
            ranks.meet()
        if not ranks.alive:
            self._ranks = None
            print("the ranks have ended, with their variables; %pyfab start starts others", file=sys.stderr)

    def _show(self, reports: list[Report]) -> None:
        """Shows what the ranks put out. Each line of text has the number of its rank before it.

        What is more than text and the same in several ranks, such as a picture of the whole group, is shown once for them.
        """
        displays = [[shown[0] for kind, shown in report.outputs if kind == "display"] for report in reports]
        for rank, report in enumerate(reports):
            for kind, outputs in groupby(report.outputs, lambda output: output[0]):
                if kind == "display":
                    for _, (data, metadata) in outputs:
                        if set(data) == {"text/plain"}:
                            print(_labelled(rank, data["text/plain"]))
                            continue
                        alike = [other for other, found in enumerate(displays) if data in found]
                        if rank == alike[0]:
                            self._show_rich(alike, data, metadata)
                else:
                    text = b"".join(part for _, part in outputs).decode(errors="replace")
                    print(_labelled(rank, text), file=getattr(sys, kind))

    def _show_rich(self, ranks: list[int], data: dict[str, Any], metadata: dict[str, Any]) -> None:
        print(f"[{', '.join(map(str, ranks))}]")
        sys.stdout.flush()
        self._shell.display_pub.publish(data, metadata)

    def _start(self, options: argparse.Namespace) -> CellRanks:
        ranks = CellRanks(2 if options.n is None else options.n, options.links or "shm+tcp", self._shell)
        try:
            _raise(ranks.meet())
        except BaseException:
            ranks.end(patient=False)
            raise
        return ranks

    def _stop(self) -> None:
        if self._ranks is not None:
            self._ranks.end()
            self._ranks = None


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; %pyfab? explains")


def _arguments(prog: str, line: str) -> argparse.Namespace:
    parser = _Arguments(prog=prog, add_help=False)
    if prog == "%pyfab":
        parser.add_argument("action", nargs="?", choices=("start", "stop"))
    else:
        parser.add_argument("--timeout", type=float)
    parser.add_argument("-n", type=int)
    parser.add_argument("--links")
    options = parser.parse_args(line.split())
    if options.n is not None and options.n < 1:
        parser.error(f"-n {options.n}: at least one rank")
    return options


def _labelled(rank: int, text: str) -> str:
    return "\n".join(f"[{rank}] {line}" for line in text.removesuffix("\n").split("\n"))


def _raise(reports: list[Report]) -> None:
    """Raises what ranks raised, each text once. Where an interrupt hit a rank is told only if nothing else explains it."""
    explained = any(report.error and not report.interrupted for report in reports)
    texts: dict[str, list[int]] = {}
    for rank, report in enumerate(reports):
        if report.error:
            text = report.error.rstrip()
            if report.interrupted:
                text = f"interrupted {report.interrupted}" + ("" if explained else f"\n{text}")
            texts.setdefault(text, []).append(rank)
    if texts:
        told = (f"{ranks_text(ranks, len(reports))}:\n{text}" for text, ranks in texts.items())
        raise CellError("\n".join(told)) from None
