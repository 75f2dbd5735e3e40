"""Remote data of puts that are done: the target gets it, whatever becomes of the initiator and of the region meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import numpy as np
import pyfab
import pytest
from pyfab import Access
from pyfab.testing import Peer
from test_stopped import TIMEOUT, WAYS

MANY = 6000  # notices, which are more than a ring of shared memory has room for
_libc = ctypes.CDLL(None)
SOME = 300  # more than are read in one turn


@contextlib.contextmanager
def met(spec, settings, **of_target):
    """A domain, its endpoint, and an initiator in a process of its own. Both move only where a test says so."""
    with (
        pyfab.Domain(spec, progress="manual", **settings, **of_target) as domain,
        domain.endpoint(cq=domain.completion_queue(2 * MANY)) as endpoint,
        Peer(spec, progress="manual", **settings) as initiator,
    ):
        initiator.run(meet, endpoint.address)
        yield domain, endpoint, initiator


def memory_for(domain, alloc):
    return domain.alloc(8, np.int64) if alloc else np.zeros(8, np.int64)


def meet(initiator, address):
    initiator.kept["handle"] = initiator.endpoint.av.insert(address)


def put(initiator, remote, data):
    """Starts puts of one word, one for each of `data`, as many as the path takes."""
    write, handle = initiator.endpoint.write, initiator.kept["handle"]
    initiator.kept["puts"] = [write(np.array([number]), handle, remote[:1], data=number) for number in data]


def done(initiator):
    """How many puts succeeded of those that were started last, after a turn."""
    initiator.domain.progress()
    return sum(each.done() and each.exception(0) is None for each in initiator.kept["puts"])


def settled(initiator):
    """The same, once turns make no more of them succeed."""
    before, count = -1, 0
    while count > before:
        before, count = count, max(done(initiator) for _ in range(100))
    return count


def close(initiator):
    initiator.endpoint.close()


def came(queue):
    return [entry.data for entry in queue.read(max=2 * MANY)]


def drive_until(domain, condition):
    while not condition():
        domain.progress()


def put_all(domain, initiator, remote, data):
    """Until all are done, of which the target need not know: it runs only where it has to store the bytes."""
    initiator.run(put, remote, data)
    if initiator.run(settled) < len(data):
        drive_until(domain, lambda: initiator.run(done) == len(data))


def withdraw_by_close(domain, memory):
    region = domain.register(memory, Access.REMOTE)
    return region.remote, region.close


def withdraw_by_revoke(domain, memory):
    region = domain.register(memory, Access.REMOTE)
    grant = region.grant()
    return grant.remote, grant.revoke


@pytest.mark.slow
@pytest.mark.parametrize("withdraw", [withdraw_by_close, withdraw_by_revoke])
@pytest.mark.parametrize("spec, settings, alloc", WAYS)
def test_a_notice_outlives_what_it_tells_of(spec, settings, alloc, withdraw):
    """The puts are done, the initiator is killed, and the target closes the region before it looks at anything else."""
    with met(spec, settings) as (domain, endpoint, initiator):
        remote, end = withdraw(domain, memory_for(domain, alloc))
        initiator.run(put, remote, [0])  # makes the connection
        drive_until(domain, lambda: initiator.run(done) == 1)
        put_all(domain, initiator, remote, range(1, SOME))
        initiator.kill()
        end()
        found = []
        while len(found) < SOME:
            endpoint.cq.wait(TIMEOUT)
            found += came(endpoint.cq)
        assert found == list(range(SOME))


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings", [way.values[:2] for way in WAYS])
def test_a_notice_outlives_the_pages_that_it_tells_of(spec, settings):
    with met(spec, settings, mr_mode=pyfab.MRMode.MMU_NOTIFY) as (domain, endpoint, initiator):
        pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        memory = np.frombuffer(pages, np.int64)
        region = domain.register(memory, Access.REMOTE)
        initiator.run(put, region.remote, [0])  # makes the connection
        drive_until(domain, lambda: initiator.run(done))
        put_all(domain, initiator, region.remote, [1])
        assert _libc.mprotect(ctypes.c_void_p(memory.ctypes.data), mmap.PAGESIZE, 0) == 0
        region.refresh()
        endpoint.cq.wait(TIMEOUT)
        assert came(endpoint.cq) == [0, 1]


def is_killed(initiator):
    initiator.kill()


def closes(initiator):
    initiator.run(close)


@pytest.mark.slow
@pytest.mark.parametrize("ends", [is_killed, closes])
@pytest.mark.parametrize("spec, settings, alloc", WAYS)
def test_puts_that_are_done_told_of_themselves_though_nobody_listened(spec, settings, alloc, ends):
    """More notices than a ring has room for, to a target that does not run. Then the initiator ends."""
    with met(spec, settings) as (domain, endpoint, initiator):
        memory = memory_for(domain, alloc)
        region = domain.register(memory, Access.REMOTE)
        initiator.run(put, region.remote, [0])
        drive_until(domain, lambda: initiator.run(done))
        initiator.run(put, region.remote, range(1, 1 + MANY))
        certain = initiator.run(settled)
        ends(initiator)
        if certain:  # whoever moves its bytes itself moves none that it cannot tell of
            assert memory[0] == certain
        found = []
        while len(found) <= certain:
            endpoint.cq.wait(TIMEOUT)
            found += came(endpoint.cq)
        assert found == list(range(len(found)))
