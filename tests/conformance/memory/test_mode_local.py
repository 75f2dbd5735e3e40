"""Local memory in the mode that has it registered, and in the others."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from modes import ONE
from pyfab import Access, AtomicOp, MRMode
from support import TIMEOUT


@pytest.mark.req("MR-23", "MR-31")
def test_local_memory_is_registered_in_local_mode(open_pair):
    pair = open_pair(mr_mode=MRMode.LOCAL)
    exposed = pair.expose(np.zeros(8, np.int64))
    memory, other = np.arange(16), np.zeros(16, np.int64)
    source = pair.register(memory[:8], Access.WRITE)
    landing = pair.register(other, Access.READ)
    for local in ((source, 0, 64), memory[:8], [memory[:4], memory[4:8]]):
        pair.put(local, exposed.remote)
    for local in ((landing, 64, 64), other[8:]):
        pair.get(local, exposed.remote)
    assert other.tolist() == [0] * 8 + list(range(8))
    closed = pair.register(memory[8:], Access.WRITE)
    closed.close()
    wrong_sources = [np.zeros(8, np.int64), memory[8:], memory[4:12], other[:8], (landing, 0, 64)]
    wrong_sources += [[memory[:4], np.zeros(4, np.int64)], (source, 8, 64), (closed, 0, 64)]
    for local in wrong_sources:
        with pytest.raises((pyfab.InvalidArgumentError, pyfab.ClosedError)):
            pair.endpoint.write(local, pair.handle, exposed.remote)
    for local in (np.zeros(8, np.int64), memory[:8], (source, 0, 64)):
        with pytest.raises(pyfab.InvalidArgumentError):
            pair.endpoint.read(local, pair.handle, exposed.remote)
    with pytest.raises(pyfab.InvalidArgumentError):
        pair.endpoint.atomic(AtomicOp.SUM, ONE, pair.handle, exposed.remote[:1])
    with pytest.raises(pyfab.InvalidArgumentError):
        pair.endpoint.fetch_atomic(AtomicOp.SUM, memory[:1], memory[1:2], pair.handle, exposed.remote[:1])
    assert np.array_equal(exposed.content(), np.arange(8))


@pytest.mark.slow
@pytest.mark.req("MR-23")
def test_each_local_use_needs_its_right(open_pair):
    """Every use against every right alone: memory with another right than the one is refused, and nothing is posted."""
    pair = open_pair(mr_mode=MRMode.LOCAL)
    exposed = pair.expose(np.zeros(8, np.int64))
    remote, scratch = exposed.remote[:1], {}
    for right in (Access.SEND, Access.RECV, Access.READ, Access.WRITE, Access.REMOTE):
        memory = np.ones(1, np.int64)
        scratch[right] = memory, pair.register(memory, right)
    full = np.ones(4, np.int64)
    region = pair.register(full, Access.LOCAL)
    one, other, result = full[:1], full[1:2], full[2:3]
    endpoint, handle, to_self = pair.endpoint, pair.handle, pair.endpoint.av.insert(pair.endpoint.address)
    uses = {
        "put": (Access.WRITE, lambda m: endpoint.write(m, handle, remote)),
        "get": (Access.READ, lambda m: endpoint.read(m, handle, remote)),
        "atomic": (Access.WRITE, lambda m: endpoint.atomic(AtomicOp.SUM, m, handle, remote)),
        "operand": (Access.WRITE, lambda m: endpoint.fetch_atomic(AtomicOp.SUM, m, result, handle, remote)),
        "result": (Access.READ, lambda m: endpoint.fetch_atomic(AtomicOp.SUM, one, m, handle, remote)),
        "comparand": (
            Access.WRITE,
            lambda m: endpoint.compare_atomic(AtomicOp.CSWAP, one, m, result, handle, remote),
        ),
        "former": (
            Access.READ,
            lambda m: endpoint.compare_atomic(AtomicOp.CSWAP, one, other, m, handle, remote),
        ),
        "message": (Access.SEND, lambda m: endpoint.tsend(m, to_self, 7)),
        "receive": (Access.RECV, lambda m: endpoint.trecv(m, 7)),
    }
    for name, (needed, use) in uses.items():
        for right, (memory, _) in scratch.items():
            if right & needed:
                continue
            with pytest.raises(pyfab.InvalidArgumentError, match=needed.name):
                use(memory)
        started = use(scratch[needed][0])
        if name == "message":
            sent = started
        elif name == "receive":
            started.result(TIMEOUT)
            sent.result(TIMEOUT)
        else:
            started.result(TIMEOUT)
    endpoint.av.remove(to_self)
    region.close()


@pytest.mark.slow
@pytest.mark.req("MR-31")
def test_local_memory_needs_nothing_otherwise(open_pair):
    pair = open_pair()
    exposed = pair.expose(np.zeros(8, np.int64))
    memory = np.arange(8)
    region = pair.register(memory, Access.SEND)
    pair.put(np.arange(8), exposed.remote)
    pair.put((region, 0, 64), exposed.remote)
    region.close()
    with pytest.raises(pyfab.ClosedError):
        pair.endpoint.write((region, 0, 64), pair.handle, exposed.remote)
    assert np.array_equal(exposed.content(), memory)
