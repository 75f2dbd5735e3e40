"""Rails that end in the middle of everything: nothing is lost, nothing is done twice, nothing arrives in the wrong order."""

from __future__ import annotations

import os
import time

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab import Access, AtomicOp, MRFlag, RMAEvent
from pyfab.testing import Peer
from rails import ENCRYPTED, RAILS, WHY_NOT, cut

pytestmark = pytest.mark.skipif(RAILS is None, reason=WHY_NOT)
TIMEOUT = 60
LARGE = 3_000_000  # bytes: goes in stripes
GONE = pyfab.PeerLostError
ORDERED_TAG, SUM_TAG = 7, 8


def insert(target, address):
    return target.endpoint.av.insert(address)


def count_writes(target, name):
    memory = target.kept["counted", name] = np.zeros(LARGE, np.uint8)
    region = target.domain.register(memory, Access.REMOTE, flags=MRFlag.RMA_EVENT)
    counter = target.kept["counter", name] = target.domain.counter()
    region.bind(counter, RMAEvent.REMOTE_WRITE)
    region.enable()
    target.kept["region", name] = region
    return region.remote


def counted(target, name):
    return target.kept["counter", name].value


def content(target, name):
    return target.kept["counted", name]


def stand(report):
    """Whether all rails carry bytes. One that is cut and not yet missed has no address any more."""
    return not any(word in report for word in ("down", "joining", "?:0"))


def wait_until_rails_stand(report_now):
    deadline = time.monotonic() + TIMEOUT
    while not stand(report := report_now()):
        assert time.monotonic() < deadline, report


def remote_data(target):
    return [
        entry.data
        for entry in target.endpoint.cq.read(10_000)
        if entry.flags & pyfab.CompletionFlag.REMOTE_CQ_DATA
    ]


def take(target, sizes):
    """Posts receives for messages of at most these sizes."""
    target.kept["landings"] = [np.zeros(size, np.uint8) for size in sizes]
    target.kept["receives"] = [
        target.endpoint.trecv(memory, ORDERED_TAG) for memory in target.kept["landings"]
    ]


def taken(target):
    """What came: of each message its length and its distinct bytes."""
    done = [receive.result(TIMEOUT).nbytes for receive in target.kept["receives"]]
    return [
        (size, np.unique(memory[:size]).tolist())
        for size, memory in zip(done, target.kept["landings"], strict=True)
    ]


@pytest.fixture(
    params=[("thread", {}), ("process", {}), ("thread", ENCRYPTED), ("process", ENCRYPTED)],
    ids=["thread", "process", "thread-encrypted", "process-encrypted"],
)
def way(request):
    """Where the peer runs, and the settings of both domains."""
    return request.param


@pytest.fixture
def joined(way):
    """A peer over rails, this side's endpoint, and the peer's handle here."""
    where, settings = way
    with (
        Peer(RAILS, where=where, **settings) as peer,
        pyfab.Domain(RAILS, **settings) as domain,
        domain.endpoint() as endpoint,
    ):
        handle = endpoint.av.insert(peer.address)
        peer.run(insert, endpoint.address)
        yield peer, endpoint, handle


def everything_at_once(peer, endpoint, handle, break_something, turns):
    remote = peer.run(count_writes, "a")
    sums = peer.expose(np.zeros(1, np.int64))
    noticed = peer.expose(np.zeros(8, np.uint8))
    fetched, data, puts, adds = [], 0, 0, 0
    sizes = [0, 1, 100, 5000, 20_000, 70_000, 300_000, 100]
    generator = np.random.default_rng(1)
    for turn in range(turns):
        peer.run(take, sizes)
        large = generator.integers(0, 256, LARGE, np.uint8)
        operations = [endpoint.write(large, handle, remote, data=data)]
        data, puts = data + 1, puts + 1
        former = np.zeros(10, np.int64)
        for i, size in enumerate(sizes):
            operations.append(endpoint.tsend(np.full(size, i, np.uint8), handle, ORDERED_TAG))
            if i == turn % len(sizes):
                break_something()
            operations.append(
                endpoint.fetch_atomic(
                    AtomicOp.SUM, np.ones(1, np.int64), former[i : i + 1], handle, sums.remote
                )
            )
            operations.append(endpoint.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, sums.remote))
            operations.append(
                endpoint.write(np.full(8, turn % 256, np.uint8), handle, noticed.remote, data=data)
            )
            adds, data = adds + 2, data + 1
        for operation in operations:
            operation.result(TIMEOUT)
        fetched += former[: len(sizes)].tolist()
        assert peer.run(taken) == [(size, [i] if size else []) for i, size in enumerate(sizes)]
        back = np.zeros_like(large)
        get = endpoint.read(back, handle, remote)
        break_something()
        get.result(TIMEOUT)
        assert (back == large).all()
    assert (peer.run(content, "a") == large).all()
    assert sums.content() == [adds]
    assert len(set(fetched)) == len(fetched)  # each former value once
    assert peer.run(counted, "a") == puts
    assert peer.run(remote_data) == list(range(data))  # once each, and in order
    assert noticed.content().tolist() == [(turns - 1) % 256] * 8


@pytest.mark.slow
@litmus
@pytest.mark.req("LNX-64", "LNX-30")
def test_a_rail_dies_in_the_middle(joined):
    ended = 0

    def one_rail():
        nonlocal ended
        ended += cut(1)

    everything_at_once(*joined, one_rail, rounds(50))
    assert ended > 0


@pytest.mark.slow
@litmus
@pytest.mark.req("LNX-64")
def test_all_rails_die_at_once_and_come_back(joined):
    ended = 0

    def all_rails():
        nonlocal ended
        ended += cut()

    everything_at_once(*joined, all_rails, rounds(20))
    assert ended > 0


@pytest.mark.req("LNX-64")
def test_a_rail_that_comes_back_carries_bytes_again(joined):
    peer, endpoint, handle = joined
    remote = peer.run(count_writes, "a")
    content = np.ones(LARGE, np.uint8)
    endpoint.write(content, handle, remote).result(TIMEOUT)
    cut(1)
    deadline = time.monotonic() + TIMEOUT
    while not stand(report := endpoint.report(handle)[1]):
        endpoint.write(content, handle, remote).result(TIMEOUT)
        assert time.monotonic() < deadline
    assert report.startswith("tcp.0 127.0.0.1:")
    assert "; tcp.1 " in report


@pytest.mark.slow
@pytest.mark.req("LNX-64")
def test_no_rail_is_left(joined, way):
    peer, endpoint, handle = joined
    _, settings = way
    if peer.pid == os.getpid():
        pytest.skip("a thread cannot be killed")
    remote = peer.run(count_writes, "a")
    endpoint.write(np.ones(LARGE, np.uint8), handle, remote).result(TIMEOUT)
    with Peer(RAILS, **settings) as other:
        there = endpoint.av.insert(other.address)
        exposed = other.expose(np.zeros(8))
        operations = [endpoint.write(np.ones(LARGE, np.uint8), handle, remote) for _ in range(20)]
        operations += [endpoint.tsend(np.ones(size, np.uint8), handle, 1) for size in (10, 1_000_000)]
        peer.kill()
        lost = [operation.exception(TIMEOUT) for operation in operations]
        assert all(error is None or isinstance(error, GONE) for error in lost)
        assert isinstance(lost[-1], GONE)
        with pytest.raises(GONE):
            endpoint.write(np.ones(8, np.uint8), handle, remote[:8]).result(TIMEOUT)
        endpoint.write(np.ones(8), there, exposed.remote).result(TIMEOUT)
        assert exposed.content().tolist() == [1] * 8


@pytest.mark.slow
@pytest.mark.req("LNX-64")
def test_a_peer_that_stops_for_longer_than_rails_wait():
    settings = {"rail_deadline": 0.2, "peer_deadline": 60}
    with (
        Peer(RAILS, **settings) as peer,
        pyfab.Domain(RAILS, **settings) as domain,
        domain.endpoint() as endpoint,
    ):
        handle = endpoint.av.insert(peer.address)
        sums = peer.expose(np.zeros(1, np.int64))
        endpoint.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, sums.remote).result(TIMEOUT)
        peer.suspend()
        try:
            operations = [
                endpoint.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, sums.remote) for _ in range(10)
            ]
            deadline = time.monotonic() + TIMEOUT
            while "joining" not in endpoint.report(handle)[1] and "down" not in endpoint.report(handle)[1]:
                assert time.monotonic() < deadline
                endpoint.progress()
        finally:
            peer.resume()
        for operation in operations:
            operation.result(TIMEOUT)
        assert sums.content() == [11]


@pytest.mark.req("LNX-63")
def test_a_refused_large_put_stores_nothing(joined):
    peer, endpoint, handle = joined
    exposed = peer.expose(np.zeros(LARGE, np.uint8))
    address = (exposed.remote.address if hasattr(exposed.remote, "address") else 0, exposed.key)
    with pytest.raises(pyfab.BoundsError):
        endpoint.write(np.ones(LARGE + 1, np.uint8), handle, address).result(TIMEOUT)
    assert not exposed.content().any()
    endpoint.write(np.ones(LARGE, np.uint8), handle, exposed.remote).result(TIMEOUT)
    assert exposed.content().all()


@pytest.mark.slow
@pytest.mark.req("LNX-62")
@pytest.mark.parametrize(
    "shares, used", [([1, 0], "tcp.0"), ([0, 1], "tcp.1"), ([1, 3], "tcp.0+tcp.1"), (None, "tcp.0+tcp.1")]
)
def test_a_policy_chooses_the_rails(shares, used):
    asked = []

    def policy(peer, links):
        asked.append((peer, links))
        return shares

    with (
        Peer(RAILS) as peer,
        pyfab.Domain(RAILS, rail_policy=policy) as domain,
        domain.endpoint() as endpoint,
    ):
        handle = endpoint.av.insert(peer.address)
        exposed = peer.expose(np.zeros(LARGE, np.uint8))
        endpoint.write(np.ones(LARGE, np.uint8), handle, exposed.remote).result(TIMEOUT)
        assert exposed.content().all()
        assert asked == [(handle, ["tcp.0", "tcp.1"])]
        assert endpoint.report(handle)[0] == used


@pytest.mark.slow
@pytest.mark.req("LNX-62")
@pytest.mark.parametrize("answer", [[1], [0, 0], [1, -1], [1, 1, 1], "no", 5])
def test_a_policy_that_makes_no_sense_is_an_error_of_the_call(answer):
    with (
        Peer(RAILS) as peer,
        pyfab.Domain(RAILS, rail_policy=lambda _peer, _links: answer) as domain,
        domain.endpoint() as endpoint,
    ):
        handle = endpoint.av.insert(peer.address)
        exposed = peer.expose(np.zeros(8))
        with pytest.raises(pyfab.InvalidArgumentError, match="rail_policy returned"):
            endpoint.write(np.ones(8), handle, exposed.remote)


@pytest.mark.slow
@pytest.mark.req("LNX-62")
def test_a_policy_may_use_the_endpoint():
    """It is called without a lock: it posts to others and waits, throws, and closes the endpoint."""
    what_to_do = []

    def policy(peer, _links):
        return what_to_do.pop()(peer) if what_to_do else None

    with (
        Peer(RAILS) as one,
        Peer(RAILS) as two,
        pyfab.Domain(RAILS, rail_policy=policy) as domain,
        domain.endpoint() as endpoint,
    ):
        handles = [endpoint.av.insert(peer.address) for peer in (one, two)]
        exposed = [peer.expose(np.zeros(8)) for peer in (one, two)]

        def put(index, value):
            endpoint.write(np.full(8, float(value)), handles[index], exposed[index].remote).result(TIMEOUT)

        def throws(_peer):
            raise KeyError("of the policy")

        what_to_do.append(throws)
        with pytest.raises(KeyError, match="of the policy"):
            put(0, 1)
        what_to_do.append(lambda _peer: put(0, 2))
        with pytest.raises(pyfab.InvalidArgumentError, match="uses that peer itself"):
            put(0, 3)
        what_to_do.append(lambda _peer: put(1, 4))
        put(0, 5)
        assert [place.content().tolist() for place in exposed] == [[5] * 8, [4] * 8]

    with Peer(RAILS) as peer, pyfab.Domain(RAILS, rail_policy=policy) as domain:
        endpoint = domain.endpoint()
        handle = endpoint.av.insert(peer.address)
        remote = peer.expose(np.zeros(8)).remote
        what_to_do.append(lambda _peer: endpoint.close())
        with pytest.raises(pyfab.ClosedError):
            endpoint.write(np.ones(8), handle, remote)


def message(target, handle):
    target.endpoint.tsend(np.ones(8, np.uint8), handle, ORDERED_TAG).result(TIMEOUT)


def receives_of_links(target):
    return {row.link: row.receives for row in target.endpoint.link_stats()}


def report(target, handle):
    return target.endpoint.report(handle)[1]


def second_rail(_peer, _links):
    return [0, 1]


@pytest.mark.slow
@pytest.mark.req("LNX-62")
def test_replies_take_the_rail_on_which_the_first_message_came():
    """Also where this side counts its rails in another way than the peer does."""
    with Peer(RAILS, where="thread", rail_policy=second_rail) as asks, Peer(RAILS) as answers:
        there, here = asks.run(insert, answers.address), answers.run(insert, asks.address)
        answers.run(take, [8])
        asks.run(message, there)
        assert answers.run(taken) == [(8, [1])]
        assert answers.run(receives_of_links) == {"tcp.1": 1}
        wait_until_rails_stand(lambda: answers.run(report, here))
        asks.run(take, [8])
        answers.run(message, here)
        assert asks.run(taken) == [(8, [1])]
        assert asks.run(receives_of_links).get("tcp.0", 0) == 0
        assert asks.run(receives_of_links)["tcp.1"] == 1


@pytest.mark.slow
@pytest.mark.req("LNX-62")
def test_ordered_messages_take_one_rail_and_unordered_ones_any(joined):
    peer, endpoint, handle = joined
    count, size = 60, 200_000

    def send_all(flags):
        before = peer.run(receives_of_links)
        peer.run(take, [size] * count)
        sends = [
            endpoint.tsend(np.full(size, i, np.uint8), handle, ORDERED_TAG, flags=flags) for i in range(count)
        ]
        for send in sends:
            send.result(TIMEOUT)
        came = [values for _, values in peer.run(taken)]
        after = peer.run(receives_of_links)
        return came, {link: after[link] - before.get(link, 0) for link in after}

    wait_until_rails_stand(lambda: endpoint.report(handle)[1])
    came, links = send_all(pyfab.SendFlag(0))
    assert came == [[i] for i in range(count)]
    assert sorted(links.values())[:-1] in ([], [0])  # all over one
    came, links = send_all(pyfab.SendFlag.UNORDERED)
    assert sorted(came) == [[i] for i in range(count)]
    assert sum(links.values()) == count
    assert min(links.values()) > 0 and len(links) == 2


@pytest.mark.req("LNX-62")
def test_unordered_messages_all_arrive_once(joined):
    peer, endpoint, handle = joined
    sizes = [100_000] * 40
    peer.run(take, sizes)
    sends = [
        endpoint.tsend(np.full(100 + i, i, np.uint8), handle, ORDERED_TAG, flags=pyfab.SendFlag.UNORDERED)
        for i in range(40)
    ]
    for send in sends:
        send.result(TIMEOUT)
    assert sorted(peer.run(taken)) == [(100 + i, [i]) for i in range(40)]


@pytest.mark.slow
def test_peers_over_the_same_rails_all_get_their_turns():
    """Also where more is posted to each than one turn moves, again and again, before anybody makes progress."""
    with (
        Peer(RAILS) as first,
        Peer(RAILS) as second,
        Peer(RAILS) as third,
        pyfab.Domain(RAILS, progress="manual") as domain,
        domain.endpoint() as endpoint,
    ):
        peers = [endpoint.av.insert(peer.address) for peer in (first, second, third)]
        targets = [peer.expose(np.zeros(LARGE, np.uint8)) for peer in (first, second, third)]
        small, large = np.full(64, 7, np.uint8), np.full(LARGE, 7, np.uint8)
        for peer, target in zip(peers, targets, strict=True):
            endpoint.write(small, peer, target.remote).result(TIMEOUT)  # the rails stand
        for turn in range(20):
            order = [0, 0, 1, 2, 0, 2, 1] if turn % 2 else [2, 1, 1, 0]
            posted = [
                endpoint.write(data, peers[index], targets[index].remote)
                for index in order
                for data in (large, *[small] * 130)
            ]
            for operation in posted:
                operation.result(TIMEOUT)
        for target in targets:
            assert (target.content() == 7).all()
