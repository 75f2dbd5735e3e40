"""One peer over two network cards: keys and handles are the same on both, and statistics tell them apart."""

from __future__ import annotations

import numpy as np
import pytest
from netns import TIMEOUT, Bench

LINKS = "tcp:r0,r1"


@pytest.fixture
def bench():
    with Bench(nodes=2, rails=2) as bench:
        yield bench


def insert(target, address):
    return target.endpoint.av.insert(address)


def put(target, handle, remote):
    target.endpoint.write(np.ones(8), handle, remote).result(TIMEOUT)


def registered_links(target):
    return sorted(target.domain.stats()["registrations"])


@pytest.mark.req("LNX-57")
def test_a_region_is_good_over_every_device_of_a_provider(bench):
    """Over one rail while the other is down, and the other way round."""
    with bench.node(0).peer(LINKS) as near, bench.node(1).peer(LINKS) as far:
        place = far.expose(np.zeros(8))
        assert far.run(registered_links) == ["tcp.0", "tcp.1"], "a registration for each device"
        for rail in (0, 1):
            bench.node(0).link_down(1 - rail)
            before = bench.node(1).counters(rail)[0]
            near.run(put, near.run(insert, far.address), place.remote)
            assert place.content().all()
            assert bench.node(1).counters(rail)[0] > before
            place.store(np.zeros(8))
            bench.node(0).link_up(1 - rail)
        place.close()


def send(target, handle, number):
    target.endpoint.send(np.array([number]), handle).result(TIMEOUT)


def receive(target):
    landing = np.zeros(1, np.int64)
    done = target.endpoint.recv(landing).result(TIMEOUT)
    return int(landing[0]), done.source


def receives_of_links(target):
    return {row.link: row.receives for row in target.endpoint.link_stats()}


@pytest.mark.slow
@pytest.mark.req("LNX-22", "LNX-65")
def test_a_sender_has_one_handle_whichever_link_delivers(bench):
    """Its first messages come over one rail, and the rest over the other, because that one is switched off."""
    with bench.node(0).peer(LINKS) as near, bench.node(1).peer(LINKS) as far:
        there, here = near.run(insert, far.address), far.run(insert, near.address)
        for number in range(2):
            near.run(send, there, number)
            assert far.run(receive) == (number, here)
        before = far.run(receives_of_links)
        assert sum(before.values()) == 2
        used = max(before, key=before.get)  # whichever answered sooner
        bench.node(0).link_down(int(used.removeprefix("tcp.")))
        for number in range(2, 4):
            near.run(send, there, number)
            assert far.run(receive) == (number, here)
        after = far.run(receives_of_links)
        assert after.pop(used) == before.pop(used)
        assert sum(after.values()) == sum(before.values()) + 2
