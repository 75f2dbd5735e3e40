"""Starts the members, makes them know each other, makes their trouble, and writes down what happened and when."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from usage import Course, Usage, descriptors, grown, left_over, usage

from faults import Fault, Starvation

HERE = Path(__file__).parent
WARM = 5  # seconds until a member has opened what it needs
# Large memory that is freed goes back to the system at once, so that a process has what it uses.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
WARM_UP = 20  # seconds until a member uses what it will use, at least
PATIENCE = 30  # seconds beyond what the library may take, for a machine that has other work


class Incarnation:
    """One process that stands for a rank until it ends."""

    def __init__(
        self, rank: int, number: int, process: subprocess.Popen[bytes], control: Connection, stderr: Path
    ) -> None:
        self.rank, self.number, self.process, self.control, self.stderr = (
            rank,
            number,
            process,
            control,
            stderr,
        )
        self.address = b""
        self.commons: list[bytes] = []
        self.slots_given: set[tuple[int, int]] = set()
        self.ending = ""  # why it may end
        self.over = False
        self.drained = False
        self.lossy: list[str] = []  # faults that may make peers believe that it is gone
        self.counters: dict[tuple[int, int], list[list[int]]] = {}
        self.final_commons: list[list[int]] = []
        self.there_since = 0.0
        self.early_usage: Usage | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.rank, self.number

    def __str__(self) -> str:
        return f"{self.rank}/{self.number}"


class Supervisor:
    def __init__(self, options: Any, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.bound = 10 * options.deadline + 10
        self.started = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self.failures: list[str] = []
        self.faults: Counter[str] = Counter()
        self.incarnations: dict[tuple[int, int], Incarnation] = {}  # all that ever were
        self.now: dict[int, Incarnation] = {}
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.ports = [self._port(rank) for rank in range(options.members)]
        self.starvation = Starvation(options.starve == "turns")
        self.newcomers: dict[int, float] = {}  # ranks whose next process is to be stopped, and for how long
        self.hung = False
        self.courses: dict[int, Course] = {}  # of those who stay, once they have warmed up
        self.groups: Counter[str] = Counter()  # what happened in the group of a soak

    def _port(self, rank: int) -> int:
        """Below those that the kernel gives away, so that nobody takes it while a member is between two lives."""
        base = 20_000 + (self.options.seed * 97 + os.getpid() * 13) % 10_000
        for port in range(base + rank * 7, 32_000, self.options.members * 7):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
        raise RuntimeError("no free port")

    # --- the log

    def log(self, text: str, when: float | None = None) -> None:
        when = (time.monotonic() if when is None else when) - self.started
        self.lines.append((when, text))
        with open(
            self.folder / "log", "a"
        ) as log:  # in the order of telling; write_log() puts it in that of time
            log.write(f"{when:9.3f}  {text}\n")
        if self.options.verbose:
            print(f"{when:9.3f}  {text}", flush=True)

    def fail(self, text: str, when: float | None = None) -> None:
        self.failures.append(text)
        self.log(f"FAILURE {text}", when)

    def write_log(self) -> Path:
        path = self.folder / "log"
        path.write_text("".join(f"{when:9.3f}  {text}\n" for when, text in sorted(self.lines)))
        return path

    # --- processes

    def start(self, rank: int) -> None:
        number = 1 + max((n for r, n in self.incarnations if r == rank), default=-1)
        mine, theirs = socket.socketpair()
        domain = {"peer_deadline": self.options.deadline, **self.options.set}
        if "," in self.options.links:  # rails: each device has its own address
            domain["tcp_port"] = str(self.ports[rank])
        elif "tcp" in self.options.links:
            domain["tcp_listen"] = f"127.0.0.1:{self.ports[rank]}"
        settings = {
            "rank": rank,
            "incarnation": number,
            "members": self.options.members,
            "seed": self.options.seed,
            "links": self.options.links,
            "domain": domain,
            "bound": self.bound,
            "groups": str(self.folder / "groups") if self.options.soak else "",
            "group_domain": {
                "spec": self.options.links,
                "peer_deadline": self.options.deadline,
                **self.options.set,
            },
            "journal": str(self.folder / f"journal-{rank}-{number}"),
            "supervisor": os.getpid(),
        }
        stderr = self.folder / f"stderr-{rank}-{number}"
        with open(stderr, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "member.py"), str(theirs.fileno()), json.dumps(settings)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,  # where core files go
                env=os.environ | ENVIRONMENT,
            )
        theirs.close()
        member = Incarnation(rank, number, process, Connection(mine.detach()), stderr)
        self.incarnations[member.key] = self.now[rank] = member
        self.log(f"start {member}, pid {process.pid}")

    def send(self, member: Incarnation, *message: Any) -> None:
        if not member.over:
            # Its end is noticed where it is waited for.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                member.control.send(message)

    def others(self, member: Incarnation) -> list[Incarnation]:
        return [
            other for other in self.now.values() if other is not member and other.address and not other.over
        ]

    def take(self, member: Incarnation, name: str, *rest: Any) -> None:
        if name == "hello":
            member.address, member.commons = rest
            member.there_since = time.monotonic()
            self.log(f"{member} is there")
            if seconds := self.newcomers.pop(member.rank, 0):
                self.at(0.03, lambda: self.stop(member, "stopped newcomer", seconds))
            for known in self.others(member):
                self.send(member, "meet", *known.key, known.address, known.commons)
                self.send(known, "meet", *member.key, member.address, member.commons)
        elif name == "slot":
            rank, number, remotes = rest
            member.slots_given.add((rank, number))
            other = self.now.get(rank)
            if other and other.number == number:
                self.send(other, "slot", *member.key, remotes)
        elif name == "counters":
            rank, number, values = rest
            member.counters[rank, number] = values
        elif name == "commons":
            (member.final_commons,) = rest
        elif name == "groups":
            self.groups.update(*rest)
        elif name == "event":
            when, text = rest
            self.log(f"{member}: {text}", when)
        elif name == "failure":
            when, text = rest
            self.fail(f"{member}: {text}", when)
        elif name == "hang":
            self.hung = True
            self.native_stacks(member)
        elif name in ("drained", "leaving"):
            member.drained = True
            self.log(f"{member} {name}")

    def native_stacks(self, member: Incarnation) -> None:
        if gdb := shutil.which("gdb"):
            command = [gdb, "-p", str(member.process.pid), "-batch", "-ex", "thread apply all bt 30"]
            found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            (self.folder / f"stacks-{member.rank}-{member.number}").write_text(found.stdout)

    def ended(self, member: Incarnation) -> None:
        if member.over:
            return
        while member.control.poll():
            try:
                self.take(member, *member.control.recv())
            except (EOFError, ConnectionResetError):
                break
        status = member.process.wait()
        member.over = True
        member.control.close()
        expected = {"kill": -signal.SIGKILL, "leave": 0, "end": 0}.get(member.ending)
        if status != expected:
            self.fail(f"{member} ended with status {status}, {member.ending or 'which nobody asked for'}")
        else:
            self.log(f"{member} ended ({member.ending})")
        said = member.stderr.read_text(errors="replace")
        if status != expected or any(
            word in said for word in ("Traceback", "Exception ignored", "Fatal", "terminate")
        ):
            self.fail(f"{member} said:\n{said[-8000:]}")
        for other in self.others(member):
            self.send(other, "gone", *member.key)
        if not member.ending and not self.broken:
            member.ending = "crash"
            self.start(member.rank)

    # --- time

    def at(self, seconds: float, function: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (time.monotonic() + seconds, len(self.timers) + id(function), function))

    def turn(self, most: float = 0.2) -> None:
        """Takes what comes, for at most so long."""
        until = time.monotonic() + most
        if self.timers:
            until = min(until, self.timers[0][0])
        living = {member.control: member for member in self.incarnations.values() if not member.over}
        for control in wait(list(living), max(0, until - time.monotonic())):
            member = living[control]  # type: ignore[index]
            try:
                message = member.control.recv()
            except (EOFError, ConnectionResetError):
                self.ended(member)
            else:
                self.take(member, *message)
        while self.timers and self.timers[0][0] <= time.monotonic():
            heapq.heappop(self.timers)[2]()

    def until(self, condition: Callable[[], bool], what: str) -> bool:
        """Whether it came to be in time."""
        end = time.monotonic() + self.bound + PATIENCE
        while not condition():
            if time.monotonic() > end:
                self.fail(f"not within {self.bound + PATIENCE:.0f} s: {what}")
                return False
            if self.broken:
                return False
            self.turn()
        return True

    @property
    def broken(self) -> bool:
        return self.hung or (bool(self.failures) and not self.options.keep_going)

    # --- faults

    def begin_fault(self, fault: Fault) -> None:
        member = self.now[fault.rank]
        if member.over or not member.address or member.ending:
            self.log(f"no {fault.kind} of rank {fault.rank}, which is not there")
            return
        self.faults[fault.kind] += 1
        self.log(f"{fault.kind} {member} for {fault.seconds:.2f} s")
        pid = member.process.pid
        if fault.kind == "starve":
            with contextlib.suppress(OSError):
                self.starvation.begin(pid)
            self.at(fault.seconds, lambda: self.end_starvation(member))
        elif fault.kind == "kill":
            member.lossy.append(fault.kind)
            self.kill(member, fault.seconds)
        elif fault.kind == "stopped newcomer":
            member.lossy.append(fault.kind)
            self.newcomers[member.rank] = fault.seconds
            self.kill(member, 0)
        elif fault.kind == "leave":
            member.lossy.append(fault.kind)
            member.ending = "leave"
            self.send(member, "leave")
            self.at(fault.seconds, lambda: self.replace(member))
        else:
            self.stop(member, fault.kind, fault.seconds)

    def stop(self, member: Incarnation, kind: str, seconds: float) -> None:
        if member.over:
            return
        if kind != "short stop":
            member.lossy.append(kind)
        os.kill(member.process.pid, signal.SIGSTOP)
        self.log(f"{member} is stopped")
        self.at(seconds, lambda: self.end_stop(member, kind))

    def end_stop(self, member: Incarnation, kind: str) -> None:
        if member.over:
            return
        if kind == "kill while stopped":
            self.kill(member, 0.3)
        else:
            os.kill(member.process.pid, signal.SIGCONT)
            self.log(f"{member} goes on")

    def end_starvation(self, member: Incarnation) -> None:
        if not member.over:
            with contextlib.suppress(OSError):  # it just ended
                self.starvation.end(member.process.pid)
            self.log(f"{member} is fed again")

    def kill(self, member: Incarnation, pause: float) -> None:
        member.ending = "kill"
        self.log(f"kill -9 {member}")
        member.process.kill()
        self.at(pause, lambda: self.replace(member))

    def replace(self, member: Incarnation) -> None:
        if not member.over:  # it takes its time to leave
            self.at(0.1, lambda: self.replace(member))
        elif not self.broken:
            self.start(member.rank)

    # --- the whole

    def complete(self) -> bool:
        """Whether everybody knows everybody."""
        living = [
            member for member in self.now.values() if not member.over and member.address and not member.ending
        ]
        if len(living) < self.options.members:
            return False
        return all(
            other.key in member.slots_given for member in living for other in living if other is not member
        )

    def run(self, faults: list[Fault]) -> None:
        self.log(f"starvation {self.starvation.how}")
        (self.folder / "groups").mkdir(exist_ok=True)
        for rank in range(self.options.members):
            self.start(rank)
        if not self.until(self.complete, "everybody knows everybody"):
            return
        self.log("everybody knows everybody")
        for fault in faults:
            self.at(fault.start, partial(self.begin_fault, fault))
        start = time.monotonic()
        while (passed := time.monotonic() - start) < self.options.seconds and not self.broken:
            self.turn()
            self.measure()
            if self.options.soak and passed > max(self.options.seconds / 4, WARM_UP):
                self.follow()
        if not self.until(
            lambda: not self.timers and self.complete(), "all faults are over and everybody is there again"
        ):
            return
        self.log("no more faults")
        for member in self.now.values():
            self.send(member, "drain")
        if not self.until(
            lambda: all(member.drained for member in self.now.values()), "all operations settled"
        ):
            return
        self.log("all operations settled")
        self.check_usage()
        if self.options.soak:
            self.check_soak()

    def measure(self) -> None:
        """What everybody uses once he has known the others for a while."""
        now = time.monotonic()
        for member in self.now.values():
            if (
                not member.early_usage
                and member.there_since
                and now > member.there_since + WARM
                and not member.over
            ):
                with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it was killed just now
                    member.early_usage = usage(member.process.pid)

    def follow(self) -> None:
        """What those who stay use, again and again."""
        for rank in range(self.options.staying):
            member = self.now[rank]
            if not member.over:
                self.courses.setdefault(rank, Course(member.process.pid)).look()

    def check_usage(self) -> None:
        """Each of the others may need some descriptors and mappings; those who came and went must not have left any."""
        for member in self.now.values():
            if member.early_usage is None:
                continue
            found = usage(member.process.pid)
            for what, each in (("descriptors", 4), ("mappings", 16)):
                was, now = getattr(member.early_usage, what), getattr(found, what)
                self.log(f"{member}: {was} {what} early, {now} at the end")
                if now > was + each * self.options.members:
                    self.fail(f"{member} had {was} {what} early and has {now} at the end")

    def check_soak(self) -> None:
        """Those who saw all others come and go use what they used early, and what others use."""
        for rank, course in self.courses.items():
            for text in grown(*course.first_and_last()):
                self.fail(f"rank {rank}, which was there from first to last, uses more: {text}")
        at_rest = {member.key: usage(member.process.pid) for member in self.now.values()}
        for key, found in at_rest.items():
            self.log(f"{key[0]}/{key[1]} at rest: {found}, {descriptors(self.now[key[0]].process.pid)}")
            for text in left_over(found, at_rest.values()) if key[0] < self.options.staying else []:
                self.fail(f"rank {key[0]}, which was there from first to last, at rest: {text}")

    def count(self) -> bool:
        """Asks all for their counters."""
        for member in self.now.values():
            self.send(member, "count")
        return self.until(
            lambda: all(member.final_commons for member in self.now.values()), "everybody told his counters"
        )

    def finish(self) -> None:
        for member in self.now.values():
            member.ending = member.ending or "end"
            self.send(member, "leave")
        self.until(lambda: all(member.over for member in self.now.values()), "everybody ended")

    def close(self) -> None:
        for member in self.incarnations.values():
            if not member.over:
                member.process.kill()
                member.process.wait()
                member.control.close()
        self.starvation.close()
