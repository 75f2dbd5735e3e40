"""Regions over pages that are not there yet, come, and vanish."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from modes import ONE, PAGE, error_of
from pyfab import Access, AtomicOp, MRMode
from support import SANITIZED, Reserved, without_tsan

# --- what the target does


def reserve(target, pages, backed, access=Access.REMOTE, **options):
    """A region over `pages` reserved pages, of which `backed` are there."""
    memory = target.kept["reserved"] = Reserved(pages)
    for page in backed:
        memory.back(page, 1)
    region = target.kept["region"] = target.domain.register(memory.range, access, **options)
    return region.remote


def back(target, first, count=1):
    target.kept["reserved"].back(first, count)


def words(target, page=0):
    return target.kept["reserved"].words(page).copy()


def refresh(target, ranges=None):
    target.kept["region"].refresh(ranges)


def end(target):
    target.kept.pop("region").close()
    target.kept.pop("reserved").unmap()


# --- memory that is not there yet


@pytest.mark.slow
@without_tsan
@pytest.mark.req("MR-30")
def test_addresses_are_registered_before_there_is_memory(open_pair):
    pair = open_pair()
    remote = pair.peer.run(reserve, 4, [])
    early = pair.endpoint.write(ONE, pair.handle, (2 * PAGE, remote.key))
    assert isinstance(error_of(early), pyfab.BoundsError)
    pair.peer.run(back, 2)
    pair.put(ONE, (2 * PAGE, remote.key))
    assert pair.peer.run(words, 2)[0] == 1
    pair.peer.run(end)


@pytest.mark.req("MR-30")
def test_local_buffers_need_no_registration(open_pair):
    pair = open_pair()
    exposed = pair.expose(np.zeros(8))
    pair.put(np.ones(8), exposed.remote)
    assert exposed.content().all()


@pytest.mark.req("MR-35")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_memory_must_be_there_in_allocated_mode(spec):
    memory = Reserved(4)
    memory.back(0, 2)
    with pyfab.Domain(spec, mr_mode=MRMode.ALLOCATED) as domain:
        for _ in range(100):
            with pytest.raises(pyfab.BoundsError, match="ALLOCATED"):
                domain.register(memory.range, Access.REMOTE, key=3)
        half = pyfab.Range(memory.address, 2 * PAGE)
        domain.register(half, Access.REMOTE, key=3).close()
        with pytest.raises(pyfab.BoundsError):
            domain.register([half, pyfab.Range(memory.address + PAGE, 2 * PAGE)], Access.LOCAL)
    with pyfab.Domain(spec) as domain:
        domain.register(memory.range, Access.REMOTE, key=3).close()
    memory.unmap()


# --- memory that comes and goes


@pytest.mark.req("MR-37", "MR-64")
def test_pages_that_appear_count_after_a_refresh(open_pair):
    pair = open_pair(mr_mode=MRMode.MMU_NOTIFY)
    remote = pair.peer.run(reserve, 8, [0, 1])

    def reaches(page, length=8):
        error = error_of(
            pair.endpoint.write(np.ones(length // 8, np.int64), pair.handle, (page * PAGE, remote.key))
        )
        assert error is None or isinstance(error, pyfab.BoundsError)
        return error is None

    assert reaches(0, 2 * PAGE)
    pair.peer.run(back, 2, 3)
    assert not reaches(2)
    assert not reaches(0, 3 * PAGE)
    pair.peer.run(refresh, [(3 * PAGE, PAGE)])
    assert reaches(3)
    assert not reaches(2)
    assert not reaches(4)
    assert reaches(1)
    pair.peer.run(refresh)
    assert reaches(0, 5 * PAGE)
    assert not reaches(4, 2 * PAGE)
    back_again = np.zeros(1, np.int64)
    late = pair.endpoint.read(back_again, pair.handle, (6 * PAGE, remote.key))
    assert isinstance(error_of(late), pyfab.BoundsError)
    pair.peer.run(end)


@pytest.mark.req("MR-64")
@pytest.mark.parametrize("mode", [MRMode.SCALABLE, MRMode.MMU_NOTIFY])
def test_ranges_to_refresh_lie_in_the_region(mode):
    with pyfab.Domain("shm", mr_mode=mode) as domain, domain.register(np.zeros(8), Access.REMOTE) as region:
        region.refresh([(0, 64), (64, 0), (8, 8)])
        for wrong in [(0, 65), (65, 0), (8, 2**64 - 4), (-1, 2)]:
            with pytest.raises((pyfab.InvalidArgumentError, TypeError)):
                region.refresh([wrong])
        with pytest.raises(pyfab.BadFlagsError):
            region.refresh(flags=1)
        assert region.enabled


def refresh_often(target, times):
    for _ in range(times):
        target.kept["region"].refresh()


@litmus
@pytest.mark.req("MR-65")
def test_access_during_a_refresh_succeeds_or_is_refused(open_pair):
    pair = open_pair(mr_mode=MRMode.MMU_NOTIFY)
    remote = pair.peer.run(reserve, 1, [0])
    accesses = rounds(3000)
    pair.peer.start(refresh_often, accesses // 15)
    block = np.zeros(32, np.int64)
    for number in range(1, accesses + 1):
        block[:] = number
        error = error_of(pair.endpoint.write(block, pair.handle, (0, remote.key)))
        assert error is None or isinstance(error, pyfab.KeyRejectedError)
        back_again = np.zeros(32, np.int64)
        error = error_of(pair.endpoint.read(back_again, pair.handle, (0, remote.key)))
        assert isinstance(error, pyfab.KeyRejectedError | None)
        assert error or (back_again == back_again[0]).all()
    pair.peer.finish()
    block[:] = 7
    pair.put(block, (0, remote.key))
    assert (pair.peer.run(words) == 7).all()
    pair.peer.run(end)


def vanish(target, whole):
    memory = target.kept["reserved"]
    memory.unmap() if whole else memory.empty()


@without_tsan
@pytest.mark.req("MR-70")
@pytest.mark.parametrize("size", [8, 200, 5000, 100_000])
def test_pages_that_vanish_harm_nobody(open_pair, size):
    pair = open_pair()
    remote = pair.peer.run(reserve, 32, range(32))
    healthy = pair.expose(np.zeros(8, np.int64))
    data = np.ones(size, np.uint8)
    pair.put(data, (0, remote.key))
    # Other threads of one process, and the allocator of a sanitizer, would get the addresses for what they map.
    pair.peer.run(vanish, whole=pair.combination.where == "process" and not SANITIZED)
    for operation in (
        pair.endpoint.write(data, pair.handle, (0, remote.key)),
        pair.endpoint.read(data, pair.handle, (0, remote.key)),
        pair.endpoint.atomic(AtomicOp.SUM, ONE, pair.handle, (0, remote.key)),
        pair.endpoint.fetch_atomic(AtomicOp.SUM, ONE, ONE.copy(), pair.handle, (8, remote.key)),
    ):
        # A device that was told of the region keeps its pages: what is put there is seen by nobody.
        error = error_of(operation)
        assert isinstance(error, pyfab.BoundsError) or (error is None and "verbs" in pair.combination.spec)
        pair.put(ONE, healthy.remote[:1])
    assert healthy.content()[0] == 1
    pair.peer.run(end)
