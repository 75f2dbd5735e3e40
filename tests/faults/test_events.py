"""What an event queue is told of peers that are killed and of rails that are cut, and of how much of it there is room for."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp, Delivery, EventType
from pyfab.testing import Peer
from pyfab.testing.suite.support import rounds
from rails import RAILS, WHY_NOT, cut
from test_killed import GONE, insert
from test_stopped import TIMEOUT

SPECS = ["shm", "tcp", "shm+tcp", *([RAILS] if RAILS else [])]
OVER = {"shm": "shm.", "tcp": "tcp.", "shm+tcp": "shm."}  # the link that is lost with the peer; of rails none


def add_one(endpoint, handle, exposed):
    """An update that only a living peer makes; what became of it."""
    one, old = np.ones(1, np.int64), np.zeros(1, np.int64)
    try:
        return endpoint.fetch_atomic(AtomicOp.SUM, one, old, handle, exposed.remote).exception(TIMEOUT)
    except pyfab.FabricError as error:
        return error


def use(here):
    """A peer that was used, its handle, and what it exposes."""
    peer, handle = here.peer()
    exposed = peer.expose(np.zeros(1, np.int64))
    assert add_one(here.endpoint, handle, exposed) is None
    return peer, handle, exposed


def kill(here, peer, handle, exposed):
    """Returns once this side knows."""
    peer.kill()
    while (error := add_one(here.endpoint, handle, exposed)) is None:
        pass
    assert isinstance(error, GONE)


def of_peers(events):
    """The losses of peers that are told, after those of links."""
    while (event := events.read(TIMEOUT)) is not None and event.type == EventType.LINK_LOST:
        pass
    assert event is not None, "no event came"
    return event


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_a_killed_peer_is_told(station, spec):
    here = station(spec, peer_deadline=20)
    with here.domain.event_queue() as events:
        here.endpoint.bind(events)
        _, survivor, kept = use(here)
        peer, handle, exposed = use(here)
        assert events.read() is None
        kill(here, peer, handle, exposed)
        event = of_peers(events)
        assert event.type == EventType.PEER_LOST
        assert event.peer == handle
        assert event.errno in (errno.ECONNRESET, errno.EHOSTUNREACH)
        assert event.text
        assert event.link.startswith(OVER.get(spec, ""))
        assert event.link or spec == RAILS
        assert isinstance(add_one(here.endpoint, handle, exposed), GONE)
        assert events.read() is None, "a loss is told once"
        assert add_one(here.endpoint, survivor, kept) is None


@pytest.mark.parametrize("spec", ["tcp", "shm", *([RAILS] if RAILS else [])])
def test_a_killed_peer_that_nobody_uses_is_told(station, spec):
    """Who waits for the event learns of the death from it, with nothing under way."""
    here = station(spec, peer_deadline=20)
    events = here.domain.event_queue()
    here.endpoint.bind(events)
    peer, handle, _ = use(here)
    peer.kill()
    event = of_peers(events)
    assert (event.type, event.peer) == (EventType.PEER_LOST, handle)


@pytest.mark.slow
@pytest.mark.skipif(RAILS is None, reason=WHY_NOT)
def test_a_cut_rail_is_told_and_its_peer_is_not(station):
    here = station(RAILS, peer_deadline=20)
    events = here.domain.event_queue()
    here.endpoint.bind(events)
    peer, handle, exposed = use(here)
    # What is large goes over all rails.
    large = peer.expose(np.zeros(3_000_000, np.uint8))
    data = np.ones(3_000_000, np.uint8)
    here.endpoint.write(data, handle, large.remote).result(TIMEOUT)
    peer.run(insert, here.endpoint.address)
    while (event := events.read()) is None:  # the peer's process keeps its connections: these are of rails
        assert cut(1) >= 0
        here.endpoint.write(data, handle, large.remote).result(TIMEOUT)
    assert event.type == EventType.LINK_LOST
    assert event.peer == handle
    assert event.link in ("tcp.0", "tcp.1")
    assert event.errno == errno.ECONNRESET
    assert add_one(here.endpoint, handle, exposed) is None


@pytest.mark.slow
def test_without_a_queue_nothing_is_kept(station):
    here = station("tcp", peer_deadline=20)
    events = here.domain.event_queue()
    first, second = use(here), use(here)
    kill(here, *first)
    here.endpoint.bind(events)
    assert events.read() is None
    here.endpoint.bind(None)
    kill(here, *second)
    assert events.read() is None


@pytest.mark.slow
def test_losses_without_room_are_counted(station):
    here = station("tcp", peer_deadline=20)
    for size in (0, -1, 10**9):
        with pytest.raises(pyfab.InvalidArgumentError, match=f"size {size}: it takes 1 to"):
            here.domain.event_queue(size=size)
    events = here.domain.event_queue(size=2)
    assert events.size == 2
    here.endpoint.bind(events)
    victims = [use(here) for _ in range(4)]
    for victim in victims:
        kill(here, *victim)
    # What the program calls for itself has room all the same.
    here.domain.bind(events)
    region = here.domain.register(np.zeros(8, np.uint8), pyfab.Access.REMOTE, context="own")
    with pytest.raises(pyfab.FabricError, match="2 more are not in it") as raised:
        events.read(TIMEOUT)
    assert raised.value.name == "FI_EOVERRUN"
    assert [events.read().peer for _ in range(2)] == [handle for _, handle, _ in victims[:2]]
    assert events.read(TIMEOUT).fid is region
    assert events.read() is None
    region.close()
    kill(here, *use(here))  # there is room again
    assert events.read().type == EventType.PEER_LOST


@pytest.mark.slow
def test_endpoints_share_a_queue_and_a_closed_one_is_bound_to_nothing(station):
    here = station("tcp", peer_deadline=20)
    events = here.domain.event_queue()
    with (
        here.domain.endpoint() as other,
        pyfab.Domain("tcp") as elsewhere,
        elsewhere.event_queue() as foreign,
        pytest.raises(pyfab.InvalidArgumentError, match="another domain"),
    ):
        other.bind(foreign)
    with here.domain.endpoint(av=here.endpoint.av) as other:
        peer, handle, exposed = use(here)
        assert add_one(other, handle, exposed) is None
        for endpoint in (here.endpoint, other):
            endpoint.bind(events)
        peer.kill()
        assert [of_peers(events).peer for _ in range(2)] == [handle, handle]
        last = use(here)
        events.close()
        kill(here, *last)
        with pytest.raises(pyfab.ClosedError):
            other.bind(events)
    with pytest.raises(pyfab.ClosedError, match="endpoint"):
        other.bind(None)


@pytest.fixture
def often():
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.litmus
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("of", ["endpoint", "domain"])
def test_what_is_bound_while_a_queue_closes_is_bound_to_an_open_one_or_none(of):
    """One thread closes a queue while another binds it once more, or a second one in its place."""
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint, ThreadPoolExecutor(2) as pool:
        there = endpoint if of == "endpoint" else domain

        def bound():
            return endpoint._events if of == "endpoint" else domain._registration_events

        def bind(queue, barrier):
            barrier.wait()
            with contextlib.suppress(pyfab.ClosedError):
                there.bind(queue)

        def close(queue, barrier):
            barrier.wait()
            queue.close()

        for turn in range(rounds(300)):
            first = domain.event_queue()
            there.bind(first)
            second = domain.event_queue() if turn % 2 else None
            barrier = threading.Barrier(2)
            calls = [pool.submit(close, first, barrier), pool.submit(bind, second or first, barrier)]
            for call in calls:
                call.result(TIMEOUT)
            assert bound() is second, turn
            if second is not None:
                second.close()
                assert bound() is None


class Step(weakref.WeakSet):
    """What is bound to a queue; whoever looks at it or adds to it is overtaken by another thread, if that may run."""

    def __init__(self, overtake):
        super().__init__()
        self.overtake = overtake

    def _let_past(self):
        if (overtake := self.overtake) is not None:
            self.overtake = None
            thread = threading.Thread(target=overtake)
            thread.start()
            thread.join(0.2)  # it may have to wait for this thread

    def add(self, item):
        self._let_past()
        super().add(item)

    def __iter__(self):
        items = list(super().__iter__())
        self._let_past()
        return iter(items)


def test_a_queue_that_closes_while_it_is_bound_leaves_the_endpoint_unbound():
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        queue = domain.event_queue()
        queue._reporters = Step(queue.close)
        endpoint.bind(queue)
        queue.close()
        assert endpoint._events is None


def test_whoever_closes_a_queue_once_more_finds_nothing_bound_to_it():
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint, ThreadPoolExecutor(1) as pool:
        queue = domain.event_queue()
        endpoint.bind(queue)
        bound = []

        def close_once_more():
            queue.close()
            bound.append(endpoint._events)

        def overtaken():
            del queue._end
            pool.submit(close_once_more).result(TIMEOUT)
            queue._end()

        queue._end = overtaken
        queue.close()
        assert bound == [None]


def test_a_queue_that_closes_leaves_what_is_bound_to_another_one():
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        former, later = domain.event_queue(), domain.event_queue()
        former._reporters = Step(None)
        endpoint.bind(former)
        bound = threading.Event()
        former._reporters.overtake = lambda: (endpoint.bind(later), bound.set())
        former.close()
        assert bound.wait(TIMEOUT)
        assert endpoint._events is later


def test_contexts_of_an_endpoint_close_together():
    """None is open any more while the first one waits for its last message to be read."""
    with Peer("tcp", where="process") as peer, pyfab.Domain("tcp") as domain, ThreadPoolExecutor(1) as pool:
        together = False
        for _ in range(10):
            endpoint = domain.endpoint(contexts=4)
            handle = endpoint.av.insert(peer.address)
            for index in range(4):
                endpoint.context(index).send(np.zeros(8), handle, flags=Delivery.INJECT).result(TIMEOUT)
            contexts = [endpoint.context(index) for index in range(4)]
            peer.suspend()
            closing = pool.submit(endpoint.close)
            while not endpoint.closed:
                pass
            together |= all(context.closed for context in contexts) and not closing.done()
            peer.resume()
            closing.result(TIMEOUT)
            if together:
                break
        assert together


@pytest.mark.parametrize("of", ["completion_queue", "event_queue", "counter"])
def test_closing_ends_the_waits_of_other_threads(of):
    waits = {
        "completion_queue": lambda queue: queue.wait(),
        "event_queue": lambda queue: queue.read(None),
        "counter": lambda counter: counter.wait(1),
    }
    with pyfab.Domain("shm") as domain, ThreadPoolExecutor(1) as threads:
        thing = getattr(domain, of)()
        begun = threading.Event()

        def wait():
            begun.set()
            waits[of](thing)

        waiting = threads.submit(wait)
        begun.wait()
        thing.close()
        with pytest.raises(pyfab.ClosedError):
            waiting.result(20)


def test_a_reader_waits_on_where_another_took_the_event():
    with (
        pyfab.Domain("tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1") as domain,
        domain.event_queue() as events,
        domain.address_vector(asynchronous=True) as av,
        ThreadPoolExecutor(2) as threads,
    ):
        av.bind(events)
        reading = [threads.submit(events.read, None) for _ in range(2)]
        address = pyfab.parse_addr("fi_sockaddr_in://10.0.0.1:5000")
        av.insert([address])
        while not any(each.done() for each in reading):
            pass
        av.insert([address])
        assert all(each.result(20) is not None for each in reading)
