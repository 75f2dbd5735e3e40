"""Processes that did not run for longer than their deadlines: what has arrived meanwhile counts."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer
from test_killed import free_port
from test_stopped import TIMEOUT

LISTENS = "0A"  # in /proc/net/tcp
PATIENCE = 4  # seconds of peer_deadline: the test, too, has to act within it, also beside other work


def wait_until(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + TIMEOUT
    while not happened():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.001)


def unread(port: int, *, at_listener: bool) -> int:
    """Bytes that lie in connections of this port, at its own end or at that of those who called it."""
    total = 0
    with open("/proc/net/tcp") as table:
        for line in list(table)[1:]:
            _, local, remote, state, queues, *_ = line.split()
            if state == LISTENS:  # its figure counts calls that have not said a word yet
                continue
            if int((local if at_listener else remote).split(":")[1], 16) == port:
                total += int(queues.split(":")[1], 16)
    return total


def write(target, address: bytes, remote) -> None:
    peer = target.endpoint.av.insert(address)
    target.endpoint.write(np.ones(8), peer, remote).result(TIMEOUT)


@pytest.fixture
def pair():
    """A target over tcp, an initiator without much patience, and the target's port."""
    port = free_port()
    with (
        Peer("tcp", tcp_listen=f"127.0.0.1:{port}") as target,
        Peer("tcp", peer_deadline=PATIENCE) as initiator,
    ):
        yield target, initiator, port


def outlive_deadline() -> None:
    """Real time has to pass for a deadline to be over: nothing else tells of it."""
    time.sleep(1.2 * PATIENCE)


def write_by_a_caller_that_is_away(target, initiator, port: int, answer: str) -> None:
    """The initiator does not run from its first word until its deadline is over and the answer lies there."""
    exposed = target.expose(np.zeros(8))
    target.suspend()
    try:
        initiator.start(write, target.address, exposed.remote)
        wait_until(lambda: unread(port, at_listener=True) > 0, "the caller's first word")
        initiator.suspend()
        outlive_deadline()
    finally:
        target.resume()
    wait_until(lambda: unread(port, at_listener=False) > 0, answer)
    initiator.resume()
    assert initiator.finish() is None
    assert exposed.content().all()


@pytest.mark.slow
def test_a_welcome_that_came_while_the_caller_did_not_run_counts(pair):
    """The call's deadline is over when the process goes on, and the answer has long been there."""
    write_by_a_caller_that_is_away(*pair, "the welcome")


@pytest.mark.slow
def test_a_challenge_that_came_while_the_caller_did_not_run_counts():
    """There is more to say after it, so the call must go on, and not end where it stands."""
    port = free_port()
    with (
        Peer("tcp", auth_key=b"secret", tcp_listen=f"127.0.0.1:{port}") as target,
        Peer("tcp", auth_key=b"secret", peer_deadline=PATIENCE) as initiator,
    ):
        write_by_a_caller_that_is_away(target, initiator, port, "the challenge")


@pytest.mark.slow
def test_a_proof_that_came_while_the_called_one_did_not_run_counts():
    port = free_port()
    with (
        Peer("tcp", auth_key=b"secret", tcp_listen=f"127.0.0.1:{port}", peer_deadline=PATIENCE) as target,
        Peer("tcp", auth_key=b"secret", peer_deadline=30) as initiator,
    ):
        exposed = target.expose(np.zeros(8))
        target.suspend()
        initiator.start(write, target.address, exposed.remote)
        wait_until(lambda: unread(port, at_listener=True) > 0, "the caller's first word")
        initiator.suspend()
        target.resume()
        wait_until(lambda: unread(port, at_listener=False) > 0, "the challenge")
        target.suspend()
        outlive_deadline()
        initiator.resume()
        wait_until(lambda: unread(port, at_listener=True) > 0, "the proof")
        target.resume()
        assert initiator.finish() is None
        assert exposed.content().all()


def write_in_turns(target, address: bytes, remote) -> None:
    """The second write is posted when told, and then waits, longer than a tick, for a target that is stopped."""
    peer = target.endpoint.av.insert(address)
    ones = np.ones(8)
    target.endpoint.write(ones, peer, remote).result(TIMEOUT)
    target.tell("ready")
    target.hear()
    operation = target.endpoint.write(ones, peer, remote)
    with pytest.raises(pyfab.OperationTimeout):
        operation.result(0.4 * PATIENCE)
    target.tell("waits")
    operation.result(TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec, settings, target_first",
    [("tcp", {}, True), ("shm", {"shm_copy": "ring"}, False)],
    ids=["tcp", "ring"],
)
def test_processes_that_are_stopped_and_go_on_together_lose_nothing(spec, settings, target_first):
    """As a batch system suspends a job: nobody has waited for anybody while nobody ran."""
    settings = {"peer_deadline": PATIENCE, **settings}
    with Peer(spec, **settings) as target, Peer(spec, **settings) as initiator:
        exposed = target.expose(np.zeros(8))
        initiator.start(write_in_turns, target.address, exposed.remote)
        assert initiator.finish() == "ready"
        target.suspend()
        initiator.tell("go on")
        assert initiator.finish() == "waits"
        initiator.suspend()
        outlive_deadline()
        for peer in [target, initiator] if target_first else [initiator, target]:
            peer.resume()
        assert initiator.finish() is None
