"""Objects from one rank to another: order, tags, groups that share an endpoint, losses, and messages that nobody proved."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import pyfab
import pytest

LONG = np.arange(50_000.0)  # goes as head and body


def exchanges(group: pyfab.Group) -> None:
    rank, size = group.rank, group.size
    after, before = (rank + 1) % size, (rank - 1) % size
    group.send(("first", rank), after)
    group.send({"tagged": rank}, after, tag=7)
    group.send(slice(rank), after)  # a pickle
    assert group.recv(before, tag=7) == {"tagged": before}
    assert group.recv(before) == ("first", before)
    assert group.recv(before) == slice(before)
    for turn in range(size):  # one sends, so that nobody waits for a receive that follows its own send
        if rank == turn:
            for n in (1, 2):
                group.send(n * LONG, after, tag=2**32 - 1)
        if rank == (turn + 1) % size:
            for n in (1, 2):
                assert (group.recv(before, 2**32 - 1) == n * LONG).all()
    if rank == 0:
        came = sorted(group.recv() for _ in range(size - 1))
        assert came == [(r, "x" * 5000) for r in range(1, size)]
    else:
        group.send((rank, "x" * 5000), 0)
    group.barrier()


@pytest.mark.slow
def test_objects_come_in_the_order_of_their_tag(links: str) -> None:
    pyfab.spawn(exchanges, 3, links=links, timeout=60)


def test_a_rank_may_send_to_itself() -> None:
    pyfab.spawn(own_message, 1, links="shm", timeout=60)


def own_message(group: pyfab.Group) -> None:
    group.send([1, 2], 0)
    assert group.recv(0) == [1, 2]
    for call in (lambda: group.send(1, 1), lambda: group.recv(-1), lambda: group.send(1, 0, tag=2**32)):
        with pytest.raises(
            pyfab.InvalidArgumentError, match=r"^(to=1: ranks|source=-1: ranks|tag=4294967296: it is 0 to)"
        ):
            call()


def beside_each_other(group: pyfab.Group) -> None:
    """A group that came out of another one uses the same endpoint."""
    part = group.split(0)
    other = 1 - group.rank
    group.send("whole", other)
    part.send("part", other)
    assert part.recv(other) == "part"
    assert group.recv() == "whole"
    part.close()


@pytest.mark.slow
def test_groups_keep_their_messages_apart() -> None:
    pyfab.spawn(beside_each_other, 2, links="shm", timeout=60)


def send_on(group: pyfab.Group) -> None:
    while True:
        group.send("more", 1)


def ends(group: pyfab.Group) -> None:
    if group.rank == 1:
        group.send("the last words", 0)
        group.recv(0)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(pyfab.OperationTimeout, match=r"^nothing came from rank 1 of 2 within 0\.01 s"):
        group.recv(1, tag=5, timeout=0.01)
    with contextlib.suppress(pyfab.PeerLostError):  # it may end before it has told that this came
        group.send("go", 1)
    with pytest.raises(pyfab.PeerLostError, match=r"^rank 1 of 2 ended"):
        group.recv(1, tag=5)
    assert group.recv(1) == "the last words"
    with pytest.raises(pyfab.PeerLostError, match=r"^rank 1 of 2 ended"):
        send_on(group)
    print("told")


@pytest.mark.slow
def test_whoever_waits_for_a_rank_that_ends_is_told(start_ranks, links: str) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); import pyfab\n"
        "from test_object_messages import ends\n"
        "with pyfab.Group.from_env(sys.argv[1], timeout=30) as group: ends(group)"
    )
    ranks = start_ranks(program, 2, links, str(Path(__file__).parent))
    assert ranks[0].communicate(timeout=60)[0] == "told\n"


def forgeries(group: pyfab.Group) -> None:
    if group.rank == 1:
        sent = []
        endpoint = group.endpoint
        group.endpoint = Recorder(endpoint, sent)
        group.send("once", 0)
        (head, peer, tag) = sent[0]
        changed = head.copy()
        changed[-1] ^= 1
        for forged in (head, changed, head[:10]):
            endpoint.tsend(forged, peer, tag).result(10)
        group.endpoint = endpoint
        group.send("after", 0)
        return
    assert group.recv(1) == "once"
    for why in ("came twice", "was changed on its way", "of 10 bytes did not come from a member"):
        with pytest.raises(pyfab.AccessDeniedError, match=why):
            group.recv(1)
    assert group.recv(1) == "after"


def late_bodies(group: pyfab.Group) -> None:
    """Rank 1 sends the heads of two long objects, their bodies when rank 0 has waited for each in vain."""
    if group.rank == 1:
        endpoint = group.endpoint
        group.endpoint = holding = Holding(endpoint)
        for tag in (0, 3):
            with contextlib.suppress(pyfab.OperationTimeout):
                group.send((tag, LONG), 0, tag=tag, timeout=0)
        group.endpoint = endpoint
        group.barrier()
        group.barrier()
        group.send("short", 0)
        for sending in [endpoint.tsend(*message) for message in holding.held]:
            sending.result(30)
        return
    group.barrier()
    for tag in (0, 3):
        for source in (None, 1):
            with pytest.raises(
                pyfab.OperationTimeout, match=r"^nothing came from rank 1 of 2 within 0\.05 s"
            ):
                group.recv(source, tag=tag, timeout=0.05)
    group.barrier()
    for tag in (3, 0):
        name, found = group.recv(tag=tag)
        assert name == tag and (found == LONG).all()
    assert group.recv(1) == "short"


class Holding:
    """An endpoint that keeps back the bodies."""

    def __init__(self, endpoint: pyfab.Endpoint) -> None:
        self._endpoint = endpoint
        self.held: list = []

    def tsend(self, local, peer: int, tag: int):
        if local.nbytes <= 4096:
            return self._endpoint.tsend(local, peer, tag)
        self.held.append((local, peer, tag))
        return self._endpoint.tsend(local[:0], peer, 1)  # of no use to anybody


def test_a_long_object_that_came_late_is_received_whole() -> None:
    pyfab.spawn(late_bodies, 2, links="shm", timeout=60)


class Recorder:
    """An endpoint that keeps what was sent."""

    def __init__(self, endpoint: pyfab.Endpoint, sent: list) -> None:
        self._endpoint, self._sent = endpoint, sent

    def tsend(self, local, peer: int, tag: int):
        self._sent.append((local.copy(), peer, tag))
        return self._endpoint.tsend(local, peer, tag)


@pytest.mark.slow
def test_what_nobody_proved_is_refused() -> None:
    pyfab.spawn(forgeries, 2, links="shm", timeout=60)
