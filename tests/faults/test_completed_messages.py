"""What was told of a message, complete or lost, stays true on both sides, whoever stops or dies afterwards."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import takewhile

import numpy as np
import pyfab
import pytest
from test_message_faults import EVERY_WAY, GONE, insert
from test_stopped import TIMEOUT

FILL, REUSED = 0x11, 0x99
SIZES = [3000, 30_000, 1_000_000] * 3
ANNOUNCED = 16_384  # bytes from which on a message stays with its sender, over every link


@pytest.mark.slow
@EVERY_WAY
@pytest.mark.parametrize("posted", [True, False], ids=["posted", "unexpected"])
def test_sends_to_a_stopped_process_are_lost_and_never_received_changed(station, spec, settings, posted):
    """They settle at the deadline; whoever then uses the memory again does not change what the receiver gets."""
    here = station(spec, **settings, peer_deadline=1)
    receiver, handle = here.peer()
    here.endpoint.tsend(np.zeros(8, np.uint8), handle, len(SIZES)).result(TIMEOUT)  # the way stands
    contents = [np.full(size, FILL, np.uint8) for size in SIZES]
    if posted:
        receiver.run(post_all)
    receiver.suspend()
    try:
        sends = [here.endpoint.tsend(content, handle, number) for number, content in enumerate(contents)]
        errors = [operation.exception(TIMEOUT) for operation in sends]
        for content in contents:
            content[:] = REUSED
    finally:
        receiver.resume()
    assert all(isinstance(error, GONE) for error, size in zip(errors, SIZES, strict=True) if size > ANNOUNCED)
    assert all(error is None or isinstance(error, GONE) for error in errors)
    if not posted:
        receiver.run(post_all)
    receiver.run(receive, 8, len(SIZES))
    here.endpoint.tsend(np.zeros(8, np.uint8), handle, len(SIZES)).result(TIMEOUT)
    receiver.run(receive, 8, len(SIZES))  # what was sent before it has come
    for error, outcome in zip(errors, receiver.run(outcomes), strict=True):
        assert outcome == FILL if error is None else outcome in (None, "PeerLostError", FILL)


def post_all(target):
    for number, size in enumerate(SIZES):
        target.kept["landing", number] = memory = np.zeros(size, np.uint8)
        target.kept["receive", number] = target.endpoint.trecv(memory, number)


def outcomes(target):
    """Of each receive: None while it waits, the name of its error, or the byte that it brought."""
    found = []
    for number in range(len(SIZES)):
        operation, memory = target.kept["receive", number], target.kept["landing", number]
        if not operation.done():
            found.append(None)
        elif (error := operation.exception(0)) is not None:
            found.append(type(error).__name__)
        else:
            assert (memory == memory[0]).all()
            found.append(int(memory[0]))
    return found


def receive(target, size, tag):
    target.endpoint.trecv(np.zeros(size, np.uint8), tag).result(TIMEOUT)


SMALL = 20  # messages at the front
COMPLETED = [64] * SMALL + [15_000] * 60  # bytes; over shared memory the larger ones are announced


def meet(target, peer):
    target.endpoint.tsend(np.zeros(8, np.uint8), peer, 2).result(TIMEOUT)


def send_and_count(target, peer):
    """How many sends are complete though the receiver does nothing, from the first one on."""
    contents = [np.full(size, number, np.uint8) for number, size in enumerate(COMPLETED)]
    sends = [target.endpoint.tsend(content, peer, 1) for content in contents]
    target.kept["sends"] = sends, contents
    with suppress(pyfab.OperationTimeout):
        sends[-1].result(0.5)
    return sum(1 for _ in takewhile(pyfab.Operation.done, sends))


def finish(here, sender):
    """What the call returns that the sender runs; this side moves meanwhile."""
    while sender.busy:
        here.endpoint.progress()
        with suppress(TimeoutError):
            return sender.finish(0)
    raise AssertionError("the call ran out of time")


def leave(_target):
    os._exit(0)


@EVERY_WAY
@pytest.mark.parametrize("end", ["exit", "close", "kill"])
def test_what_was_told_complete_outlives_its_sender(station, spec, settings, end):
    """Over shared memory the receiver does not look before the senders are gone, of which it has met one.

    Over tcp nothing is complete that its library has not acknowledged, so there it moves while they send.
    """
    here = station(spec, **settings, progress="manual")
    senders = [here.peer(progress="auto") for _ in range(2)]
    to_here = [sender.run(insert, here.endpoint.address) for sender, _ in senders]
    first = here.endpoint.trecv(np.zeros(8, np.uint8), 2)
    senders[0][0].start(meet, to_here[0])
    first.result(TIMEOUT)
    finish(here, senders[0][0])
    told = []
    for (sender, handle), way in zip(senders, to_here, strict=True):
        sender.start(send_and_count, way)
        complete = sender.finish() if "shm" in spec else finish(here, sender)
        told.append(complete)
        if end == "exit":
            sender.start(leave)
            with pytest.raises(ConnectionError):
                sender.finish()
        elif end == "close":
            sender.close()
        else:
            sender.kill()
        for number, size in enumerate(COMPLETED[:complete]):
            memory = np.zeros(size, np.uint8)
            assert here.endpoint.trecv(memory, 1, peer=handle).result(TIMEOUT).nbytes == size
            assert (memory == number).all()
    assert told[0] >= SMALL
