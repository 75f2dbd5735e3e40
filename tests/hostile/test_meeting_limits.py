"""Who has no token takes nothing from those who have: neither the server, nor its descriptors, threads or memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyfab.meeting.acceptor import RESERVE
from pyfab.tools.fetch import ArrayClient
from servers import DESCRIPTORS, TOKEN, Server

Start = Callable[..., Server]
Attack = Callable[..., object]
SERVERS = ["serve", "agent", "bench", "meeting"]
BURST = 1100
"""Connections, more than any server here may have descriptors."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_a_burst_of_calls_leaves_a_server_at_work(start: Start, attack: Attack, kind: str) -> None:
    server = start(kind)
    attack("flood", server, BURST)
    server.wait_for(r"127\.0\.0\.1:\d+: limit reached")
    assert server.threads() < 50
    assert len(server.descriptors()) < DESCRIPTORS - RESERVE
    server.use()  # while all of them are still there


@pytest.mark.slow
def test_who_has_proven_the_token_stays(start: Start, attack: Attack, tmp_path: Path) -> None:
    server = start("serve")
    with ArrayClient(server.address, TOKEN) as client:
        attack("flood", server, BURST)
        fetched = client.fetch(
            "labels", ..., tmp_path / "out.npy"
        )  # for which the server needs descriptors, too
        assert fetched.tolist() == list(range(10))


OPENS_FILES = """
import os, sys
from pathlib import Path
from pyfab.tools.serve import ArrayServer
with ArrayServer({"labels": Path(sys.argv[1]) / "labels.npy"}, token="secret") as server:
    print(f"serving on {server.address}", flush=True)
    held = []
    for line in sys.stdin:
        if line == "most\\n":  # nearly up to the reserve
            while not held or held[-1].fileno() < 256 - 64 - 8:
                held.append(open(os.devnull))
        elif line == "some\\n":  # what it may need while it is under attack
            held += [open(os.devnull) for _ in range(48)]
        elif line == "all\\n":
            try:
                while True:
                    held.append(open(os.devnull))
            except OSError:
                pass
        else:
            held.clear()
        print("done", line, flush=True)
"""


def test_descriptors_are_left_to_the_program(start: Start, attack: Attack) -> None:
    server = start("serve", OPENS_FILES)
    server.tell("most")
    server.wait_for("done most")
    attack("flood", server, BURST)
    server.wait_for("limit reached: descriptors are left to the program")
    server.tell("some")
    server.wait_for("done some")
    server.use()


@pytest.mark.slow
def test_a_server_goes_on_when_descriptors_are_there_again(start: Start, attack: Attack) -> None:
    server = start("serve", OPENS_FILES)
    server.tell("all")
    server.wait_for("done all")
    attack("flood", server, 10)
    server.wait_for("cannot accept: Too many open files")
    server.tell("none")
    server.wait_for("done none")
    server.use()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_odd_bytes_end_only_their_own_connection(start: Start, attack: Attack, kind: str) -> None:
    server = start(kind)
    attack("odd bytes", server)
    server.wait_for(r"127\.0\.0\.1:\d+: protocol broken")
    server.use()


IMPATIENT = """
import sys
from pathlib import Path
from pyfab.meeting import acceptor
from pyfab.tools.serve import ArrayServer
acceptor.PROOF_DEADLINE = 0.5
with ArrayServer({"labels": Path(sys.argv[1]) / "labels.npy"}, token="secret") as server:
    print(f"serving on {server.address}", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_half_frames_do_not_stay(start: Start, attack: Attack) -> None:
    server = start("serve", IMPATIENT)
    attack("half frames", server, 20)  # and ends when all of them have been closed
    server.wait_for(r"127\.0\.0\.1:\d+: deadline passed: no proof of the token within 0.5 s")
    server.use()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_guesses_are_told_at_a_limited_rate(start: Start, attack: Attack, kind: str) -> None:
    server = start(kind)
    attack("guess", server, 200)
    server.wait_for(r"pyfab: 127\.0\.0\.1:\d+: another token")
    assert server.said.count(": another token: ") < 200
    server.use()
