"""Starts clients and targets, makes their trouble as the seed says, and ends them in order."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE = 150  # seconds for what ends by itself
FAULTS = {
    "kill client": 3,
    "kill target": 1,
    "stop client": 3,
    "stop target": 3,
    "stop client for long": 1,
    "stop target for long": 1,
    "cut client": 6,
    "cut target": 3,
}


class Process:
    def __init__(self, number: int, role: str, popen: subprocess.Popen[bytes], control: Connection) -> None:
        self.number, self.role, self.popen, self.control = number, role, popen, control
        self.name = f"{role[0]}{number}"
        self.address, self.remotes = b"", {}  # type: tuple[bytes, dict[str, bytes]]
        self.ending = ""
        self.over = False
        self.busy_until = 0.0  # stopped
        self.ready = False
        self.final = False  # it told what is in its memory in the end


class Supervisor:
    def __init__(self, options: Any, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.chance = random.Random(f"{options.seed}/faults")
        self.processes: list[Process] = []
        self.faults: Counter[str] = Counter()
        self.troubles: list[tuple[int, int, str]] = []  # when, to whom, what
        self.failures: list[str] = []
        self.going_on: list[tuple[float, Process]] = []
        self.kinds = {
            kind: weight
            for kind, weight in FAULTS.items()
            if ("tcp" in options.links or "cut" not in kind) and (not options.only or kind in options.only)
        }

    def start(self, role: str) -> None:
        number = len(self.processes) + 1
        mine, theirs = socket.socketpair()
        options = self.options
        domain: dict[str, Any] = {"peer_deadline": options.deadline, "rail_deadline": options.deadline / 2}
        if options.links.startswith("shm+") and role == "client" and number % 2:
            domain["lnx_disable_shm"] = "1"  # so that both links lead to the same memory at once
        settings = {
            "process": number,
            "seed": f"{options.seed}/{number}",
            "plan": options.seed,
            "links": options.links,
            "domain": domain,
            "journal": str(self.folder / f"journal-{number}"),
            "supervisor": os.getpid(),
        }
        with open(self.folder / f"stderr-{number}", "wb") as output:
            popen = subprocess.Popen(
                [sys.executable, str(HERE / f"{role}.py"), str(theirs.fileno()), json.dumps(settings)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        theirs.close()
        self.processes.append(Process(number, role, popen, Connection(mine.detach())))

    def living(self, role: str = "") -> list[Process]:
        return [each for each in self.processes if not each.over and not each.ending and role in each.role]

    def send(self, process: Process, *message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is noticed elsewhere
            process.control.send(message)

    def take(self, process: Process, name: str, *rest: Any) -> None:
        if name == "hello":
            process.busy_until = 0.0
            if process.role == "target":
                process.address, process.remotes = rest
            process.ready = True
            for client, target in [
                (client, target)
                for client in self.living("client")
                for target in self.living("target")
                if process in (client, target) and target.address and client.ready
            ]:
                self.send(client, "meet", target.name, target.address, target.remotes)
        elif name == "final":
            process.final = True

    def ended(self, process: Process) -> None:
        process.over = True
        process.control.close()
        status = process.popen.wait()
        if status != {"kill": -signal.SIGKILL, "end": 0}.get(process.ending):
            said = (self.folder / f"stderr-{process.number}").read_text(errors="replace")
            self.failures.append(f"{process.name} ended with {status}:\n{said[-3000:]}")
            return
        for client in self.living("client"):
            self.send(client, "gone", process.name)
        if process.ending == "kill":
            self.start(process.role)

    def turn(self, seconds: float) -> None:
        """Takes what comes, and lets those go on whose time it is."""
        controls = {each.control: each for each in self.processes if not each.over}
        for control in wait(list(controls), seconds):
            process = controls[control]  # type: ignore[index]
            try:
                message = process.control.recv()
            except (EOFError, ConnectionResetError):
                self.ended(process)
            else:
                self.take(process, *message)
        now = time.monotonic()
        for when, process in list(self.going_on):
            if when <= now:
                self.going_on.remove((when, process))
                self.signal(process, signal.SIGCONT, "goes on")

    def signal(self, process: Process, number: int, what: str) -> None:
        if not process.over:
            self.troubles.append((time.monotonic_ns(), process.number, what))
            process.popen.send_signal(number)

    def fault(self) -> None:
        (kind,) = self.chance.choices(list(self.kinds), list(self.kinds.values()))
        what, role, *_ = kind.split()
        choice, length, most = self.chance.random(), self.chance.random(), self.chance.choice([1, 1, None])
        now = time.monotonic()
        there = [each for each in self.living(role) if each.ready and each.busy_until < now]
        if not there:
            return
        process = there[int(choice * len(there))]
        self.faults[kind] += 1
        if what == "kill":
            process.ending = "kill"
            self.signal(process, signal.SIGKILL, "kill")
        elif what == "cut":
            self.troubles.append((time.monotonic_ns(), process.number, "cut"))
            self.send(process, "cut", most)
        else:
            deadline = self.options.deadline
            seconds = deadline * (1.2 + length) if kind.endswith("long") else deadline * 0.6 * length
            process.busy_until = now + seconds
            self.signal(process, signal.SIGSTOP, "stop")
            self.going_on.append((now + seconds, process))

    def until(self, condition: Any, what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition() and not self.failures:
            if time.monotonic() > end:
                self.failures.append(f"not within {PATIENCE} s: {what}")
            self.turn(0.1)

    def run(self) -> None:
        options = self.options
        for _ in range(options.targets):
            self.start("target")
        for _ in range(options.clients):
            self.start("client")
        self.until(lambda: all(each.ready for each in self.processes), "everybody is there")
        end = time.monotonic() + options.seconds
        next_fault = time.monotonic() + options.gap
        while time.monotonic() < end and not self.failures:
            self.turn(0.05)
            if time.monotonic() >= next_fault:
                self.fault()
                next_fault += self.chance.expovariate(1 / options.gap)
        self.until(
            lambda: not self.going_on and all(each.ready for each in self.living()),
            "all faults are over",
        )
        self.end("client")

    def end(self, role: str) -> None:
        ending = self.living(role)
        for process in ending:
            process.ending = "end"
            self.send(process, "end")
        self.until(lambda: all(each.over for each in ending), f"each {role} ended")

    def look(self) -> None:
        """Targets tell what is in their memory in the end."""
        for target in self.living("target"):
            self.send(target, "final")
        self.until(lambda: all(each.final for each in self.living("target")), "targets told what they have")

    def close(self) -> None:
        for process in self.processes:
            if not process.over:
                process.popen.kill()
                process.popen.wait()
                process.control.close()
