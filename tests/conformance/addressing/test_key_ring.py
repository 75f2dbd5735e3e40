"""The key of a domain is replaced while its peers use it."""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import ExitStack, suppress

import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer
from support import TIMEOUT, Combination, failure

OLD, NEW = b"the key of the domain", b"the key that comes after it"
REFUSED = (pyfab.KeyRejectedError, pyfab.UnreachableError, pyfab.AccessDeniedError, pyfab.PeerLostError)


def apply(target, step, *arguments, **options):
    getattr(target.domain.auth_keys, step)(*arguments, **options)


def start_receive(target):
    target.kept["landing"] = np.zeros(1, np.int64)
    target.kept["receive"] = target.endpoint.recv(target.kept["landing"])


def has_received(target):
    return target.kept["receive"].done()


def received(target):
    target.kept["receive"].result(TIMEOUT)
    return int(target.kept["landing"][0])


class Caller:
    """An endpoint with a domain of its own that reaches a peer by one key."""

    def __init__(self, combination: Combination, peer, key: bytes, stack: ExitStack) -> None:
        settings = {**combination.settings, "auth_key": key}
        self.domain = stack.enter_context(pyfab.Domain(combination.spec, **settings))
        self.endpoint = stack.enter_context(self.domain.endpoint())
        self.handle = self.endpoint.av.insert(peer.address)
        self.turn = 0

    def put(self, exposed) -> None:
        self.turn += 1
        self.endpoint.write(np.full(8, self.turn, np.float64), self.handle, exposed.remote).result(TIMEOUT)


@pytest.fixture
def world(combination: Combination):
    with ExitStack() as stack:
        settings = {**combination.settings, "auth_key": OLD}
        peer = stack.enter_context(Peer(combination.spec, where=combination.where, **settings))
        exposed = peer.expose(np.zeros(8), alloc=combination.alloc)
        yield peer, exposed, lambda key: Caller(combination, peer, key, stack)


def put_back(target, address, remote, value):
    handle = target.endpoint.av.insert(address)
    target.endpoint.write(np.full(8, value), handle, remote).result(TIMEOUT)


def test_nothing_is_refused_while_the_key_is_replaced(world):
    """Who came before goes on, and new ones come in both directions, by each key that is served at that step."""
    peer, exposed, caller = world
    standing = caller(OLD)
    standing.put(exposed)
    for step, key, served in (("add", NEW, [OLD, NEW]), ("use", NEW, [OLD, NEW]), ("remove", OLD, [NEW])):
        peer.run(start_receive)
        pending = [
            standing.endpoint.write(np.full(8, 7.0), standing.handle, exposed.remote) for _ in range(8)
        ]
        peer.run(apply, step, key)
        for operation in pending:
            operation.result(TIMEOUT)
        standing.put(exposed)
        getattr(standing.domain.auth_keys, step)(key)
        standing.put(exposed)
        assert (exposed.content() == standing.turn).all()
        standing.endpoint.send(np.array([standing.turn]), standing.handle).result(TIMEOUT)
        assert peer.run(received) == standing.turn
        for other in served:
            caller(other).put(exposed)
        with standing.domain.endpoint() as called:  # which the peer does not know yet
            memory = np.zeros(8)
            with standing.domain.register(memory, pyfab.Access.REMOTE) as region:
                peer.run(put_back, called.address, region.remote, 3.0)
            assert (memory == 3).all()
    late = caller(OLD)
    assert isinstance(failure(lambda: late.put(exposed)), REFUSED)


def test_who_is_told_that_streams_end_may_open_an_endpoint(world):
    _, exposed, caller = world
    one = caller(OLD)
    one.put(exposed)
    opened = Future()
    waiting = one.endpoint.send(np.zeros(1 << 20), one.handle)  # nobody receives it
    waiting.add_done_callback(lambda _: opened.set_result(one.domain.endpoint()))
    ring = one.domain.auth_keys
    ring.add(NEW)
    ring.use(NEW)
    ring.remove(OLD, end_streams=True)
    assert isinstance(waiting.exception(TIMEOUT), pyfab.PeerLostError)
    opened.result(TIMEOUT).close()


def test_who_has_proven_a_removed_key_alone_can_be_cut_off(world):
    peer, exposed, caller = world
    friend, intruder = caller(OLD), caller(OLD)
    for one in (friend, intruder):
        one.put(exposed)
        peer.run(start_receive)
        one.endpoint.send(np.array([1]), one.handle).result(TIMEOUT)
        assert peer.run(received) == 1
    for step, key in (("add", NEW), ("use", NEW)):
        peer.run(apply, step, key)
        getattr(friend.domain.auth_keys, step)(key)
    peer.run(start_receive)
    peer.run(apply, "remove", OLD, end_streams=True)

    def intrude():
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            intruder.endpoint.send(np.array([2]), intruder.handle).result(TIMEOUT)

    assert isinstance(failure(intrude), REFUSED)
    # What a friend sends before it knows that its connection has ended is lost, though it may count as sent.
    deadline = time.monotonic() + TIMEOUT
    while not peer.run(has_received):
        assert time.monotonic() < deadline
        with suppress(pyfab.PeerLostError):
            friend.endpoint.send(np.array([3]), friend.handle).result(TIMEOUT)
    assert peer.run(received) == 3
    friend.put(exposed)
    assert (exposed.content() == friend.turn).all()


def test_a_later_endpoint_takes_the_keys_of_that_time(combination: Combination):
    settings = {**combination.settings, "auth_key": OLD}
    with (
        pyfab.Domain(combination.spec, **settings) as domain,
        pyfab.Domain(combination.spec, **{**settings, "auth_key": NEW}) as later,
    ):
        domain.auth_keys.add(NEW)
        domain.auth_keys.use(NEW)
        with domain.endpoint() as ours, later.endpoint() as theirs:
            memory = np.zeros(8)
            with domain.register(memory, pyfab.Access.REMOTE) as region:
                peer = theirs.av.insert(ours.address)
                theirs.write(np.ones(8), peer, region.remote).result(TIMEOUT)
            assert memory.all()


def test_what_cannot_be_replaced_is_told():
    with pyfab.Domain("shm") as without, pytest.raises(pyfab.InvalidArgumentError, match="without an auth"):
        without.auth_keys.add(NEW)
    with pyfab.Domain("shm", auth_key=OLD) as domain:
        ring = domain.auth_keys
        for wrong, match in (
            (lambda: ring.remove(OLD), "in use"),
            (lambda: ring.use(NEW), "no such"),
            (lambda: ring.remove(NEW), "no such"),
            (lambda: ring.add(NEW, former=b"unknown"), "no such"),
            (lambda: ring.add(None), "at least one byte"),
            (lambda: ring.use(8), "int"),
        ):
            with pytest.raises(pyfab.InvalidArgumentError, match=match):
                wrong()
        ring.add(NEW)
        ring.add(NEW)  # once more is no harm
        assert len(ring) == 2
        with domain.endpoint():
            for number in range(14):
                ring.add(b"%d" % number)
            with pytest.raises(pyfab.InvalidArgumentError, match="at most 16"):
                ring.add(b"one too many")
        assert len(ring) == 16
        ring.add(b"while no endpoint is open")
        with pytest.raises(pyfab.InvalidArgumentError, match="at most 16"):
            domain.endpoint()
