"""What the tests of messages share: receives and sends on both sides, and the check that a test leaves nothing."""

from __future__ import annotations

import numpy as np
import pytest
from pyfab import ADDR_UNSPEC
from pyfab.testing.suite.support import TIMEOUT

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
    """Starts a send that need not be complete before somebody receives it; `finish_sends_there` waits for it."""
    target.kept["sends"] = [*target.kept.get("sends", []), send(target.endpoint, content, peer, tag)]


def finish_sends_there(target):
    for operation in target.kept.pop("sends"):
        operation.result(TIMEOUT)


def waits_there(target, count):
    """Returns when that many messages wait."""
    while target.endpoint.message_stats()["unexpected"] < count:
        target.endpoint.progress()


def error_there(target, name):
    operation, memory = target.kept.pop(name)
    error = operation.exception(TIMEOUT)
    return type(error).__name__, memory


def waits_here(endpoint, count):
    while endpoint.message_stats()["unexpected"] < count:
        endpoint.progress()


def discard_there(target, tag):
    return target.endpoint.discard(tag).nbytes
