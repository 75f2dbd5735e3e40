"""What happens to whom and when: a plan that the seed determines, and the ways to make a process slow."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path
from typing import NamedTuple

PERIOD, SHARE = 0.05, 0.04  # seconds, and which part of them a starving member may run
AT_ONCE = 3  # members that are in trouble at one time
GAP = 0.7  # seconds between two faults, on average
# How often, relatively. A stopped newcomer takes the place of one who is killed, and is stopped while all call each other.
KINDS = {
    "short stop": 8,
    "long stop": 5,
    "starve": 5,
    "kill": 3,
    "kill while stopped": 2,
    "stopped newcomer": 2,
    "leave": 2,
}


class Fault(NamedTuple):
    start: float  # seconds after everybody knew everybody
    kind: str
    rank: int
    seconds: float  # how long it is stopped or slow, or until the next process takes its place


def plan(seed: int, members: int, seconds: float, deadline: float, staying: int = 1) -> list[Fault]:
    """The first `staying` ranks never end, so that somebody is there from first to last."""
    chance = random.Random(f"{seed}/faults")
    found: list[Fault] = []
    until = [0.0] * members
    now = 0.5
    while now < seconds:
        free = [rank for rank in range(members) if until[rank] < now]
        if len(free) > members - AT_ONCE:
            (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
            rank = chance.choice(free)
            if rank < staying and kind not in ("short stop", "long stop", "starve"):
                kind = "long stop"
            length = {
                "short stop": chance.uniform(0.01, 0.6 * deadline),
                "long stop": chance.uniform(1.2, 2.5) * deadline,
                "stopped newcomer": chance.uniform(0.9, 2) * deadline,
                "starve": chance.uniform(0.5, 3),
                "kill while stopped": chance.uniform(0.1, 1.5 * deadline),
            }.get(kind, chance.uniform(0, 1.5))
            found.append(Fault(now, kind, rank, length))
            until[rank] = now + length + 1.5  # a new process takes a while to be there
        now += chance.expovariate(1 / GAP)
    return found


class Starvation:
    """A process gets a small part of a processor: by the kernel's bandwidth control, or by being stopped most of the time."""

    def __init__(self, by_turns: bool) -> None:
        self._group = None if by_turns else _make_group()
        self.how = f"by {self._group}" if self._group else "by being stopped and continued in turns"
        self._homes: dict[int, Path] = {}
        self._turns: dict[int, threading.Event] = {}

    def begin(self, pid: int) -> None:
        if self._group:
            self._homes[pid] = _group_of(pid, self._group.parent)
            (self._group / "cgroup.procs").write_text(str(pid))
        else:
            over = self._turns[pid] = threading.Event()
            threading.Thread(target=_take_turns, args=(pid, over), daemon=True).start()

    def end(self, pid: int) -> None:
        if self._group:
            (self._homes.pop(pid) / "cgroup.procs").write_text(str(pid))
        else:
            self._turns.pop(pid).set()

    def close(self) -> None:
        for over in self._turns.values():
            over.set()
        if self._group:
            with contextlib.suppress(OSError):
                self._group.rmdir()


def _take_turns(pid: int, over: threading.Event) -> None:
    with contextlib.suppress(ProcessLookupError):
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(PERIOD * (1 - SHARE))
            os.kill(pid, signal.SIGCONT)
            over.wait(PERIOD * SHARE)


def _make_group() -> Path | None:
    """A group for this run with little processor time, or nothing where this user may not make one."""
    period, quota = int(PERIOD * 1e6), int(PERIOD * SHARE * 1e6)
    for root, files in (
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(quota)}),
        (Path("/sys/fs/cgroup"), {"cpu.max": f"{quota} {period}"}),
    ):
        for left in root.glob("chaos-*"):  # by a supervisor that was killed
            if not Path(f"/proc/{left.name.removeprefix('chaos-')}").exists():
                with contextlib.suppress(OSError):
                    left.rmdir()
        group = root / f"chaos-{os.getpid()}"
        try:
            group.mkdir()
            for file, value in files.items():
                (group / file).write_text(value)
            return group
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
    return None


def _group_of(pid: int, root: Path) -> Path:
    """Where a process is now, in the hierarchy that `root` is the root of."""
    controllers = "" if root.name == "cgroup" else root.name
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controllers in names.split(","):
            return root / path.lstrip("/")
    return root
