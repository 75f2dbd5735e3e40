"""Runs programs of fabtests, libfabric's own tests, over pyfab's provider: a server and a client for each command.

fabtests are found in the folder that $PYFAB_FABTESTS names: what `scripts/libfabric-tests` builds, or the source folder
in which they were built. The libfabric that they use is the one that they were linked with. A provider that is built with a
sanitizer needs its runtime in $PYFAB_TEST_FI_PRELOAD; what the runtime finds makes a command fail.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil
import pyfab

PROGRAMS = ("bin", "functional", "benchmarks", "unit", "ubertest", "multinode")
"""Folders of a build in which programs may lie."""
FINDING = re.compile(r"Sanitizer: |: runtime error: ")  # of a sanitized provider
TIMEOUT = 240  # seconds for one command; the longest moves 8 GB


def provider_folder() -> Path:
    """Where libpyfab-fi.so lies, beside the extension or where $PYFAB_TEST_FI_PROVIDER says."""
    told = os.environ.get("PYFAB_TEST_FI_PROVIDER")
    return Path(told) if told else Path(pyfab._core.__file__).parent / "libfabric"


def program(name: str) -> Path | None:
    """The program of fabtests with this name, if there is one."""
    root = os.environ.get("PYFAB_FABTESTS")
    found = [Path(root) / folder / name for folder in PROGRAMS] if root else []
    return next((path for path in found if path.is_file()), None)


def reason() -> str:
    """Why nothing can be run here; empty if it can."""
    if not (provider_folder() / "libpyfab-fi.so").is_file():
        return "this build has no provider for libfabric: install libfabric-dev and build again"
    if program("fi_rdm") is None:
        return "PYFAB_FABTESTS names no folder with fabtests: see scripts/libfabric-tests"
    return ""


def environment(links: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """That of a program which is to find the provider, over these links."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYFAB_FI_")}
    if runtime := os.environ.get("PYFAB_TEST_FI_PRELOAD"):
        own["LD_PRELOAD"] = runtime
    return {**own, "FI_PROVIDER_PATH": str(provider_folder()), "PYFAB_FI_LINKS": links, **(more or {})}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Outcome(NamedTuple):
    """Exit statuses and output of a server and its client."""

    server: int | None
    client: int | None
    text: str

    @property
    def passed(self) -> bool:
        return self.server == self.client == 0 and not FINDING.search(self.text)


def _shown_at_ports() -> list[str]:
    """What endpoints over shared memory alone that have a port show in the kernel's list of sockets."""
    return re.findall(r"@pyfab-fi/\S+", Path("/proc/net/unix").read_text(errors="replace"))


def _listens(server: subprocess.Popen[str]) -> None:
    """Returns when the server waits for its client, or has ended."""
    process = psutil.Process(server.pid)
    deadline = time.monotonic() + TIMEOUT
    while server.poll() is None and time.monotonic() < deadline:
        try:
            if any(each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp")):
                return
            if any(f"/{server.pid}/" in name for name in _shown_at_ports()):
                return
        except psutil.Error:
            return
        time.sleep(0.005)


def _wait(process: subprocess.Popen[str], seconds: float) -> tuple[int | None, str]:
    try:
        text = process.communicate(timeout=seconds)[0]
        return process.returncode, text
    except subprocess.TimeoutExpired:
        process.kill()
        return None, process.communicate()[0]


def _start(command: str, options: list[str], surroundings: Mapping[str, str]) -> subprocess.Popen[str]:
    name, *arguments = command.split()
    path = program(name)
    assert path is not None, name
    return start([str(path), *arguments, "-p", "pyfab", *options], surroundings)


def start(line: list[str], surroundings: Mapping[str, str]) -> subprocess.Popen[str]:
    """Starts a program, whose output is kept."""
    return subprocess.Popen(
        line, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run_alone(command: str, links: str, seconds: float = TIMEOUT) -> tuple[int | None, str]:
    """Runs a test of one process, such as "fi_cq_test"; returns its exit status and what it prints."""
    with _start(command, [], environment(links)) as process:
        return _wait(process, seconds)


def run(command: str, links: str, more: Mapping[str, str] | None = None, seconds: float = TIMEOUT) -> Outcome:
    """Runs `command`, such as "fi_rdm_pingpong -I 5", with both sides on this machine, which exchange names by themselves."""
    port = f"-E={free_port()}"
    server, client = [port, *_own_port()], [port, *_own_port(), "127.0.0.1"]
    return _both(server, client, command, environment(links, more), seconds)


def _own_port() -> list[str]:
    """fabtests before 2.0 listen at a port of the host even if they exchange names, and both sides at the same one."""
    header = Path(os.environ["PYFAB_FABTESTS"]) / "config.h"
    old = header.is_file() and '#define PACKAGE_VERSION "1.' in header.read_text()
    return ["-B", str(free_port())] if old else []


def run_by_address(command: str, links: str, client_port: bool, seconds: float = TIMEOUT) -> Outcome:
    """Runs `command` with a client that is told the server's host and port, and with `client_port` its own port as well."""
    port = str(_free_pair())
    own = ["-B", str(_free_pair())] if client_port else []
    server, client = ["-s", "127.0.0.1", "-B", port], ["-P", port, *own, "127.0.0.1"]
    return _both(server, client, command, environment(links), seconds)


def _free_pair() -> int:
    """A port that is free, as is the next one."""
    while True:
        port = free_port()
        try:
            with socket.create_server(("127.0.0.1", port + 1)):
                return port
        except OSError:
            continue


def _both(
    server_options: list[str],
    client_options: list[str],
    command: str,
    surroundings: dict[str, str],
    seconds: float,
) -> Outcome:
    return both(
        lambda: _start(command, server_options, surroundings),
        lambda: _start(command, client_options, surroundings),
        seconds,
    )


def both(
    start_server: Callable[[], subprocess.Popen[str]],
    start_client: Callable[[], subprocess.Popen[str]],
    seconds: float,
) -> Outcome:
    """Starts a server and, when it listens, its client; returns when both have ended. A client that takes longer is stopped."""
    with start_server() as server:
        _listens(server)
        with start_client() as client:
            return ends(server, client, seconds)


def ends(server: subprocess.Popen[str], client: subprocess.Popen[str], seconds: float) -> Outcome:
    """Returns when both have ended, or have been stopped because that took too long."""
    client_status, client_text = _wait(client, seconds)
    server_status, server_text = _wait(server, 20)
    return Outcome(server_status, client_status, f"--- client\n{client_text}\n--- server\n{server_text}")
