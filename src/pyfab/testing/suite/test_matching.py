"""Which receive a message goes to: by tag, source, group and order."""

from __future__ import annotations

import itertools

import numpy as np
import pyfab
import pytest
from pyfab import ADDR_NOTAVAIL, ADDR_UNSPEC
from pyfab.testing.suite.messages import (
    nothing_left,  # noqa: F401 - runs for each test
    post,
    post_there,
    send_there,
    told,
    told_there,
    waits_here,
)
from pyfab.testing.suite.support import TIMEOUT

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
    """This holds in whichever order the receives are posted, whatever else each would take, and behind one of another tag."""
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
    """Returns the messages that came earlier than bytes which were put before them."""
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
