"""Who takes part: what each contestant needs, how its processes are built, started and asked."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ANSWER_S = 60
"""A contestant that says nothing for so long is given up."""


class Unavailable(Exception):
    """A contestant that cannot run here; the message says why and what to install."""


@dataclass(frozen=True)
class Command:
    """A program that speaks the line protocol, ready to start; the harness appends the capacity in bytes."""

    argv: Sequence[str]
    arguments: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)


def build_folder() -> Path:
    """Where compiled baselines are kept from run to run, one folder per user."""
    folder = Path(tempfile.gettempdir()) / f"pyfab-benchmarks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise Unavailable(f"{folder} belongs to another user")
    return folder


def compiled(source: str, link: str = "", library: str = "", package: str = "") -> Callable[[], Command]:
    """A C baseline, compiled when its source is newer than its program. ``library`` is a pkg-config name."""

    def command() -> Command:
        path = HERE / "baselines" / source
        program = build_folder() / path.stem
        newest = max(path.stat().st_mtime, (path.parent / "pair.h").stat().st_mtime)
        if not program.exists() or program.stat().st_mtime < newest:
            compile_program(path, program, library, package)
        return Command([str(program)], [link] if link else [])

    return command


def compile_program(path: Path, program: Path, library: str, package: str) -> None:
    if not shutil.which("cc"):
        raise Unavailable("no C compiler (Debian package gcc)")
    flags: list[str] = []
    if library:
        query = ["pkg-config", "--cflags", "--libs", library]
        try:
            found = subprocess.run(query, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise Unavailable("no pkg-config (Debian package pkg-config)") from None
        if found.returncode:
            raise Unavailable(f"no {library} headers (Debian package {package})")
        flags = shlex.split(found.stdout)
    fresh = program.with_suffix(f".{os.getpid()}")
    cc = ["cc", "-D_GNU_SOURCE", "-std=gnu17", "-O3", "-Wall", "-Wextra", "-o", str(fresh), str(path), *flags]
    done = subprocess.run(cc, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{path.name} does not compile: {done.stderr.strip().splitlines()[0]}")
    fresh.replace(program)


def mpi(osc: str = "") -> Callable[[], Command]:
    """Two ranks under Open MPI on this node; ``osc`` is its one-sided component, "" for its own choice."""

    def command() -> Command:
        if not shutil.which("mpirun"):
            raise Unavailable("no mpirun (Debian packages openmpi-bin libopenmpi-dev)")
        need_module("mpi4py")
        env = {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_btl": "self,vader",
            "OMPI_MCA_oob_tcp_if_include": "lo",
            "OMPI_MCA_plm": "isolated",
        }
        if osc:
            env["OMPI_MCA_osc"] = osc
        ranks = ["mpirun", "-n", "2", "--host", "localhost:2", "--bind-to", "none"]
        return Command([*ranks, sys.executable, str(HERE / "baselines" / "mpi_rma.py")], env=env)

    return command


def script(name: str, *arguments: str, module: str = "numpy") -> Callable[[], Command]:
    """A contestant that is one Python script in this folder and needs ``module``."""

    def command() -> Command:
        need_module(module)
        return Command([sys.executable, str(HERE / name)], arguments)

    return command


def need_module(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        package = {"pyfab": "pyfab-rdma"}.get(name, name)
        raise Unavailable(f"no Python module {name} (pip install {package})")


CONTESTANTS: dict[str, Callable[[], Command]] = {
    "memory": compiled("memory.c"),
    "process_vm": compiled("process_vm.c"),
    "raw tcp": compiled("tcp.c"),
    "libfabric shm": compiled("libfabric.c", "shm", "libfabric", "libfabric-dev"),
    "libfabric tcp": compiled("libfabric.c", "tcp;ofi_rxm", "libfabric", "libfabric-dev"),
    "ucx mapped": compiled("ucx.c", "mapped", "ucx", "libucx-dev"),
    "ucx other": compiled("ucx.c", "other", "ucx", "libucx-dev"),
    "ucx tcp": compiled("ucx.c", "tcp", "ucx", "libucx-dev"),
    "mpi4py": mpi(),
    "mpi4py osc/ucx": mpi("ucx"),
    "python": script("baselines/python_calls.py"),
    "pyfab shm": script("pyfab_pair.py", "shm", "endpoint", module="pyfab"),
    "pyfab shm window": script("pyfab_pair.py", "shm", "window", module="pyfab"),
    "pyfab tcp": script("pyfab_pair.py", "tcp", "endpoint", module="pyfab"),
    "pyfab tcp window": script("pyfab_pair.py", "tcp", "window", module="pyfab"),
}


class Contestant:
    """A running contestant."""

    def __init__(self, name: str, capacity: int, cores: tuple[int, int]) -> None:
        command = CONTESTANTS[name]()
        env = os.environ | command.env
        env |= {
            "PYFAB_BENCH_CORES": f"{cores[0]},{cores[1]}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), env.get("PYTHONPATH")])),
            "OMP_NUM_THREADS": "1",
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [*command.argv, str(capacity), *command.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=env,
        )
        self._pending = b""
        try:
            self._answer()
        except Unavailable:
            self.close()
            raise

    def ask(self, what: str, size: int, batch: int, samples: int) -> dict[str, Any]:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # its last words are read below
            self._process.stdin.write(f"{what} {size} {batch} {samples}\n".encode())
        return self._answer()

    def close(self) -> None:
        """Ends the contestant by the end of its input, by force if that is not enough."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        """The next line that is JSON; what else a launcher prints is passed over."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            line, newline, rest = self._pending.partition(b"\n")
            if newline:
                self._pending = rest
                if line.startswith(b"{"):
                    answer: dict[str, Any] = json.loads(line)
                    if "error" in answer:
                        raise Unavailable(answer["error"])
                    return answer
                continue
            self._read_more(deadline)

    def _read_more(self, deadline: float) -> None:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            self._process.kill()
            raise Unavailable(f"no answer within {ANSWER_S} s")
        more = self._process.stdout.read(1 << 16)
        if not more:
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
            raise Unavailable(f"ended unexpectedly: {''.join(last) or 'no message'}")
        self._pending += more
