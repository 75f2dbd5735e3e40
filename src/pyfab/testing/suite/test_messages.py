"""Messages over every way: matching, small and large, expected and unexpected, cut, canceled, claimed, in groups."""

from __future__ import annotations

import asyncio
import itertools
import threading

import numpy as np
import pyfab
import pytest
from pyfab import ADDR_NOTAVAIL, ADDR_UNSPEC, CompletionFlag, Delivery
from pyfab.testing.suite.support import TIMEOUT, collect, litmus, random_bytes, rounds

SIZES = [0, 1, 8, 100, 101, 4096, 8192, 8193, 16_384, 16_385, 100_000, 3 << 20]
ANY = {"tag": 0, "ignore": 2**64 - 1}


@pytest.fixture(autouse=True)
def nothing_left(request):
    """After every test no receive is posted and no message waits, on either side."""
    pair = request.getfixturevalue("pair") if "pair" in request.fixturenames else None
    yield
    if pair is None:
        return
    for stats in (pair.endpoint.message_stats(), pair.peer.run(stats_there)):
        assert (stats["posted"], stats["unexpected"]) == (0, 0)
    pair.peer.run(drain_there)


def stats_there(target):
    return target.endpoint.message_stats()


def drain_there(target):
    while target.endpoint.cq.read(max=1024):
        pass


def post(endpoint, size, tag=None, peer=ADDR_UNSPEC, **rule):
    """A posted receive: its operation and its memory, which is longer than the receive by 8 guarding bytes."""
    memory = np.full(size + 8, 0xA5, np.uint8)
    if tag is None:
        return endpoint.recv(memory[:size], peer, **rule), memory
    return endpoint.trecv(memory[:size], tag, peer=peer, **rule), memory


def told(posted):
    """What a receive ended with: the bytes, and nbytes, tag, data, source."""
    operation, memory = posted
    done = operation.result(TIMEOUT)
    assert (memory[-8:] == 0xA5).all()
    return memory[: done.nbytes].copy(), (done.nbytes, done.tag, done.data, done.source)


def post_there(target, name, size, tag=None, **rule):
    target.kept[name] = post(target.endpoint, size, tag, **rule)


def told_there(target, name):
    return told(target.kept.pop(name))


def receive_there(target, size, tag=None, **rule):
    return told(post(target.endpoint, size, tag, **rule))


def send(endpoint, content, peer, tag=None, **options):
    if tag is None:
        return endpoint.send(content, peer, **options)
    return endpoint.tsend(content, peer, tag, **options)


def send_there(target, content, peer, tag=None, **options):
    return send(target.endpoint, content, peer, tag, **options).result(TIMEOUT).nbytes


def send_later_there(target, content, peer, tag=None):
    """For what may not be complete before somebody receives it."""
    target.kept["sends"] = [*target.kept.get("sends", []), send(target.endpoint, content, peer, tag)]


def finish_sends_there(target):
    for operation in target.kept.pop("sends"):
        operation.result(TIMEOUT)


def waits_there(target, count):
    """Until that many messages wait."""
    while target.endpoint.message_stats()["unexpected"] < count:
        target.endpoint.progress()


def error_there(target, name):
    operation, memory = target.kept.pop(name)
    error = operation.exception(TIMEOUT)
    return type(error).__name__, memory


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


ALL = 2**64 - 1
MATCHING = [  # (tag, ignore) of the receive, tag of the message, whether they fit; None: untagged
    ((7, 0), 7, True),
    ((7, 0), 8, False),
    ((0, 0), 0, True),
    ((ALL, 0), ALL, True),
    ((ALL, 0), ALL - 1, False),
    ((0, ALL), 12345, True),
    ((ALL, ALL), 0, True),
    ((0x10, 0x0F), 0x1A, True),
    ((0x1F, 0x0F), 0x10, True),
    ((0x10, 0x0F), 0x20, False),
    ((0x10, 0xF0), 0x21, False),
    ((1 << 63, 1), (1 << 63) | 1, True),
    ((1 << 63, 1), 1, False),
    (None, None, True),
    (None, 0, False),
    ((0, 0), None, False),
    ((0, ALL), None, False),
]


@pytest.mark.req("LNX-32")
@pytest.mark.parametrize("tagged", [True, False])
def test_a_message_goes_to_the_oldest_receive_that_takes_it(pair, tagged):
    """However the receives differ in what else they would take, and whatever stands before them."""
    tag, some_bits = (0x12, 0x0F) if tagged else (None, 0)
    kinds = [
        {"peer": peer, "ignore": ignore} for peer in (ADDR_UNSPEC, pair.handle) for ignore in {0, some_bits}
    ]
    other = post(pair.endpoint, 1, 0x7F)
    for order in itertools.permutations(kinds):
        posted = [
            post(pair.endpoint, 1, tag, kind["peer"], **({"ignore": kind["ignore"]} if tagged else {}))
            for kind in order
        ]
        for number in range(len(order)):
            pair.peer.run(send_there, bytes([number]), pair.handle_there, tag)
        assert [told(one)[0].tolist() for one in posted] == [[number] for number in range(len(order))], order
    pair.peer.run(send_there, b"x", pair.handle_there, 0x7F)
    told(other)


@pytest.mark.req("LNX-32")
@pytest.mark.parametrize("receive_first", [True, False])
@pytest.mark.parametrize("rule, tag, fits", MATCHING)
def test_the_matching_rule(pair, rule, tag, fits, receive_first):
    def receive():
        if rule is None:
            return pair.endpoint.recv(bytearray(1))
        return pair.endpoint.trecv(bytearray(1), *rule)

    if receive_first:
        operation = receive()
    pair.peer.run(send_there, b"x", pair.handle_there, tag)
    if not fits or not receive_first:
        waits_here(pair.endpoint, 1)
    if not receive_first:
        operation = receive()
    if fits:
        assert operation.result(TIMEOUT).tag == (tag or 0)
    else:
        assert operation.cancel()
        pair.endpoint.discard(tag)


@pytest.mark.req("LNX-30")
def test_messages_match_in_the_order_of_sending(pair):
    count = 3000
    sizes = np.random.default_rng(5).choice([4, 60, 200, 9000, 30_000], count, p=[0.4, 0.2, 0.2, 0.1, 0.1])
    contents = []
    for number, size in enumerate(sizes):
        content = np.zeros(size, "u1")
        content[:4].view("u4")[0] = number
        contents.append(content)
    pair.peer.start(receive_numbers, count)
    operations = [pair.endpoint.tsend(content, pair.handle, 1) for content in contents]
    assert pair.peer.finish() == [(number, size) for number, size in enumerate(sizes)]
    for operation in operations:
        operation.result(TIMEOUT)


def receive_numbers(target, count):
    got = []
    for first in range(0, count, 100):
        posted = [post(target.endpoint, 30_000, 1) for _ in range(first, min(first + 100, count))]
        for one in posted:
            content, (nbytes, *_) = told(one)
            got.append((int(content[:4].view("u4")[0]), nbytes))
    return got


@pytest.mark.parametrize("size", [8, 4096, 100_000, 3 << 20])
def test_a_message_comes_after_the_puts_before_it(pair, size):
    rounds_here = 200 if size < 1 << 20 else 10
    exposed = pair.expose(np.zeros(size, np.uint8))
    pair.peer.start(first_and_last_there, exposed.name, rounds_here)
    for number in range(rounds_here):
        pair.endpoint.write(np.full(size, number % 250 + 1, np.uint8), pair.handle, exposed.remote)
        pair.endpoint.tsend(np.array([number % 250 + 1], np.uint8), pair.handle, 1)
        pair.endpoint.recv(bytearray(1), pair.handle).result(TIMEOUT)
    assert pair.peer.finish() == []


def first_and_last_there(target, name, count):
    """Which messages came before the bytes that were put before them."""
    array = target.kept[name].array
    wrong = []
    memory = np.zeros(1, np.uint8)
    for _ in range(count):
        source = target.endpoint.trecv(memory, 1).result(TIMEOUT).source
        if not (array[0] == array[-1] == memory[0]):
            wrong.append((int(array[0]), int(array[-1]), int(memory[0])))
        target.endpoint.send(b"!", source).result(TIMEOUT)
    return wrong


@pytest.mark.req("LNX-34", "AV-35")
def test_a_receive_from_one_peer(pair):
    with (
        pair.open_domain() as other,
        other.endpoint() as stranger,
    ):
        handle = pair.endpoint.av.insert(stranger.address)
        mine = post(pair.endpoint, 8, 1, peer=pair.handle)
        from_other = post(pair.endpoint, 8, 1, peer=handle)
        to_me = stranger.av.insert(pair.endpoint.address)
        stranger.tsend(b"stranger", to_me, 1).result(TIMEOUT)
        assert bytes(told(from_other)[0]) == b"stranger"
        assert not mine[0].done()
        pair.peer.run(send_there, b"thepeer!", pair.handle_there, 1)
        assert bytes(told(mine)[0]) == b"thepeer!"
        pair.endpoint.av.remove(handle)
        with pytest.raises(pyfab.InvalidArgumentError):
            pair.endpoint.recv(bytearray(8), handle)
        with pytest.raises(pyfab.InvalidArgumentError):
            pair.endpoint.send(bytearray(8), handle)


@pytest.mark.req("LNX-36", "AV-37")
def test_strangers_become_peers_and_the_other_way_round(pair):
    with (
        pair.open_domain() as other,
        other.endpoint() as stranger,
    ):
        to_me = stranger.av.insert(pair.endpoint.address)
        for text in (b"early", b"later"):
            stranger.tsend(text, to_me, 1).result(TIMEOUT)
        waits_here(pair.endpoint, 2)
        assert pair.endpoint.peek(1).source == ADDR_NOTAVAIL
        handle = pair.endpoint.av.insert(stranger.address)
        content, what = told(post(pair.endpoint, 8, 1, peer=handle))
        assert (bytes(content), what[3]) == (b"early", handle)
        pair.endpoint.av.remove(handle)
        with pair.open_domain() as third, third.endpoint() as newcomer:
            assert pair.endpoint.av.insert(newcomer.address) == handle
            content, what = told(post(pair.endpoint, 8, 1))
            assert (bytes(content), what[3]) == (b"later", ADDR_NOTAVAIL)
            pair.endpoint.av.remove(handle)


def waits_here(endpoint, count):
    while endpoint.message_stats()["unexpected"] < count:
        endpoint.progress()


def discard_there(target, tag):
    return target.endpoint.discard(tag).nbytes


@pytest.mark.req("LNX-40")
@pytest.mark.parametrize("size", [8, 100_000])
def test_peek_claim_and_discard(pair, size):
    with pytest.raises(pyfab.FabricError, match="FI_ENOMSG") as caught:
        pair.endpoint.peek(1)
    assert caught.value.name == "FI_ENOMSG"
    contents = [random_bytes(size, seed) for seed in range(4)]
    for content in contents:
        pair.peer.run(send_later_there, content, pair.handle_there, 1)
    waits_here(pair.endpoint, 4)
    seen = pair.endpoint.peek(**ANY)
    assert (seen.nbytes, seen.tag, seen.source) == (size, 1, pair.handle)
    claimed = pair.endpoint.claim(1)
    assert claimed.completion.nbytes == size
    assert pair.endpoint.discard(1).nbytes == size
    forgotten = pair.endpoint.claim(1)
    got, _ = told(post(pair.endpoint, size, 1))
    assert (got == contents[3]).all()
    with pytest.raises(pyfab.FabricError, match="FI_ENOMSG"):
        pair.endpoint.peek(1)
    memory = np.zeros(size, "u1")
    assert claimed.recv(memory, context="mine").result(TIMEOUT).context == "mine"
    assert (memory == contents[0]).all()
    for again in (lambda: claimed.recv(memory), claimed.discard):
        with pytest.raises(pyfab.FabricError, match="before"):
            again()
    del forgotten
    pair.peer.run(finish_sends_there)


@pytest.mark.req("LNX-42", "LNX-44", "LNX-45")
def test_cancel(pair):
    operation, memory = post(pair.endpoint, 8, 1)
    assert operation.cancel()
    assert operation.cancelled() and operation.done()
    with pytest.raises(pyfab.CanceledError):
        operation.result(TIMEOUT)
    assert not operation.cancel()
    (entry,) = collect(pair.endpoint.cq, 1)
    assert entry.error.name == "FI_ECANCELED"
    assert CompletionFlag.RECV | CompletionFlag.TAGGED in entry.flags

    both = [pair.endpoint.trecv(bytearray(8), 1, context=77) for _ in range(2)]
    named = pair.endpoint.trecv(bytearray(8), 1, context="name")
    pair.endpoint.cancel(77)
    assert [operation.cancelled() for operation in both] == [True, False]
    pair.endpoint.cancel("name")
    assert named.cancelled()
    for unknown in (78, "other", object()):
        with pytest.raises(pyfab.FabricError, match="FI_ENOENT"):
            pair.endpoint.cancel(unknown)

    pair.peer.run(send_there, b"12345678", pair.handle_there, 1)
    assert both[1].result(TIMEOUT).nbytes == 8
    assert (memory == 0xA5).all()
    assert not both[1].cancel()
    write = pair.endpoint.send(b"x", pair.handle)
    assert not write.cancel() and not write.cancelled()
    pair.peer.run(receive_there, 1)


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


@pytest.mark.req("AV-50", "AV-52", "AV-53")
def test_groups(pair):
    def member(group):
        return pair.handle | group << 32

    pair.peer.run(post_there, "two", 8, 1, group=2)
    pair.peer.run(post_there, "one", 8, 1, group=1)
    pair.peer.run(post_there, "none", 8, 1)
    for group, text in ((1, b"in one"), (0, b"in none"), (2, b"in two")):
        pair.endpoint.tsend(text, member(group), 1).result(TIMEOUT)
    for name in ("one", "none", "two"):
        got, what = pair.peer.run(told_there, name)
        assert bytes(got) == b"in " + name.encode()
        assert what[3] == pair.handle_there
    posted = post(pair.endpoint, 8, 1, peer=member(3))
    pair.peer.run(send_there, b"other", pair.handle_there | 4 << 32, 1)
    pair.peer.run(send_there, b"mine", pair.handle_there | 3 << 32, 1)
    assert bytes(told(posted)[0]) == b"mine"
    assert bytes(told(post(pair.endpoint, 8, 1, group=4))[0]) == b"other"
    with pytest.raises(pyfab.InvalidArgumentError, match="group"):
        pair.endpoint.trecv(bytearray(8), 1, group=pair.domain.info.max_group_id + 1)


@pytest.mark.parametrize("tag", [None, 6])
def test_one_buffer_for_many_messages(pair, tag):
    memory = np.zeros(1000, "u1")
    options = {"min_multi_recv": 100, "context": "many"}
    many = (
        pair.endpoint.recv(memory, **options) if tag is None else pair.endpoint.trecv(memory, tag, **options)
    )
    for number in range(10):
        pair.peer.run(send_there, np.full(95, number, "u1"), pair.handle_there, tag)
    entries = collect(pair.endpoint.cq, 11)
    assert [entry.context for entry in entries] == ["many"] * 11
    for number, entry in enumerate(entries[:10]):
        assert CompletionFlag.MORE in entry.flags
        assert entry.source == pair.handle
        assert (memory[entry.offset : entry.offset + entry.nbytes] == number).all()
    assert CompletionFlag.MULTI_RECV in entries[10].flags
    assert many.result(TIMEOUT).nbytes == 950


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


@pytest.mark.req("LNX-43")
@litmus
def test_a_cancel_and_an_arrival_race(pair):
    count = rounds(2000)
    pair.peer.start(send_many_there, pair.handle_there, count)
    canceled = 0
    for number in range(count):
        memory = np.zeros(1, "u4")
        while True:
            operation = pair.endpoint.trecv(memory, 1)
            if operation.cancel():
                canceled += 1
                with pytest.raises(pyfab.CanceledError):
                    operation.result(TIMEOUT)
                assert memory[0] == 0
                continue
            assert operation.result(TIMEOUT).nbytes == 4
            assert memory[0] == number + 1
            break
    pair.peer.finish()
    assert canceled + count > 0


def send_many_there(target, peer, count):
    for number in range(count):
        target.endpoint.inject(np.array([number + 1], "u4"), peer, tag=1)


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
