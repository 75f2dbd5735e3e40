"""Servers, and programs that attack them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from servers import MEETING, TOKEN, Server

Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a server by its kind, or a program that is one."""
    monkeypatch.setenv("PYFAB_TOKEN", TOKEN)
    np.save(tmp_path / "labels.npy", np.arange(10))
    commands = {
        "serve": ["-m", "pyfab", "serve", str(tmp_path / "labels.npy")],
        "agent": ["-m", "pyfab", "agent", "--listen", "127.0.0.1:0"],
        "bench": ["-m", "pyfab", "bench", "--listen", "127.0.0.1:0"],
        "meeting": ["-c", MEETING],
    }
    servers: list[Server] = []

    def begin(kind: str, program: str = "") -> Server:
        servers.append(Server(kind, *(["-c", program, str(tmp_path)] if program else commands[kind])))
        return servers[-1]

    yield begin
    for server in servers:
        server.end()
        assert "Traceback" not in server.said, server.said


Attack = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin() -> Iterator[Attack]:
    """Starts a program of this folder, and waits until its attack is under way."""
    attackers: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
        attacker = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(program)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        attackers.append(attacker)
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "ready\n"
        return attacker

    yield begin
    for attacker in attackers:
        attacker.kill()
        attacker.communicate()


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A host's folder for all, and nothing set."""
    tmp_path_factory.getbasetemp()  # stays where it is
    for name in ("PYFAB_TOKEN", "PYFAB_TRUST_NETWORK", "PYFAB_RENDEZVOUS", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def attack(begin: Attack) -> Attack:
    """Starts an attack of a stranger."""
    return lambda name, server, number=1: begin("attacker.py", name, server.address, str(number))


@pytest.fixture
def peer_attack(begin: Attack) -> Attack:
    """Starts an attack of a peer."""
    return lambda name, target, number=1: begin(
        "peer_attacker.py", name, target.address.hex(), str(number), (target.key or b"").hex()
    )
