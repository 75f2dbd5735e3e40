"""The validation suite's tests of completions, over every combination; and of a peer that answers only while it is driven."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyfab
import pytest
from pyfab.testing import Exposed, Peer
from pyfab.testing.suite.test_completions import *  # noqa: F403


class Slow(NamedTuple):
    peer: Peer
    exposed: Exposed
    endpoint: pyfab.Endpoint
    operation: pyfab.Operation


def drive(target):
    target.domain.progress()


@pytest.fixture
def slow():
    """A peer over tcp that answers only while it is driven, and an operation that waits for it."""
    with (
        Peer("tcp", where="thread", progress="manual") as peer,
        pyfab.Domain("tcp") as domain,
        domain.endpoint() as endpoint,
    ):
        exposed = peer.expose(np.zeros(8, np.int64))
        handle = endpoint.av.insert(peer.address)
        yield Slow(peer, exposed, endpoint, endpoint.write(np.arange(8), handle, exposed.remote))


def until_done(peer, operation):
    while not operation.done():
        peer.run(drive)


def test_a_wait_that_gave_up_leaves_the_operation_as_it_is(slow):
    peer, operation = slow.peer, slow.operation
    for _ in range(2):
        with pytest.raises(pyfab.OperationTimeout):
            operation.result(timeout=0.02)
        with pytest.raises(TimeoutError):
            operation.exception(timeout=0)
    assert not operation.done()
    until_done(peer, operation)
    assert operation.result(0).nbytes == 64
    assert slow.exposed.content().tolist() == list(range(8))


def test_cancel_has_one_of_two_outcomes(slow):
    """Cancelled: the operation ends as such at once. Not cancelled: it goes on as if nothing had been asked."""
    peer, operation = slow.peer, slow.operation
    if operation.cancel():
        assert operation.done()
        assert isinstance(operation.exception(0), pyfab.CanceledError)
    else:
        until_done(peer, operation)
        assert operation.result(0).nbytes == 64


def test_flush_gives_up_after_its_timeout(slow):
    endpoint, operation = slow.endpoint, slow.operation
    with pytest.raises(pyfab.OperationTimeout):
        endpoint.flush(timeout=0.02)
    assert not operation.done()
    until_done(slow.peer, operation)
    endpoint.flush(timeout=0)
