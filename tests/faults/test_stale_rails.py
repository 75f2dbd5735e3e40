"""What a rail that was given up still holds in the network does not land any more, also long after."""

from __future__ import annotations

import time

import numpy as np
import pytest
from litmus import litmus, rounds
from netns import TIMEOUT, Bench
from pyfab import AtomicOp

LINKS = "tcp:r0,r1"
LARGE = 4 << 20  # bytes: goes in stripes, over both rails


def insert(target, address):
    return target.endpoint.av.insert(address)


def put(target, handle, remote, value):
    target.endpoint.write(np.full(LARGE, value, np.uint8), handle, remote).result(TIMEOUT)


def add(target, handle, remote, times):
    """Updates without a result, with one, and comparing; what they found."""
    found = []
    for _ in range(times):
        former, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        target.endpoint.atomic(AtomicOp.SUM, one, handle, remote).result(TIMEOUT)
        target.endpoint.fetch_atomic(AtomicOp.SUM, one, former, handle, remote).result(TIMEOUT)
        found.append(int(former[0]))
    return found


def report(target, handle):
    return target.endpoint.report(handle)[1]


def arriving(node, what):
    """Loses packets that arrive on the first rail: all of them, those that begin a connection, or none."""
    rules = {
        "all": 'iifname "r0" drop',
        "new": 'iifname "r0" tcp flags & (syn | ack) == syn drop',
        "none": "",
    }
    lines = ["table inet stale", "delete table inet stale", "table inet stale {", "chain arriving {"]
    lines += ["type filter hook prerouting priority raw", rules[what], "}", "}", ""]
    node._space.call("nft", "-f", "-", text="\n".join(lines))


def given_up(node):
    """Connections of the first rail that this node has closed, while what they hold was not taken in by the other side."""
    sockets = node.call("ss", "-tanH", "src", node.address(0)).splitlines()
    return [line for line in sockets if line.split()[0] in ("FIN-WAIT-1", "CLOSING", "LAST-ACK")]


@pytest.fixture
def machines():
    settings = {"rail_deadline": 0.3, "peer_deadline": 120}
    with (
        Bench(nodes=2, rails=2) as bench,
        bench.node(0).peer(LINKS, **settings) as near,
        bench.node(1).peer(LINKS, **settings) as far,
    ):
        yield bench, near, far, near.run(insert, far.address)


def joined(near, handle):
    told = near.run(report, handle)
    return "; tcp.1 " in told and "down" not in told and "joining" not in told


def wait_for(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.req("LNX-64")
def test_what_a_dead_rail_holds_does_not_land_after_later_puts(machines):
    bench, near, far, handle = machines
    place = far.expose(np.zeros(LARGE, np.uint8))
    near.run(put, handle, place.remote, 1)
    arriving(bench.node(1), "all")
    near.run(
        put, handle, place.remote, 2
    )  # a part of it stays in the first rail, and goes over the other again
    wait_for(lambda: given_up(bench.node(0)))
    near.run(put, handle, place.remote, 3)
    assert (place.content() == 3).all()
    arriving(bench.node(1), "new")  # now the former connection comes through, but no other one
    wait_for(lambda: not given_up(bench.node(0)))
    assert np.unique(place.content()).tolist() == [3]
    arriving(bench.node(1), "none")
    wait_for(lambda: joined(near, handle))
    near.run(put, handle, place.remote, 4)
    assert (place.content() == 4).all()


@litmus
@pytest.mark.req("LNX-64")
def test_what_a_dead_rail_has_done_unanswered_is_not_done_again(machines):
    """Updates arrive, and their answers are lost with the rail: they are asked for again over the other one."""
    bench, near, far, handle = machines
    sums = far.expose(np.zeros(1, np.int64))
    expected = 0
    for _ in range(rounds(3)):
        assert near.run(add, handle, sums.remote, 5) == list(range(expected + 1, expected + 11, 2))
        expected += 10
        arriving(bench.node(0), "all")
        assert near.run(add, handle, sums.remote, 5) == list(range(expected + 1, expected + 11, 2))
        expected += 10
        assert sums.content() == [expected]
        arriving(bench.node(0), "none")
        wait_for(lambda: joined(near, handle))
