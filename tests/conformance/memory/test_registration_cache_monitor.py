"""Memory that goes away under the registration cache: nothing stale is ever used."""

from __future__ import annotations

import os
import threading

import numpy as np
import pyfab
import pytest
from caching import outcome, registered
from mappings import (
    DONTNEED,
    FREE,
    MAYMOVE_FIXED,
    PAGE,
    PRIVATE,
    REMOVE,
    SHARED,
    advise,
    fill,
    map_memory,
    remap,
    unmap,
)
from pyfab import Access
from support import TIMEOUT, Pair

pytestmark = pytest.mark.usefixtures("default_cache")


@pytest.fixture(scope="module")
def cached_pair(combination):
    with Pair(combination, mr_cache=True) as pair:
        yield pair


LENGTH = 64 * PAGE


def replace(address: int) -> None:
    map_memory(LENGTH, at=address)


def unmap_and_map(address: int) -> None:
    unmap(address, LENGTH)
    assert map_memory(LENGTH, at=address) == address


def replace_a_part(address: int) -> None:
    map_memory(PAGE, at=address + 7 * PAGE)


def move_another_here(address: int) -> None:
    other = map_memory(LENGTH)
    remap(other, LENGTH, LENGTH, MAYMOVE_FIXED, address)


def move_away(address: int) -> None:
    remap(address, LENGTH, LENGTH, MAYMOVE_FIXED, map_memory(LENGTH))
    map_memory(LENGTH, at=address)


def shrink(address: int) -> None:
    remap(address, LENGTH, LENGTH // 2, 0, 0)
    map_memory(LENGTH // 2, at=address + LENGTH // 2)


def discard(address: int) -> None:
    advise(address, LENGTH, DONTNEED)


def free_lazily(address: int) -> None:
    advise(address + PAGE, PAGE, FREE)


def punch(address: int) -> None:
    advise(address, LENGTH, REMOVE)


WAYS = [replace, unmap_and_map, replace_a_part, move_another_here, move_away, shrink, discard, free_lazily]


def lose_and_register(target, way, flags, close_first):
    """Registers memory, changes its pages, registers the same addresses again: what the cache counted, and the new region."""
    domain = target.domain
    address = map_memory(LENGTH, flags=flags)
    memory = pyfab.Range(address, LENGTH)
    fill(address, LENGTH, 1)
    first = domain.register(memory, Access.REMOTE)
    assert outcome(domain, memory) == "hit"
    if close_first:
        first.close()
    before = domain.stats().cache
    way(address)
    fill(address, LENGTH, 2)
    region = target.kept["region"] = domain.register(memory, Access.REMOTE)
    after = domain.stats().cache
    target.kept["rest"] = first, address
    assert outcome(domain, memory) == "hit"
    return region.remote, [
        getattr(after, name) - getattr(before, name) for name in ("misses", "hits", "notifications")
    ]


def end_memory(target):
    first, address = target.kept.pop("rest")
    first.close()
    target.kept.pop("region").close()
    unmap(address, LENGTH)
    stats = target.domain.stats().cache
    return stats.cached_count, stats.idle_count


@pytest.mark.req("MR-76")
@pytest.mark.parametrize("close_first", [True, False], ids=["idle", "in use"])
@pytest.mark.parametrize(
    "way, flags",
    [(way, PRIVATE) for way in WAYS] + [(way, SHARED) for way in (replace, unmap_and_map, punch)],
    ids=lambda value: value.__name__ if callable(value) else {PRIVATE: "private", SHARED: "shared"}[value],
)
def test_nothing_stale_is_served(cached_pair, way, flags, close_first):
    remote, changes = cached_pair.peer.run(lose_and_register, way, flags, close_first)
    assert changes == [1, 0, 1]  # one miss more, no hit, one notification
    back = np.zeros(LENGTH, np.uint8)
    cached_pair.get(back, remote.bytes(0, LENGTH))
    assert (back == 2).all()
    assert cached_pair.peer.run(end_memory) == (0, 0)


def register_in_a_file(target, truncate):
    """How often the same mapping of a file in memory, maybe cut off and extended again, is registered anew."""
    file = os.memfd_create("test")
    os.ftruncate(file, LENGTH)
    address = map_memory(LENGTH, flags=SHARED, file=file)
    memory = pyfab.Range(address, LENGTH)
    before = target.domain.stats().cache.misses
    for value in (1, 2):
        if truncate:
            os.ftruncate(file, 0)
            os.ftruncate(file, LENGTH)
        fill(address, LENGTH, value)
        target.kept["region"] = target.domain.register(memory, Access.REMOTE)
        if value == 1:
            target.kept.pop("region").close()
    os.close(file)
    target.kept["rest"] = target.kept["region"], address
    return target.kept["region"].remote, target.domain.stats().cache.misses - before


@pytest.mark.req("MR-76")
@pytest.mark.parametrize("truncate", [True, False])
def test_memory_that_goes_unnoticed_is_not_kept(cached_pair, truncate):
    remote, misses = cached_pair.peer.run(register_in_a_file, truncate)
    assert misses == 2
    back = np.zeros(LENGTH, np.uint8)
    cached_pair.get(back, remote.bytes(0, LENGTH))
    assert (back == 2).all()
    assert cached_pair.peer.run(end_memory) == (0, 0)


@pytest.mark.req("MR-76")
def test_memory_of_the_library_is_kept(cached):
    domain, _ = cached
    memory = domain.alloc(1 << 16, np.uint8)
    assert [outcome(domain, memory) for _ in range(2)] == ["miss", "hit"]
    del memory
    assert domain.stats().cache.cached_count == 0


@pytest.mark.req("MR-76")
def test_memory_that_another_thread_unmaps(cached):
    domain, _ = cached
    for _ in range(20):
        address = map_memory(LENGTH)
        registered(domain, pyfab.Range(address, LENGTH))
        thread = threading.Thread(target=replace, args=(address,))
        thread.start()
        thread.join()
        assert outcome(domain, pyfab.Range(address, LENGTH)) == "miss"
        unmap(address, LENGTH)


@pytest.mark.req("MR-76")
def test_threads_register_and_unmap_at_once(cached):
    """Nobody waits for anybody who waits for them: allocation and unmapping happen under all locks there are."""
    domain, to_self = cached
    failures = []

    def work(seed: int) -> None:
        try:
            sizes = np.random.default_rng(seed).integers(1, 1 << 20, 150)
            for size in sizes:
                memory = np.full(int(size), seed, np.uint8)
                region = domain.register(memory, Access.REMOTE)
                back = np.zeros(1, np.uint8)
                to_self.read(back, 0, region.remote[-1:]).result(TIMEOUT)
                assert back[0] == seed
                region.close()
                del region, memory
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    stats = domain.stats().cache
    assert stats.searches == 600
    assert stats.idle_count == stats.cached_count
