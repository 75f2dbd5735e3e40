"""Messages over every way: small and large, expected and unexpected, cut, awaited, from many threads."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pyfab
import pytest
from pyfab import ADDR_NOTAVAIL, Delivery
from pyfab.testing.suite.messages import (
    error_there,
    finish_sends_there,
    nothing_left,  # noqa: F401 - runs for each test
    post,
    post_there,
    receive_there,
    send,
    send_later_there,
    told,
    told_there,
    waits_there,
)
from pyfab.testing.suite.support import TIMEOUT, collect, random_bytes

SIZES = [0, 1, 8, 100, 101, 4096, 8192, 8193, 16_384, 16_385, 100_000, 3 << 20]


@pytest.mark.req("LNX-31", "LNX-38")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tag", [None, 0, 2**64 - 1])
def test_expected_and_unexpected(pair, size, tag):
    content = random_bytes(size)
    pair.peer.run(post_there, "expected", size + 5, tag)
    operation = send(pair.endpoint, content, pair.handle, tag, data=2**64 - 1)
    got, what = pair.peer.run(told_there, "expected")
    assert (got == content).all()
    assert what == (size, tag or 0, 2**64 - 1, pair.handle_there)
    assert operation.result(TIMEOUT).nbytes == size

    operation = send(pair.endpoint, content, pair.handle, tag)
    pair.peer.run(waits_there, 1)
    got, what = pair.peer.run(receive_there, size, tag)
    assert (got == content).all()
    assert what == (size, tag or 0, 0, pair.handle_there)
    assert operation.result(TIMEOUT).nbytes == size


@pytest.mark.req("LNX-31")
@pytest.mark.parametrize("size", [8, 50_000])
def test_both_directions(pair, size):
    content = random_bytes(size)
    pair.peer.run(send_later_there, content, pair.handle_there, 3)
    got, what = told(post(pair.endpoint, size, 3))
    assert (got == content).all()
    assert what == (size, 3, 0, pair.handle)
    pair.peer.run(finish_sends_there)


@pytest.mark.parametrize("level", [Delivery.INJECT, Delivery.TRANSMIT, Delivery.DELIVERY])
@pytest.mark.parametrize("size", [8, 12_000, 60_000])
def test_completion_levels(pair, level, size):
    content = random_bytes(size)
    kept = content.copy()
    operation = pair.endpoint.send(content, pair.handle, flags=level)
    if level == Delivery.INJECT:
        operation.result(TIMEOUT)
        content[:] = 0
    got, _ = pair.peer.run(receive_there, size)
    assert (got == kept).all()
    operation.result(TIMEOUT)


def test_commit_is_refused(pair):
    with pytest.raises(pyfab.BadFlagsError, match=r"COMMIT.*put"):
        pair.endpoint.send(b"x", pair.handle, flags=Delivery.COMMIT)


@pytest.mark.parametrize("tag", [None, 9])
def test_inject(pair, tag):
    memory = bytearray(b"first!")
    pair.endpoint.inject(memory, pair.handle, tag=tag, data=4)
    memory[:] = b"second"
    got, what = pair.peer.run(receive_there, 6, tag)
    assert bytes(got) == b"first!"
    assert what == (6, tag or 0, 4, pair.handle_there)
    with pytest.raises(pyfab.FabricError, match=r"inject_size"):
        pair.endpoint.inject(np.zeros(pair.domain.info.inject_size + 1, "u1"), pair.handle)


@pytest.mark.req("LNX-28")
def test_vectors(pair):
    parts = [random_bytes(n, n) for n in (3, 0, 5000, 1, 20_000)]
    whole = np.concatenate(parts)
    operation = pair.endpoint.tsend(parts, pair.handle, 5)
    got, _ = pair.peer.run(receive_there, len(whole), 5)
    assert (got == whole).all()
    operation.result(TIMEOUT)
    pair.peer.run(send_later_there, whole, pair.handle_there)
    landing = [np.zeros(n, "u1") for n in (10_000, 0, 7, 20_000)]
    done = pair.endpoint.recv(landing).result(TIMEOUT)
    assert done.nbytes == len(whole)
    assert (np.concatenate(landing)[: len(whole)] == whole).all()
    pair.peer.run(finish_sends_there)


@pytest.mark.req("LNX-37")
@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("size", [10, 9000, 100_000])
def test_a_message_that_is_too_long(pair, size, expected):
    content = random_bytes(size)
    if expected:
        pair.peer.run(post_there, "short", size - 3, 7)
    operation = pair.endpoint.tsend(content, pair.handle, 7)
    if not expected:
        pair.peer.run(waits_there, 1)
        pair.peer.run(post_there, "short", size - 3, 7)
    name, memory = pair.peer.run(error_there, "short")
    assert name == "TruncatedError"
    assert (memory[:-8] == content[:-3]).all()
    assert (memory[-8:] == 0xA5).all()
    operation.result(TIMEOUT)
    (entry,) = pair.peer.run(entries_there, 1)
    assert entry == (size - 3, 3, "FI_ETRUNC")


def entries_there(target, count):
    return [
        (e.nbytes, e.overflow, e.error.name if e.error else None) for e in collect(target.endpoint.cq, count)
    ]


def test_what_was_sent_is_owed_to_the_peer_when_it_closes(pair):
    """Messages that are complete arrive although their sender is gone."""
    content = random_bytes(8000)
    with (
        pair.open_domain() as other,
        other.endpoint() as stranger,
    ):
        to_me = stranger.av.insert(pair.endpoint.address)
        for number in range(50):
            stranger.tsend(content, to_me, number).result(TIMEOUT)
    for number in range(50):
        got, _ = told(post(pair.endpoint, 8000, number))
        assert (got == content).all()


def test_asyncio(pair):
    async def conversation():
        memory = np.zeros(4, "i4")
        received = pair.endpoint.trecv(memory, 1)
        await pair.endpoint.tsend(np.arange(4, dtype="i4"), pair.handle, 1)
        pair.peer.start(echo_there, pair.handle_there)
        done = await received
        assert (done.nbytes, memory.tolist()) == (16, [0, 1, 2, 3])

        pair.endpoint.cq.read(max=100)
        for number in range(5):
            pair.endpoint.trecv(bytearray(16), 1, context=number)
        seen = []
        sends = [pair.endpoint.tsend(bytes(16), pair.handle, 1, context=100 + n) for n in range(5)]
        pair.peer.finish()
        pair.peer.start(echo_many_there, pair.handle_there, len(sends))
        async for completion in pair.endpoint.cq:
            assert completion.error is None
            seen.append(completion.context)
            if len(seen) == 10:
                break
        assert sorted(seen) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
        pair.peer.finish()

    asyncio.run(asyncio.wait_for(conversation(), TIMEOUT))


def echo_there(target, peer):
    content, (_, tag, _, _) = told(post(target.endpoint, 16, 1))
    target.endpoint.tsend(content, peer, tag).result(TIMEOUT)


def echo_many_there(target, peer, count):
    for _ in range(count):
        echo_there(target, peer)


def test_threads_send_and_receive_on_one_context(pair):
    """Every message arrives once, whoever sends and receives."""
    threads, count = 4, 200
    pair.peer.start(receive_counts_there, threads * count)

    def work(number):
        for i in range(count):
            pair.endpoint.tsend(np.array([number * count + i], "u4"), pair.handle, 1)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(pair.peer.finish()) == list(range(threads * count))


def receive_counts_there(target, count):
    return [int(told(post(target.endpoint, 4, 1))[0].view("u4")[0]) for _ in range(count)]


@pytest.mark.parametrize(
    "wrong, error",
    [
        (lambda e, h: e.tsend(b"x", h, -1), pyfab.InvalidArgumentError),
        (lambda e, h: e.tsend(b"x", h, 2**64), pyfab.InvalidArgumentError),
        (lambda e, h: e.tsend(b"x", h, "tag"), pyfab.InvalidArgumentError),
        (lambda e, h: e.tsend(b"x", h, None), TypeError),
        (lambda e, h: e.tsend(b"x", h), TypeError),
        (lambda e, _: e.trecv(bytearray(1), 0, ignore=-1), pyfab.InvalidArgumentError),
        (lambda e, _: e.recv(b"read-only"), pyfab.AccessDeniedError),
        (lambda e, _: e.recv(np.zeros((4, 4))[:, 1]), pyfab.InvalidArgumentError),
        (lambda e, _: e.recv([bytearray(4), bytearray(4)], min_multi_recv=2), pyfab.InvalidArgumentError),
        (lambda e, h: e.send(object(), h), pyfab.InvalidArgumentError),
        (lambda e, _: e.send(b"x", 12345), pyfab.InvalidArgumentError),
        (lambda e, _: e.send(b"x", ADDR_NOTAVAIL), pyfab.InvalidArgumentError),
        (lambda e, h: e.send(b"x", h, data=-1), pyfab.InvalidArgumentError),
        (lambda e, h: e.send(b"x", h, flags=64), pyfab.BadFlagsError),
        (lambda e, _: e.recv(bytearray(1), 999), pyfab.InvalidArgumentError),
    ],
)
def test_bad_calls_move_nothing(pair, wrong, error):
    with pytest.raises(error):
        wrong(pair.endpoint, pair.handle)
    assert pair.endpoint.message_stats()["posted"] == 0
