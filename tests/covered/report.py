"""Which lines and branches of the core a run of `scripts/coverage` has reached: see "Coverage" in docs/testing.md.

    python3 tests/covered/report.py BUILD [--uncovered] [--check | --update]

Reads the counts that instrumented programs have left in BUILD/profiles, and the programs that ctest knows in BUILD. --uncovered
lists what was not reached. --check compares with baseline.json, whose figures are those of the short form: status 1 if a room
fell by more than half a point. --update writes that file.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BASELINE = HERE / "baseline.json"
PARTS = ("base", "fabric", "providers")
FALL = 0.5  # percentage points
FEW = 4
"""What one room may lose in any case: whether this many lines or sides are reached depends on when threads run."""
ELSEWHERE = "^/usr/|/src/cpp/(data|fab|libfabric|python)/|/tests/cpp/"
BARS = {"lines": 95.0, "branches": 85.0}

Place = tuple[int, int, int, int]
"""Where a condition begins and ends: line, column, line, column."""


@dataclass
class File:
    """What was counted in one file. A function that several programs, or several types, have is counted once."""

    lines: dict[int, int] = field(default_factory=dict)
    """line with code → how often it was reached"""
    branches: dict[Place, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """condition → how often it was true, and false"""

    def missed_lines(self) -> list[int]:
        return sorted(line for line, count in self.lines.items() if not count)

    def missed_sides(self) -> list[tuple[Place, str]]:
        names = ("true", "false")
        sides = (
            (place, name, count)
            for place, counts in self.branches.items()
            for name, count in zip(names, counts, strict=True)
        )
        return sorted((place, name) for place, name, count in sides if not count)

    def tally(self) -> Tally:
        return Tally(
            len(self.lines), len(self.missed_lines()), 2 * len(self.branches), len(self.missed_sides())
        )


@dataclass(frozen=True)
class Tally:
    lines: int = 0
    missed_lines: int = 0
    branches: int = 0
    """Sides of conditions: two each."""
    missed_branches: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(mine + its for mine, its in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[int, int, int, int]:
        return self.lines, self.missed_lines, self.branches, self.missed_branches

    def shares(self) -> dict[str, float]:
        """What was reached, in percent."""
        return {
            "lines": _share(self.lines, self.missed_lines),
            "branches": _share(self.branches, self.missed_branches),
        }


def _share(of: int, missed: int) -> float:
    return 100 * (of - missed) / of if of else 100.0


def source(path: str) -> list[str]:
    return (ROOT / "src/cpp" / path).read_text().splitlines()


# --- what llvm-cov tells


def line_counts(segments: Iterable[list[Any]]) -> dict[int, int]:
    """The count of each line of a function, by llvm-cov's own rule: the most of the regions that begin there and of the one that
    goes on there. A segment is line, column, count, has a count, is a beginning, is a gap."""
    by_line: dict[int, list[list[Any]]] = defaultdict(list)
    for segment in segments:
        by_line[segment[0]].append(segment)
    counts: dict[int, int] = {}
    wrapped: list[Any] | None = None  # what goes on from the line before
    for line in range(min(by_line, default=0), max(by_line, default=-1) + 1):
        here = by_line.get(line, [])
        begun = [segment[2] for segment in here if segment[3] and segment[4] and not segment[5]]
        skipped = bool(here) and not here[0][3] and here[0][4]
        goes_on = wrapped is not None and wrapped[3]
        if not skipped and (goes_on or begun):
            counts[line] = max([wrapped[2] if wrapped else 0, *begun])
        wrapped = here[-1] if here else wrapped
    return counts


def read(exported: Mapping[str, Any]) -> dict[str, File]:
    """Files of the parts by their path below src/cpp. A file can stand there with several roots, if a cache of
    objects serves several checkouts."""
    files: dict[str, File] = defaultdict(File)
    for told in exported["data"][0]["files"]:
        found = re.search(r"(?:^|/)src/cpp/((?:" + "|".join(PARTS) + r")/.*)", told["filename"])
        if not found:
            continue
        file = files[found[1]]
        for line, count in line_counts(told["segments"]).items():
            file.lines[line] = max(file.lines.get(line, 0), count)
        for *place, true, false, _, _, _ in told["branches"]:
            sides = file.branches[(place[0], place[1], place[2], place[3])]
            sides[0] += true
            sides[1] += false
    return {path: of_code(source(path), file) for path, file in files.items()}


def of_code(text: list[str], file: File) -> File:
    """Without what llvm-cov counts although it is no code: blank lines, comments, and conditions that the compiler decides."""
    for line in [line for line in file.lines if re.match(r"\s*(//|$)", text[line - 1])]:
        del file.lines[line]
    for line, column, end, last in list(file.branches):
        if text[line - 1][column - 1 : last - 1] in ("true", "false") or "if constexpr" in text[line - 1]:
            del file.branches[line, column, end, last]
    return file


def programs(build: Path) -> Iterator[Path]:
    """What has counters, as far as it is there. The library comes first, as it has the functions that no program uses."""
    # llvm-cov 14 has taken the archive for malformed, though not one file of it.
    yield from sorted((build / "CMakeFiles/fab.dir").rglob("*.o"))
    tests = json.loads(subprocess.check_output(["ctest", "--test-dir", build, "--show-only=json-v1"]))[
        "tests"
    ]
    yield from (Path(test["command"][0]) for test in tests if "command" in test)
    yield from (build / "tests/cpp" / name for name in ("simulate", "failing_calls"))
    yield from (build / "site/pyfab/libfabric").glob("*.so")
    if (
        "FAB_PYTHON:BOOL=ON" in (build / "CMakeCache.txt").read_text()
    ):  # otherwise it may be left from an earlier build
        yield from (build / "site/pyfab").glob("_core.*.so")


def tool(name: str) -> str:
    """llvm-cov has to be as old as the compiler."""
    found = shutil.which(name) or shutil.which(f"{name}-14")
    if not found:
        sys.exit(f"There is no {name}: install Debian's llvm")
    return found


def counted(build: Path) -> dict[str, File]:
    profiles = sorted((build / "profiles").glob("*.profraw"))
    if not profiles:
        sys.exit(f"No program has left counts in {build / 'profiles'}: run scripts/coverage")
    merged = build / "merged.profdata"
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", "-o", merged, *profiles], check=True)
    first, *others = (program for program in programs(build) if program.exists())
    command = [tool("llvm-cov"), "export", "--skip-functions", "--skip-expansions", "--num-threads=2"]
    command += [f"--instr-profile={merged}", f"--ignore-filename-regex={ELSEWHERE}", str(first)]
    command += [f"--object={other}" for other in others]
    return read(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


# --- what is told


def rooms(tallies: Mapping[str, Tally]) -> dict[str, Tally]:
    """Of each part, and of each folder directly below it: the sums of the files there, and deeper."""
    sums: dict[str, Tally] = defaultdict(Tally)
    for path, tally in tallies.items():
        part, *deeper = path.split("/")[:-1]
        for room in {part, "/".join([part, *deeper[:1]])}:
            sums[room] += tally
    return dict(sorted(sums.items()))


def table(tallies: Mapping[str, Tally]) -> Iterator[str]:
    yield f"{'room':24} {'lines':>20} {'branches':>20}   (in brackets: not reached, of all)"
    for room, tally in rooms(tallies).items():
        shares = tally.shares()
        low = "/" not in room and any(shares[kind] < bar for kind, bar in BARS.items())
        cells = (
            f"{shares[kind]:8.2f} % {f'({missed}/{of})':>12}"
            for kind, missed, of in (
                ("lines", tally.missed_lines, tally.lines),
                ("branches", tally.missed_branches, tally.branches),
            )
        )
        yield " ".join([f"{room:22}", *cells]) + ("  below the bar" if low else "")


def uncovered(path: str, file: File) -> Iterator[str]:
    """Each line that was not reached, and each side of a reached condition that was not taken, as compilers write places."""
    text = source(path)
    for line in file.missed_lines():
        yield f"src/cpp/{path}:{line}: not reached: {text[line - 1].strip()}"
    for (line, column, end, last), side in file.missed_sides():
        if file.lines.get(line):
            condition = text[line - 1][column - 1 : last - 1 if end == line else None]
            yield f"src/cpp/{path}:{line}:{column}: never {side}: {condition}"


# --- the guard


def falls(was: Mapping[str, Tally], now: Mapping[str, Tally]) -> Iterator[str]:
    """What to say about each room that fell. A room that is new has nothing to fall from."""
    before, after = rooms(was), rooms(now)
    for room in sorted(before.keys() & after.keys()):
        old, new = before[room], after[room]
        missed = {
            "lines": new.missed_lines - old.missed_lines,
            "branches": new.missed_branches - old.missed_branches,
        }
        for kind, share in new.shares().items():
            if old.shares()[kind] - share > FALL and missed[kind] > FEW:
                yield f"{room}: {kind} fell from {old.shares()[kind]:.2f} % to {share:.2f} %, {missed[kind]} more are not reached"


def worse(was: Mapping[str, Tally], now: Mapping[str, Tally]) -> list[str]:
    """Files with more that is not reached than before."""
    return [
        path
        for path, tally in sorted(now.items())
        if tally.missed_lines > was.get(path, Tally()).missed_lines
        or tally.missed_branches > was.get(path, Tally()).missed_branches
    ]


def read_baseline() -> dict[str, Tally]:
    return {path: Tally(*counts) for path, counts in json.loads(BASELINE.read_text())["files"].items()}


def write_baseline(tallies: Mapping[str, Tally]) -> None:
    """One file a line, so that a change shows which it was."""
    lines = ",\n".join(
        f"    {json.dumps(path)}: {json.dumps(tally.values())}" for path, tally in sorted(tallies.items())
    )
    about = "lines, of them not reached, sides of conditions, of them not taken"
    BASELINE.write_text(f'{{\n  "counts": {json.dumps(about)},\n  "files": {{\n{lines}\n  }}\n}}\n')


def check(files: Mapping[str, File], tallies: Mapping[str, Tally]) -> int:
    was = read_baseline()
    found = list(falls(was, tallies))
    if not found:
        return 0
    for path in worse(was, tallies):
        print(*uncovered(path, files[path]), sep="\n")
    print(*found, sep="\n")
    print(
        "In these files, more is not reached than tests/covered/baseline.json says. If that is meant: scripts/coverage --update"
    )
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--uncovered", action="store_true")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--update", action="store_true")
    asked = parser.parse_args()
    files = counted(asked.build.resolve())
    tallies = {path: file.tally() for path, file in files.items()}
    if asked.uncovered:
        for path, file in sorted(files.items()):
            print(*uncovered(path, file), sep="\n")
    print(*table(tallies), sep="\n")
    if asked.update:
        write_baseline(tallies)
    return check(files, tallies) if asked.check else 0


if __name__ == "__main__":
    sys.exit(main())
