"""Commands that are ended from outside, or whose streams are closed: nothing runs on, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pyfab import bench
from pyfab.bench import _pair

PYFAB = f"{shlex.quote(sys.executable)} -m pyfab"
PROGRAM = """
import os, time
import numpy as np
import pyfab
with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
    with domain.register(np.zeros(8), pyfab.Access.REMOTE) as region:
        endpoint.write(np.ones(8), endpoint.av.insert(endpoint.address), region.remote).result()
        print(os.getpid(), flush=True)
        time.sleep(100)
"""


def in_shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_a_trace_that_is_ended_ends_its_program_and_is_written(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pyfab", "trace", "-o", "trace.json", "program.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not psutil.pid_exists(pid)
    assert json.loads((tmp_path / "trace.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, status, message",
    [
        ("info --formats >&-", 0, ""),
        ("fetch 127.0.0.1:1 --token-file - <&-", 2, "holds no token"),
    ],
)
def test_closed_streams_are_no_errors(command: str, status: int, message: str) -> None:
    ran = in_shell(f"{PYFAB} {command}")
    assert ran.returncode == status, ran.stderr
    assert message in ran.stderr if message else not ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_figures_that_cannot_be_saved_are_shown() -> None:
    ran = in_shell(f"{PYFAB} pingpong --sizes 8 --rounds 1 --links shm --save /dev/full")
    assert ran.returncode == 1
    assert "No space left" in ran.stderr
    assert "shm" in ran.stdout and "µs" in ran.stdout


def test_a_target_stays_while_only_puts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pair, "_IDLE", 1.0)
    with bench.Listener("127.0.0.1:0", token="secret") as listener:
        quick = {"peer": listener.address, "token": "secret", "round_ms": 30}
        started, rounds = time.monotonic(), 0
        while time.monotonic() - started < 2.5:
            rounds += 40
            assert bench.latency("tcp:lo", [8], operations=["put"], rounds=rounds, **quick)


def test_a_listener_whose_log_nobody_reads_goes_on(tmp_path: Path) -> None:
    out, into = os.pipe()
    os.close(out)
    command = [
        sys.executable,
        "-m",
        "pyfab",
        "bench",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        "token",
        "--json",
    ]
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=into, text=True) as process:
        os.close(into)
        assert process.stdout
        told = json.loads(process.stdout.readline())
        try:
            for _ in range(2):
                assert bench.latency(
                    "tcp:lo", [8], peer=told["listening"], token="secret", rounds=1, round_ms=1
                )
        finally:
            process.terminate()
