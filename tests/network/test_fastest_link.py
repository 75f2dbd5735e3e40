"""Of several links that lead to a peer the fastest is taken, by what was measured."""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy as np
import pytest
from netns import TIMEOUT, Bench
from pyfab import Access, RemoteHandle, Transport
from pyfab.testing import Target

LINKS = ["tcp:r0", "tcp:r1"]


def open_transport(target: Target) -> tuple[bytes, bytes]:
    transport = Transport(LINKS)
    memory = np.zeros(8, np.int64)
    registration = transport.register(memory, Access.REMOTE)
    target.kept["transport"] = transport, memory, registration
    return transport.name, registration.to_bytes()


def put(target: Target, name: bytes, handle: bytes, value: int, busy: str) -> tuple[str, dict[int, float]]:
    transport = target.kept["transport"][0]
    # A link at rest lets its first bytes through at once. Datagrams to `busy`, an address behind the slow link, use
    # that up, and what comes after them waits.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        for _ in range(10):
            datagrams.sendto(bytes(300), (busy, 9))
    peer = transport.peer(name)
    deadline = time.monotonic() + TIMEOUT
    while len(peer.latency) < len(LINKS):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    remote: Any = RemoteHandle(handle)
    transport.wait(transport.put, peer, np.array([value]), remote.address, remote, timeout=TIMEOUT)
    return peer.link, peer.latency


def words(target: Target) -> list[int]:
    return [int(word) for word in target.kept["transport"][1]]


def close(target: Target) -> None:
    target.kept.pop("transport")[0].close()


@pytest.mark.slow
@pytest.mark.req("WIN-74")
@pytest.mark.parametrize("slow", [0, 1])
def test_the_fastest_of_several_links_is_taken(slow: int) -> None:
    with (
        Bench(nodes=2, rails=2) as bench,
        bench.node(0).peer("shm") as near,
        bench.node(1).peer("shm") as far,
    ):
        # So slow that each packet takes longer than a whole round trip of the other link.
        shape = "root tbf rate 64kbit burst 700b latency 10s"
        bench.node(0).call("tc", "qdisc", "replace", "dev", f"r{slow}", *shape.split())
        near.run(open_transport)
        name, handle = far.run(open_transport)
        link, latency = near.run(put, name, handle, 7, bench.node(1).address(slow))
        assert latency[slow] > latency[1 - slow]
        assert link == LINKS[1 - slow]
        assert far.run(words)[0] == 7
        near.run(close)
        far.run(close)
