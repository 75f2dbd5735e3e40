"""Instructions per transfer on hot paths, beside those of the baseline: see "Instructions" in docs/testing.md.

    scripts/instructions [--update] [--runs 1]

Counts the pyfab that this Python imports, which has to be an optimised build. Status 1 if a path takes more instructions than the
baseline says, or fewer, by more than 3 %; 0 if all is as it was, or if there is nothing to compare with, which is said.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "baseline.json"
TOLERANCE = 0.03
CORE = "_core."  # what the file name of the extension begins with
LIMIT_S = 600


@dataclass(frozen=True)
class Cost:
    """Instructions per transfer, of both sides."""

    core: float
    """Of the C++ core alone."""
    all: float
    """With Python, libc and all others."""


@dataclass
class Dump:
    """What callgrind told at one request."""

    name: str = ""
    by_function: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(object file, function) → its own instructions"""


def parse(lines: Iterable[str]) -> Dump:
    """Reads a dump whose names and positions are not compressed. Costs of callees, behind "calls=", are theirs."""
    dump = Dump()
    file, function, of_callee = "", "", False
    for line in lines:
        if line.startswith("desc: Trigger: Client Request: "):
            dump.name = line.rpartition("Request: ")[2].strip()
        elif line.startswith("ob="):
            file = line[3:].strip().rpartition("/")[2]
        elif line.startswith("fn="):
            function = line[3:].strip()
        elif line.startswith("calls="):
            of_callee = True
        elif line[:1].isdigit():
            if not of_callee:
                dump.by_function[file, function] += int(line.split()[1])
            of_callee = False
    return dump


def costs(dumps: Iterable[Dump]) -> dict[str, Cost]:
    """The cost of each path: the difference of two lengths, each of which is the least of its samples."""
    told: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for dump in dumps:
        path, _, transfers = dump.name.partition(" * ")
        core = sum(count for (file, _), count in dump.by_function.items() if file.startswith(CORE))
        told[path][int(transfers)].append((core, dump.by_function.total()))
    return {path: _difference(lengths) for path, lengths in told.items()}


def _difference(lengths: Mapping[int, list[tuple[int, int]]]) -> Cost:
    (fewer, short), (more, long) = sorted(lengths.items())
    core, everything = (
        (min(sample[kind] for sample in long) - min(sample[kind] for sample in short)) / (more - fewer)
        for kind in (0, 1)
    )
    return Cost(round(core, 1), round(everything, 1))


def count() -> dict[str, Cost]:
    """Runs the program that is counted."""
    with tempfile.TemporaryDirectory() as folder:
        client, out = Path(folder) / "client.so", Path(folder) / "out"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", client, HERE / "client.c", "-ldl"], check=True)
        tool = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        plain = ["--compress-strings=no", "--compress-pos=no"]
        program = [sys.executable, str(HERE / "counted.py"), str(client)]
        # The order of a dict of strings, and with it the steps of a look-up, depends on the seed of hashes.
        fixed = {"PYTHONHASHSEED": "1", "OPENBLAS_NUM_THREADS": "1", "LD_PRELOAD": str(client)}
        subprocess.run([*tool, *plain, *program], check=True, env=os.environ | fixed, timeout=LIMIT_S)
        dumps = [parse(path.read_text().splitlines()) for path in Path(folder).glob("out.*")]
        return costs(dump for dump in dumps if dump.name)


def facts() -> dict[str, str]:
    """What counts depend on beside the tree."""
    import pyfab._core

    extension = Path(pyfab._core.__file__).read_bytes()
    compilers = sorted(set(re.findall(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+", extension)))
    return {
        "compiler": b", ".join(compilers).decode(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
    }


def differences(mine: Mapping[str, str], baseline: Mapping[str, str], *names: str) -> str:
    return "; ".join(
        f"{name} is {mine.get(name)}, the baseline's {baseline.get(name)}"
        for name in names
        if mine.get(name) != baseline.get(name)
    )


def judge(found: Mapping[str, Cost], baseline: Mapping[str, Cost], whole: bool) -> Iterator[tuple[bool, str]]:
    """Whether each path is as it was, and a line about it. `whole`: all instructions count, not those of the core alone."""
    for path in sorted({*found, *baseline}):
        if path not in found or path not in baseline:
            yield False, f"{path:20} is only in {'the baseline' if path in baseline else 'what was counted'}"
            continue
        well, words = True, []
        for kind in ("core", "all") if whole else ("core",):
            now, before = getattr(found[path], kind), getattr(baseline[path], kind)
            change = now / before - 1
            well &= abs(change) <= TOLERANCE
            words.append(f"{kind} {now:9.1f}, baseline {before:9.1f} ({change:+6.1%})")
        yield well, f"{path:20} {'   '.join(words)}{'' if well else '   CHANGED'}"


def compare(found: Mapping[str, Cost], mine: Mapping[str, str]) -> int:
    told = json.loads(BASELINE.read_text())
    baseline = {path: Cost(**cost) for path, cost in told["instructions"].items()}
    if other := differences(mine, told["facts"], "python", "libc"):
        print(f"compared are the core's instructions alone: {other}")
    verdicts = list(judge(found, baseline, not other))
    for _, line in verdicts:
        print(line)
    if all(well for well, _ in verdicts):
        return 0
    print(f"More than {TOLERANCE:.0%} apart. If it is meant: scripts/instructions --update")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/instructions")
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument(
        "--runs", type=int, default=1, help="count so often, and say how far counts are apart"
    )
    given = parser.parse_args()
    if missing := [tool for tool in ("valgrind", "cc") if not shutil.which(tool)]:
        print(f"skipped: there is no {' and no '.join(missing)}")
        return 0
    mine = facts()
    if not given.update:
        told = json.loads(BASELINE.read_text())["facts"]
        if other := differences(mine, told, "compiler", "machine"):
            print(f"skipped: {other}")
            return 0
    runs = [count() for _ in range(given.runs)]
    for path in runs[0] if given.runs > 1 else ():
        of_core, of_all = ([getattr(run[path], kind) for run in runs] for kind in ("core", "all"))
        apart = (f"{max(counts) / min(counts) - 1:.3%}" for counts in (of_core, of_all))
        print(f"{path:20} apart: core {next(apart)}, all {next(apart)}")
    if not given.update:
        return compare(runs[0], mine)
    content = {"facts": mine, "instructions": {path: asdict(cost) for path, cost in sorted(runs[0].items())}}
    BASELINE.write_text(json.dumps(content, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
