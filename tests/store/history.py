"""The history of a store whose members are killed and replaced: is it linearizable?

python tests/store/history.py --links shm --members 4 --kills 10 --operations 100000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "history"))
from linearize import check, story
from operations import FOREVER, Operation

PATIENCE = 120  # seconds without an operation, after which it is said to hang
LOOK = 0.02


class Members:
    """The processes, and how far they are."""

    def __init__(self, folder: Path, links: str, seed: int, replicas: int) -> None:
        self.folder, self.links, self.seed, self.replicas = folder, links, seed, replicas
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.started = 0

    def start(self, recoveries: int, environment: dict[str, str]) -> int:
        number, self.started = self.started, self.started + 1
        program = str(Path(__file__).parent / "member.py")
        words = [self.links, self.folder, number, recoveries, self.seed, self.replicas]
        self.processes[number] = subprocess.Popen(
            [sys.executable, program, *map(str, words)],
            env={**os.environ, **environment},
            stderr=(self.folder / f"errors-{number}").open("wb"),
        )
        return number

    def lines(self, number: int) -> int:
        path = self.folder / f"journal-{number}"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait_for(self, wanted: dict[int, int]) -> None:
        """Until the journals of these members have so many lines."""
        end = time.monotonic() + PATIENCE
        while any(self.lines(number) < lines for number, lines in wanted.items()):
            ended = [number for number, process in self.processes.items() if process.poll() is not None]
            if ended or time.monotonic() > end:
                raise SystemExit(f"members {ended} ended, or all hang: {self.errors()}")
            time.sleep(LOOK)

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("errors-*")))

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def run(
    folder: Path, links: str, members: int, kills: int, operations: int, seed: int, replicas: int
) -> None:
    """Lets members work on a store, and replaces some by others in between."""
    chance = random.Random(seed)
    all_of = Members(folder, links, seed, replicas)
    each = 2 * operations // (members * (kills + 1))  # lines of a journal between kills
    try:
        for rank in range(members):
            place = {"PYFAB_RANK": str(rank), "PYFAB_SIZE": str(members)}
            all_of.start(0, {**place, "PYFAB_RENDEZVOUS": f"file://{folder}/place-0"})
        for kill in range(kills):
            all_of.wait_for({number: all_of.lines(number) + each for number in all_of.processes})
            victim = chance.choice(sorted(all_of.processes))
            all_of.processes[victim].send_signal(signal.SIGKILL)
            all_of.processes.pop(victim).wait()
            number = all_of.start(kill + 1, {})
            all_of.wait_for({number: 2})
        all_of.wait_for({number: all_of.lines(number) + each for number in all_of.processes})
        (folder / "stop").touch()
        for number, process in all_of.processes.items():
            if process.wait(PATIENCE):
                raise SystemExit(f"member {number} failed: {all_of.errors()}")
    finally:
        all_of.end()


def calls(folder: Path) -> list[tuple[int, list[Any], list[Any] | None]]:
    """Member, call and return of all operations; nothing where it did not return."""
    found = []
    for path in folder.glob("journal-*"):
        begun: dict[int, list[Any]] = {}
        ended: dict[int, list[Any]] = {}
        for line in path.read_text().splitlines():
            if not line.endswith("]"):
                continue  # the member was killed while it wrote
            word, *rest = json.loads(line)
            if word in ("call", "back"):
                (begun if word == "call" else ended)[rest[1]] = rest
        number = int(path.name.removeprefix("journal-"))
        for count, call in begun.items():
            back = ended.get(count)
            if back is None or back[2] != "no room":
                found.append((number, call, back))
    return found


def judge(folder: Path) -> tuple[list[str], dict[str, int]]:
    """What is wrong, and figures. A key is a register of stamps; 0 is that the key is not there."""
    wrong: list[str] = []
    figures: dict[str, int] = defaultdict(int)
    stamps: dict[tuple[str, int], int] = {}
    history: dict[str, list[Operation]] = defaultdict(list)
    journal = calls(folder)
    for _, (_, _, kind, key, stamp, *_), back in journal:
        if back is None or kind == "delete" or (kind == "cas" and not back[3]):
            continue
        found = stamp if kind == "cas" else back[3]
        if stamps.setdefault((key, back[2]), found) != found:
            wrong.append(f"version {back[2]} of {key!r} is of {found:#x} and of {stamps[key, back[2]]:#x}")
    for number, (begin, count, kind, key, stamp, _, before), back in journal:
        figures["operations"] += 1
        figures["whose outcome is not known"] += back is None
        end, result, arguments = FOREVER if back is None else back[0], None, ()
        named = {"put": "write", "get": "read", "view": "read", "cas": "cswap", "delete": "write"}[kind]
        if kind == "cas":
            arguments = before, stamp
            if back is not None:
                result = before if back[3] else stamps.get((key, back[2])) if back[2] else 0
                figures["compare_and_set done" if back[3] else "compare_and_set refused"] += 1
            if back is not None and result is None:
                continue  # refused because of a version that nobody has told of
        elif kind in ("put", "delete"):
            arguments = (stamp if kind == "put" else 0,)
            if kind == "delete" and back is not None and not back[3]:
                named, arguments, result = "read", (), 0
        elif back is None:
            continue
        else:
            result = back[3]
        history[key].append(Operation(str(number), count, named, begin, end, arguments, result))
    for key, operations in sorted(history.items()):
        verdict = check(operations)
        figures["states searched"] += verdict.states
        if not verdict.good:
            wrong.append(f"{key}: {'not decided' if verdict.good is None else story(operations)}")
    return wrong, dict(figures)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", default="shm")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--operations", type=int, default=3000, help="in all, about")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pyfab-store-"))
    run(folder, given.links, given.members, given.kills, given.operations, given.seed, given.replicas)
    wrong, figures = judge(folder)
    print(", ".join(f"{count} {what}" for what, count in figures.items()))
    print("\n".join(wrong) or "linearizable", f"\nthe journals are in {folder}" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
