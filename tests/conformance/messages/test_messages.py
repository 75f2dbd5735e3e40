"""The validation suite's tests of messages, over every combination; and those that need endpoints of their own."""

from __future__ import annotations

import numpy as np
import psutil
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab import ADDR_NOTAVAIL, Caps
from pyfab.testing import Peer
from pyfab.testing.suite.messages import (
    discard_there,
    post,
    receive_there,
    send_later_there,
    send_there,
    told,
    waits_here,
    waits_there,
)
from pyfab.testing.suite.test_matching import *  # noqa: F403
from pyfab.testing.suite.test_messages import *  # noqa: F403
from pyfab.testing.suite.test_receives import *  # noqa: F403
from support import TIMEOUT, Pair, collect, random_bytes


@pytest.mark.req("LNX-39")
def test_unexpected_memory_is_bounded(pair):
    count, size = (1000 if pair.combination.where == "process" else 50), 8 << 20
    content = random_bytes(size)
    operations = [pair.endpoint.tsend(content, pair.handle, number) for number in range(count)]
    pair.peer.run(waits_there, count)
    assert pair.peer.run(resident_there) < 2 << 30
    for number in range(count):
        if number % 100:
            assert pair.peer.run(discard_there, number) == size
        else:
            got, _ = pair.peer.run(receive_there, size, number)
            assert (got == content).all()
    for operation in operations:
        operation.result(TIMEOUT)


def resident_there(_):
    return psutil.Process().memory_info().rss


@pytest.mark.req("LNX-35")
def test_without_directed_receives_the_source_does_not_matter(combination):
    caps = ~Caps.DIRECTED_RECV
    with (
        Peer(combination.spec, where=combination.where, **combination.settings) as peer,
        pyfab.Domain(combination.spec, **combination.settings) as domain,
        domain.endpoint(caps=domain.info.caps & caps) as endpoint,
    ):
        nobody = endpoint.av.insert(endpoint.address)
        there = peer.run(insert_there, endpoint.address)
        posted = post(endpoint, 8, 1, peer=nobody)
        peer.run(send_there, b"12345678", there, 1)
        assert told(posted)[1][0] == 8


def insert_there(target, address):
    return target.endpoint.av.insert(address)


@pytest.mark.req("AV-73", "AV-74")
def test_completions_tell_user_ids(combination):
    """Of messages and of remote data; operations go on taking the handle."""
    with (
        Peer(combination.spec, where=combination.where, **combination.settings) as peer,
        pyfab.Domain(combination.spec, **combination.settings) as domain,
        domain.address_vector(user_id=True) as av,
        domain.endpoint(av) as endpoint,
    ):
        handle = av.insert(peer.address)
        there = peer.run(insert_there, endpoint.address)
        for given, reported in ((None, ADDR_NOTAVAIL), (0xABC, 0xABC), (2**63, 2**63)):
            if given is not None:
                av.set_user_id(handle, given)
            posted = post(endpoint, 8, 1, peer=handle)
            peer.run(send_there, b"12345678", there, 1)
            assert told(posted)[1][3] == reported
            memory = np.zeros(8, "u1")
            with domain.register(memory, pyfab.Access.REMOTE_WRITE) as region:
                endpoint.cq.read(max=100)
                peer.run(put_there, there, region.remote)
                (entry,) = collect(endpoint.cq, 1)
                assert (entry.source, entry.data) == (reported, 5)


def put_there(target, peer, remote):
    target.endpoint.write(np.ones(8, "u1"), peer, remote, data=5).result(TIMEOUT)


@pytest.mark.req("AV-45", "AV-46", "AV-47")
def test_the_receive_context_is_chosen_by_the_handle(combination):
    contexts, bits = 5, 3
    with (
        Peer(combination.spec, where=combination.where, contexts=contexts, **combination.settings) as peer,
        pyfab.Domain(combination.spec, **combination.settings) as domain,
        domain.address_vector(rx_ctx_bits=bits) as av,
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match="rx_ctx_bits"):
            domain.endpoint(domain.address_vector(rx_ctx_bits=2), contexts=contexts)
        with domain.endpoint(av) as endpoint:
            handle = av.insert(peer.address)
            peer.run(insert_there, endpoint.address)
            for index in range(contexts):
                peer.run(post_in_context, index)
            for index in reversed(range(contexts)):
                to = pyfab.rx_addr(handle, index, bits)
                assert av.lookup(to) == peer.address
                endpoint.tsend(np.array([index]), to, 1).result(TIMEOUT)
                assert peer.run(told_in_context, index) == (index, [True] * (contexts - index))
            with pytest.raises(pyfab.UnreachableError):
                endpoint.tsend(np.array([1]), pyfab.rx_addr(handle, contexts, bits), 1)


def post_in_context(target, index):
    memory = np.zeros(1, "i8")
    target.kept[index] = target.endpoint.context(index).trecv(memory, 1), memory


def told_in_context(target, index):
    """What the receive of this context got, and which of those from it on are done."""
    operation, memory = target.kept[index]
    operation.result(TIMEOUT)
    return int(memory[0]), [target.kept[i][0].done() for i in range(index, 5)]


@pytest.mark.req("LNX-33")
@litmus
def test_any_source_over_two_links_at_once():
    """A neighbour over shared memory and one over the network race for receives from anybody."""
    count = rounds(2000)
    with (
        Peer("shm+tcp") as near,
        Peer("tcp") as far,
        pyfab.Domain("shm+tcp") as domain,
        domain.endpoint() as endpoint,
    ):
        handles = {endpoint.av.insert(peer.address): peer for peer in (near, far)}
        for peer in handles.values():
            peer.start(send_in_windows_there, peer.run(insert_there, endpoint.address), count)
        seen = dict.fromkeys(handles, 0)
        posted = []
        for _ in range(2 * count):
            while len(posted) < 64:
                posted.append(post(endpoint, 4, 1))
            content, what = told(posted.pop(0))
            number, source = int(content.view("u4")[0]), what[3]
            assert number == seen[source] + 1
            seen[source] = number
        assert set(seen.values()) == {count}
        for operation, _ in posted:
            assert operation.cancel()
        for peer in handles.values():
            peer.finish()


def send_in_windows_there(target, peer, count):
    for first in range(0, count, 500):
        for number in range(first, min(first + 500, count)):
            target.endpoint.tsend(np.array([number + 1], "u4"), peer, 1)
        target.endpoint.flush()


@pytest.mark.req("LNX-46")
def test_closing_with_receives_posted_and_messages_waiting(combination):
    with (
        Peer(combination.spec, where=combination.where, **combination.settings) as peer,
        pyfab.Domain(combination.spec, **combination.settings) as domain,
    ):
        cq = domain.completion_queue(16)
        endpoint = domain.endpoint(cq=cq)
        there = peer.run(insert_there, endpoint.address)
        operation, _ = post(endpoint, 8, 1)
        peer.run(send_later_there, bytes(100_000), there, 2)
        peer.run(send_later_there, bytes(10), there, 2)
        waits_here(endpoint, 2)
        endpoint.close()
        assert operation.cancelled()
        assert cq.read() == []
        failed = peer.run(failures_there)
        assert failed[0] in ("PeerLostError", "CanceledError")


def failures_there(target):
    return [type(operation.exception(TIMEOUT)).__name__ for operation in target.kept.pop("sends")]


@pytest.mark.req("AV-38")
def test_a_peer_is_removed_while_messages_are_on_their_way(combination):
    with Pair(combination) as pair:
        content = random_bytes(200_000)
        operations = [pair.endpoint.tsend(content, pair.handle, 1) for _ in range(20)]
        pair.endpoint.av.remove(pair.handle)
        with pytest.raises(pyfab.InvalidArgumentError):
            pair.endpoint.tsend(content, pair.handle, 1)
        for _ in operations:
            got, _ = pair.peer.run(receive_there, len(content), 1)
            assert (got == content).all()
        for operation in operations:
            operation.result(TIMEOUT)


@pytest.mark.req("LNX-51")
def test_a_full_queue_refuses_before_anything_is_sent(combination):
    with (
        Peer(combination.spec, where=combination.where, **combination.settings) as peer,
        pyfab.Domain(combination.spec, **combination.settings) as domain,
    ):
        cq = domain.completion_queue(4)
        with domain.endpoint(cq=cq) as endpoint:
            handle = endpoint.av.insert(peer.address)
            for number in range(4):
                endpoint.tsend(np.array([number]), handle, 1)
            with pytest.raises(pyfab.FabricError, match="FI_EAGAIN"):
                endpoint.tsend(np.array([4]), handle, 1)
            with pytest.raises(pyfab.FabricError, match="FI_EAGAIN"):
                endpoint.trecv(bytearray(8), 1)
            assert len(collect(cq, 4)) == 4
            endpoint.tsend(np.array([5]), handle, 1)
            got = [int(peer.run(receive_there, 8, 1)[0].view("i8")[0]) for _ in range(5)]
            assert got == [0, 1, 2, 3, 5]
