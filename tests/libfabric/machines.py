"""Programs written for libfabric on two machines, between which there are two rails: `Machines`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import fabtests
from netns import Bench

LINKS = "shm+tcp:r0,r1"
MEETING = 2  # the rail over which programs find each other; nothing of pyfab goes there
LISTENS = "0A"  # in /proc/net/tcp
PATIENCE = 60  # seconds within which something has to happen


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.01)


class Machines:
    """Ends with the block that it is used in. rate: of each rail."""

    def __init__(self, rate: str | None = None) -> None:
        self.bench = Bench(nodes=2, rails=3, rates=[rate, rate, None])

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.close()

    def carried(self, rail: int) -> int:
        """Bytes that went over a rail, in both directions."""
        return sum(self.bench.node(0).counters(rail))

    def cut(self, rail: int, how: str) -> None:
        """how: "unplug": packets vanish; "link_down": one of the machines knows."""
        getattr(self.bench.node(0), how)(rail)

    def start(self, node: int, command: str, *options: str) -> subprocess.Popen[str]:
        """Starts a program of fabtests on a machine."""
        name, *arguments = command.split()
        line = [*self.bench.node(node).command, str(fabtests.program(name)), *arguments, "-p", "pyfab"]
        return fabtests.start([*line, *options], fabtests.environment(LINKS))

    def run(self, command: str, during: Callable[[], None] | None = None) -> fabtests.Outcome:
        """Runs `command` with its server on one machine and its client on the other, and `during` beside them."""
        port = fabtests.free_port()
        host = self.bench.node(1).address(MEETING)
        with self.start(1, command, f"-E={port}") as server:
            until(lambda: server.poll() is not None or self._listens(1, port), "the server listens")
            with self.start(0, command, f"-E={port}", host) as client:
                try:
                    if during:
                        during()
                        assert client.poll() is None, "the client has ended before"
                    return fabtests.ends(server, client, fabtests.TIMEOUT)
                finally:
                    client.kill()
                    server.kill()

    def _listens(self, node: int, port: int) -> bool:
        folder = Path(f"/proc/{self.bench.node(node).pid}/net")
        rows = [row.split() for name in ("tcp", "tcp6") for row in (folder / name).read_text().splitlines()]
        return any(row[3] == LISTENS and row[1].endswith(f":{port:04X}") for row in rows)

    def mpirun(self, folder: Path, ranks: int, *line: str, **more: str) -> subprocess.Popen[str]:
        """Starts a job of Open MPI over pyfab's provider with so many ranks on each machine."""
        here, there = self.bench.node(0), self.bench.node(1)
        agent = folder / "agent"  # what mpirun calls instead of ssh
        agent.write_text(f'#!/bin/sh\nshift\nexec {" ".join(there.command)} sh -c "$*"\n')
        agent.chmod(0o755)
        hosts = ",".join(f"{node.address(MEETING)}:{ranks}" for node in (here, there))
        network = f"10.77.{MEETING}.0/24"
        command = [*here.network, "mpirun", "--oversubscribe", "-n", str(2 * ranks), "-H", hosts]
        command += ["--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", network]
        return fabtests.start([*command, *mpi_options(), *line], {**mpi_environment(LINKS), **more})


def mpi_options() -> list[str]:
    """What mpirun of Open MPI needs for a job over pyfab's provider."""
    options = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "pyfab"]
    return options + [word for name in ("FI_PROVIDER_PATH", "PYFAB_FI_LINKS") for word in ("-x", name)]


def mpi_environment(links: str) -> Mapping[str, str]:
    """That of mpirun."""
    as_root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    sbin = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return fabtests.environment(links, {**as_root, "PATH": sbin})
