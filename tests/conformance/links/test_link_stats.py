"""What each link tells of the messages that it carried: exact numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pyfab
import pytest
from pyfab import Delivery
from pyfab.testing import Peer
from support import TIMEOUT, insert

FORMS = list(itertools.product(("", "t"), ("send", "inject"), ("", "+vector"), ("", "+data")))
TOTAL = sum(range(1, len(FORMS) + 1))


@pytest.fixture
def linked():
    """(endpoint, {link: (peer, handle of the peer, handle at the peer)})"""
    with (
        Peer("shm") as near,
        Peer("tcp") as far,
        pyfab.Domain("shm+tcp") as domain,
        domain.endpoint() as endpoint,
    ):
        yield (
            endpoint,
            {
                f"{spec}.0": (peer, endpoint.av.insert(peer.address), peer.run(insert, endpoint.address))
                for spec, peer in (("shm", near), ("tcp", far))
            },
        )


def send_one(endpoint, handle, form, number, tag=5):
    tagged, kind, vector, data = form
    local = [np.array([number]), np.array([-number])] if vector else np.array([number, -number])
    options = {"data": number} if data else {}
    options["flags"] = Delivery.INJECT if kind == "inject" else Delivery.TRANSMIT
    start = endpoint.tsend if tagged else endpoint.send
    start(local, handle, *([tag] if tagged else []), **options).result(TIMEOUT)


def receive_all(target):
    """What came, in order, with the tag and the remote data."""
    seen = []
    for number, (tagged, *_) in enumerate(FORMS, 1):
        for _ in range(number):
            landing = np.zeros(2, np.int64)
            receive = target.endpoint.trecv(landing, 5) if tagged else target.endpoint.recv(landing)
            done = receive.result(TIMEOUT)
            seen.append((landing.tolist(), done.tag, done.data))
    return seen, [tuple(row) for row in target.endpoint.link_stats()]


@pytest.mark.req("LNX-27", "LNX-23", "LNX-28", "LNX-65")
def test_every_form_of_sending_over_each_link(linked):
    """The first form once, the second twice, and so on; each link carries and counts its own."""
    endpoint, peers = linked
    assert endpoint.link_stats() == []
    expected = {"".join(form): number for number, form in enumerate(FORMS, 1)}
    for turn, (link, (peer, handle, _)) in enumerate(peers.items()):
        peer.start(receive_all)
        for number, form in enumerate(FORMS, 1):
            for _ in range(number):
                send_one(endpoint, handle, form, number)
        seen, (there,) = peer.finish()
        assert seen == [
            ([number, -number], 5 if tagged else 0, number if data else 0)
            for number, (tagged, _, _, data) in enumerate(FORMS, 1)
            for _ in range(number)
        ]
        assert there[:2] == (link, {})
        assert there[2] == TOTAL
        rows = endpoint.link_stats()
        assert [row.link for row in rows] == ["shm.0", "tcp.0"][: turn + 1]
        assert rows[turn].sends == expected
        assert (rows[turn].receives, rows[turn].unexpected) == (0, 0)


def send_some(target, handle, count):
    for number in range(count):
        target.endpoint.send(np.array([number]), handle).result(TIMEOUT)


def until_waiting(endpoint, count):
    while endpoint.message_stats()["unexpected"] < count:
        endpoint.progress()


@pytest.mark.req("LNX-65")
def test_lengths_of_queues(linked):
    """Five messages wait, two are received, one more comes, four are received, and two find their receives posted."""
    endpoint, peers = linked
    landing = np.zeros(1, np.int64)
    for link, (peer, handle, handle_there) in peers.items():

        def row(link=link):
            return next(row for row in endpoint.link_stats() if row.link == link)

        peer.run(send_some, handle_there, 5)
        until_waiting(endpoint, 5)
        assert row()[1:] == ({}, 0, 5, 5, 5, 3.0)
        for _ in range(2):
            endpoint.recv(landing, peer=handle).result(TIMEOUT)
        assert row()[1:] == ({}, 2, 5, 3, 5, 3.0)
        peer.run(send_some, handle_there, 1)
        until_waiting(endpoint, 4)
        assert row()[1:] == ({}, 2, 6, 4, 5, 19 / 6)
        for _ in range(4):
            endpoint.recv(landing, peer=handle).result(TIMEOUT)
        receives = [endpoint.recv(np.zeros(1, np.int64), peer=handle) for _ in range(2)]
        peer.run(send_some, handle_there, 2)
        for receive in receives:
            receive.result(TIMEOUT)
        assert row()[1:] == ({}, 8, 6, 0, 5, 19 / 6)
    stats = endpoint.message_stats()
    assert (stats["most_unexpected"], stats["mean_unexpected"]) == (5, 19 / 6)
    assert (stats["most_posted"], stats["mean_posted"]) == (2, 1.5)
    assert (stats["met_posted"], stats["met_unexpected"]) == (4, 12)
