"""What becomes of receives and of messages that wait: peeked at, claimed, discarded, canceled, many in one buffer."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from pyfab import CompletionFlag
from pyfab.testing.suite.messages import (
    ANY,
    finish_sends_there,
    nothing_left,  # noqa: F401 - runs for each test
    post,
    receive_there,
    send_later_there,
    send_there,
    told,
    waits_here,
)
from pyfab.testing.suite.support import TIMEOUT, collect, litmus, random_bytes, rounds


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
    assert write.result(TIMEOUT).nbytes == 1


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
