"""The registration cache: what is kept, for whom, for how long, and that nothing stale is ever used."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager

import numpy as np
import pyfab
import pytest
from pyfab import Access
from support import COMBINATIONS, TIMEOUT, Combination, Pair, random_bytes, without_tsan_fork

PAGE = mmap.PAGESIZE
CACHE = ("FI_MR_CACHE_MAX_SIZE", "FI_MR_CACHE_MAX_COUNT", "FI_MR_CACHE_MERGE_REGIONS", "FI_MR_CACHE_MONITOR")


@pytest.fixture(autouse=True)
def _default_environment(monkeypatch):
    for variable in CACHE:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(params=[each for each in COMBINATIONS if each.where == "thread"], ids=lambda each: each.name)
def links(request) -> Combination:
    """A way for the bytes, for tests that need no peer."""
    return request.param


@contextmanager
def opened(links: Combination, **cache):
    """A domain with a cache, and an endpoint that has itself as peer 0."""
    with (
        pyfab.Domain(links.spec, **links.settings, **{"mr_cache": True, **cache}) as domain,
        domain.endpoint() as endpoint,
    ):
        endpoint.av.insert(endpoint.address)
        yield domain, endpoint


@pytest.fixture
def cached(links):
    with opened(links) as both:
        yield both


@pytest.fixture(scope="module")
def cached_pair(combination):
    with Pair(combination, mr_cache=True) as pair:
        yield pair


def registered(domain: pyfab.Domain, memory: object, access: Access = Access.REMOTE) -> None:
    domain.register(memory, access).close()


def spread(count: int) -> list[np.ndarray]:
    """Arrays of 64 bytes that do not touch."""
    return list(np.zeros((count, 128), np.uint8)[:, :64])


def outcome(domain: pyfab.Domain, memory: object, access: Access = Access.REMOTE) -> str:
    """What a registration of `memory` counts as."""
    before = domain.stats().cache
    registered(domain, memory, access)
    after = domain.stats().cache
    assert after.searches == before.searches + 1
    assert after.hits + after.misses == after.searches
    return "hit" if after.hits > before.hits else "miss"


# --- limits


@pytest.mark.req("MR-71")
@pytest.mark.parametrize("by", ["keyword", "environment"])
def test_bytes_are_bounded(links, by, monkeypatch):
    limit = 1 << 20
    monkeypatch.setenv("FI_MR_CACHE_MAX_SIZE", str(limit if by == "environment" else 5))
    with opened(links, **({"mr_cache_max_size": limit} if by == "keyword" else {})) as (domain, to_self):
        arrays = [np.zeros(300_000, np.uint8) for _ in range(6)]
        for number, array in enumerate(arrays):
            registered(domain, array)
            stats = domain.stats().cache
            assert stats.cached_bytes == stats.idle_bytes == 300_000 * min(number + 1, 3)
        large = random_bytes(3 * limit)
        with domain.register(large, Access.REMOTE) as region:
            back = np.zeros_like(large)
            to_self.read(back, 0, region.remote).result(TIMEOUT)
            assert np.array_equal(back, large)
            assert domain.stats().cache.idle_bytes == 0  # everything else made room
        assert domain.stats().cache.cached_bytes == 0
        assert outcome(domain, large) == "miss"


@pytest.mark.req("MR-71")
def test_bytes_in_use_are_bounded_with_the_idle_ones(links):
    """What somebody uses cannot leave, so less stays that nobody does."""
    limit = 1 << 20
    with opened(links, mr_cache_max_size=limit) as (domain, _):
        idle = [np.zeros(300_000, np.uint8) for _ in range(3)]
        for array in idle:
            registered(domain, array)
        held = []
        for used in range(1, 6):
            held.append(domain.register(np.zeros(250_000, np.uint8), Access.REMOTE))
            stats = domain.stats().cache
            assert stats.idle_bytes == max(0, min(3, (limit - used * 250_000) // 300_000)) * 300_000
            assert stats.cached_bytes == used * 250_000 + stats.idle_bytes
        for region in held:
            region.close()
            assert domain.stats().cache.idle_bytes <= limit
        assert domain.stats().cache.cached_bytes <= limit


@pytest.mark.req("MR-71")
def test_bytes_are_unlimited_by_default(cached):
    domain, _ = cached
    arrays = [np.zeros(64 << 20, np.uint8) for _ in range(16)]  # 1 GiB that nobody touches
    for array in arrays:
        registered(domain, array)
    assert domain.stats().cache.idle_bytes == 1 << 30


@pytest.mark.req("MR-72")
@pytest.mark.parametrize("by", ["keyword", "environment"])
@pytest.mark.parametrize("limit", [0, 1, 5, None])
def test_idle_entries_are_bounded(links, by, limit, monkeypatch):
    settings = {}
    if limit is not None and by == "keyword":
        settings["mr_cache_max_count"] = limit
    elif limit is not None:
        monkeypatch.setenv("FI_MR_CACHE_MAX_COUNT", str(limit))
    most = 1024 if limit is None else limit
    with opened(links, **settings) as (domain, _):
        parts = spread(max(most, 1) + 3)
        for part in parts:
            registered(domain, part)
        for part in parts[3:]:
            assert outcome(domain, part) == ("hit" if most else "miss")
        stats = domain.stats().cache
        assert stats.idle_count == stats.cached_count == stats.hits == most
        assert stats.misses == (most + 3 if most else 4 + 1)
        assert stats.evictions == (3 if most else 0)


@pytest.mark.req("MR-75")
def test_an_entry_in_use_is_never_evicted(links):
    with opened(links, mr_cache_max_count=8) as (domain, to_self):
        pinned = random_bytes(4096)
        with domain.register(pinned, Access.REMOTE) as region:
            parts = spread(10_000)
            for part in parts:
                registered(domain, part)
            assert outcome(domain, pinned) == "hit"
            back = np.zeros_like(pinned)
            to_self.read(back, 0, region.remote).result(TIMEOUT)
            assert np.array_equal(back, pinned)
            assert domain.stats().cache.evictions == 10_000 - 8


@pytest.mark.req("MR-75")
def test_idle_entries_leave_in_the_order_of_their_use(links):
    with opened(links, mr_cache_max_count=3) as (domain, _):
        a, b, c, d, e = spread(5)
        for part in (a, b, c, a, d, b):  # d evicts b, b evicts c
            registered(domain, part)
        assert [outcome(domain, part) for part in (a, d, b)] == ["hit"] * 3
        with domain.register(a, Access.REMOTE):  # in use, so not counted among the three
            registered(domain, e)
            assert [outcome(domain, part) for part in (d, b, e, a)] == ["hit"] * 4
        assert outcome(domain, c) == "miss"  # five of which three may stay: those used last
        assert [outcome(domain, part) for part in (c, a, e)] == ["hit"] * 3


# --- what is a hit


@pytest.mark.req("MR-78")
def test_a_hit_needs_the_range_and_equal_rights(cached):
    domain, _ = cached
    memory = np.zeros(1 << 16, np.uint8)
    assert outcome(domain, memory[100:50_000], Access.REMOTE_READ) == "miss"
    for part in (memory[100:50_000], memory[100:101], memory[49_999:50_000], memory[2000:30_000]):
        assert outcome(domain, part, Access.REMOTE_READ) == "hit"
    assert outcome(domain, memory[99:101], Access.REMOTE_READ) == "miss"
    assert outcome(domain, memory[49_999:50_001], Access.REMOTE_READ) == "miss"
    for access in (Access.REMOTE_WRITE, Access.REMOTE, Access.REMOTE_READ | Access.SEND, Access.READ):
        assert outcome(domain, memory[2000:3000], access) == "miss"
        assert outcome(domain, memory[2000:3000], access) == "hit"


@pytest.mark.req("MR-78")
def test_a_cache_belongs_to_its_domain_and_its_auth_key(links):
    memory = np.zeros(4096, np.uint8)
    with opened(links) as (domain, _), opened(links, auth_key=b"secret") as (other, _):
        for each in (domain, other):
            assert [outcome(each, memory) for _ in range(2)] == ["miss", "hit"]


def test_every_buffer_of_a_region_counts(cached):
    domain, _ = cached
    memory = np.zeros((3, 4096), np.uint8)
    for expected in ((0, 3), (3, 3)):
        domain.register([memory[0, :1000], memory[1, :1000], memory[2, :1000]], Access.REMOTE).close()
        stats = domain.stats().cache
        assert (stats.hits, stats.misses) == expected


def test_a_refused_registration_leaves_nothing_in_use(cached):
    domain, _ = cached
    memory = np.zeros(4096, np.uint8)
    with domain.register(np.zeros(8), Access.REMOTE, key=7), pytest.raises(pyfab.KeyInUseError):
        domain.register(memory, Access.REMOTE, key=7)
    stats = domain.stats().cache
    assert stats.cached_count == stats.idle_count


# --- merging


@pytest.mark.req("MR-73")
@pytest.mark.parametrize("by", ["keyword", "environment"])
@pytest.mark.parametrize(
    "value, merges",
    [("true", True), ("True", True), ("YES", True), ("1", True)]
    + [(value, False) for value in ("", "no", "0", "on", "2", "false", "yes please")],
)
def test_neighbours_merge_where_asked_for(links, value, merges, by, monkeypatch):
    settings = {}
    if by == "keyword":
        settings["mr_cache_merge_regions"] = value
    else:
        monkeypatch.setenv("FI_MR_CACHE_MERGE_REGIONS", value)
    with opened(links, **settings) as (domain, _):
        memory = np.zeros(10_000, np.uint8)
        for part in (memory[:1000], memory[1000:3000], memory[2500:5000]):  # touches, overlaps
            registered(domain, part)
        stats = domain.stats().cache
        assert stats.misses == 3
        assert stats.cached_count == (1 if merges else 3)
        assert stats.cached_bytes == (5000 if merges else 5500)
        assert outcome(domain, memory[500:4000]) == ("hit" if merges else "miss")
        registered(domain, memory[6000:7000])  # neither
        assert domain.stats().cache.cached_count == (2 if merges else 5)


@pytest.mark.req("MR-74")
def test_merging_keeps_users_and_rights(links):
    with opened(links, mr_cache_merge_regions=True) as (domain, to_self):
        memory = domain.alloc(4096, np.uint8) if links.alloc else np.zeros(4096, np.uint8)
        memory[:] = random_bytes(4096)
        first = domain.register(memory[:1024], Access.REMOTE)
        second = domain.register(memory[1024:2048], Access.REMOTE)
        readable = domain.register(memory[2048:3072], Access.REMOTE_READ)
        assert domain.stats().cache.cached_count == 2
        for region, part in ((first, memory[:1024]), (second, memory[1024:2048])):
            back = np.zeros(1024, np.uint8)
            to_self.read(back, 0, region.remote).result(TIMEOUT)
            assert np.array_equal(back, part)
            to_self.write(random_bytes(1024), 0, region.remote).result(TIMEOUT)
            assert np.array_equal(part, random_bytes(1024))
        before = memory[2048:].copy()
        refused = to_self.write(np.ones(8, np.uint8), 0, (0, readable.key)).exception(TIMEOUT)
        assert isinstance(refused, pyfab.AccessDeniedError)
        assert isinstance(
            to_self.write(np.ones(2, np.uint8), 0, (1023, first.key)).exception(TIMEOUT), IndexError
        )
        assert np.array_equal(memory[2048:], before)
        second.close()
        to_self.read(back, 0, first.remote).result(TIMEOUT)
        assert np.array_equal(back, memory[:1024])
        first.close()
        readable.close()


# --- memory that goes away

libc = ctypes.CDLL(None, use_errno=True)
for function in (libc.mmap, libc.mremap):
    function.restype = ctypes.c_void_p
PRIVATE, SHARED, FIXED = mmap.MAP_PRIVATE, mmap.MAP_SHARED, 0x10
MAYMOVE_FIXED, DONTNEED, FREE, REMOVE = 3, 4, 8, 9


def map_memory(length: int, *, at: int = 0, flags: int = PRIVATE, file: int = -1) -> int:
    flags |= (FIXED if at else 0) | (mmap.MAP_ANONYMOUS if file < 0 else 0)
    address = libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(length), 3, flags, file, ctypes.c_long(0))
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return address


def fill(address: int, length: int, value: int) -> None:
    ctypes.memset(address, value, length)


def unmap(address: int, length: int) -> None:
    assert libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length)) == 0


def advise(address: int, length: int, advice: int) -> None:
    assert libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), advice) == 0


def remap(old: int, length: int, new_length: int, flags: int, to: int) -> int:
    address = libc.mremap(
        ctypes.c_void_p(old), ctypes.c_size_t(length), ctypes.c_size_t(new_length), flags, ctypes.c_void_p(to)
    )
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return address


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


# --- monitors and settings


@pytest.mark.req("MR-77")
@pytest.mark.parametrize("by", ["keyword", "environment"])
@pytest.mark.parametrize("asked", [None, True])
@pytest.mark.parametrize("monitor", ["userfaultfd", "memhooks", "kdreg2", "disabled"])
def test_each_monitor(links, monitor, asked, by, monkeypatch):
    settings = {**links.settings, "mr_cache": asked}
    if by == "keyword":
        settings["mr_cache_monitor"] = monitor
        monkeypatch.setenv("FI_MR_CACHE_MONITOR", "disabled")
    else:
        monkeypatch.setenv("FI_MR_CACHE_MONITOR", monitor)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        domain = pyfab.Domain(links.spec, **settings)
    with domain, domain.endpoint() as endpoint:
        endpoint.av.insert(endpoint.address)
        memory = random_bytes(1000)
        registered(domain, memory)
        with domain.register(memory, Access.REMOTE) as region:
            back = np.zeros_like(memory)
            endpoint.read(back, 0, region.remote).result(TIMEOUT)
            assert np.array_equal(back, memory)
        stats = domain.stats().cache
        assert stats.hits == (1 if monitor == "userfaultfd" else 0)
        assert stats.monitor == ("userfaultfd" if monitor == "userfaultfd" else "disabled")
    if monitor in ("memhooks", "kdreg2"):
        (warning,) = told
        assert warning.category is RuntimeWarning
        assert warning.filename == __file__
        assert f"the monitor {monitor} is not available here, because" in str(warning.message)
    else:
        assert told == []


@pytest.mark.req("MR-77")
def test_a_domain_has_no_cache_unless_asked(links, monkeypatch):
    memory = np.zeros(100, np.uint8)
    for asked, variable in ((None, None), (False, None), (False, "userfaultfd")):
        if variable:
            monkeypatch.setenv("FI_MR_CACHE_MONITOR", variable)
        with pyfab.Domain(links.spec, mr_cache=asked, **links.settings) as domain:
            for _ in range(2):
                registered(domain, memory)
            stats = domain.stats().cache
            assert (stats.monitor, stats.searches, stats.cached_count) == ("disabled", 0, 0)


FORBIDDEN = """
import ctypes, struct, sys, warnings
import numpy as np
import pyfab
libc = ctypes.CDLL(None, use_errno=True)
# A filter that answers userfaultfd with EPERM, as containers do.
SYS_userfaultfd = {"x86_64": 323, "aarch64": 282}[__import__("platform").machine()]
program = b"".join(struct.pack("HBBI", *line) for line in (
    (0x20, 0, 0, 0), (0x15, 0, 1, SYS_userfaultfd), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)))
buffer = ctypes.create_string_buffer(program)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(4, ctypes.addressof(buffer))), 0, 0) == 0
try:
    open("/dev/userfaultfd").close()
    device = True
except OSError:
    device = False
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with pyfab.Domain("shm", mr_cache=True) as domain:
        memory = np.zeros(100)
        for _ in range(2):
            domain.register(memory, pyfab.Access.REMOTE).close()
        stats = domain.stats().cache
    pyfab.Transport("shm").close()  # takes one where it can, and nobody asked for it
assert (stats.hits, len(told)) == ((1, 0) if device else (0, 1)), (stats, told)
assert device or "userfaultfd cannot be opened" in str(told[0].message)
"""


@pytest.mark.req("MR-77")
def test_userfaultfd_that_is_forbidden():
    run = subprocess.run(
        [sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.req("MR-71", "MR-72", "MR-77")
@pytest.mark.parametrize("by", ["keyword", "environment"])
@pytest.mark.parametrize(
    "setting, value",
    [(name, value) for name in ("max_size", "max_count") for value in ("-1", "many", "1.5", "1k", str(2**64))]
    + [("monitor", "uffd"), ("monitor", "Disabled")],
)
def test_bad_values_are_named(setting, value, by, monkeypatch):
    settings = {}
    if by == "keyword":
        settings[f"mr_cache_{setting}"] = value
    else:
        monkeypatch.setenv(f"FI_MR_CACHE_{setting.upper()}", value)
    name = f"mr_cache_{setting}" if by == "keyword" else f"FI_MR_CACHE_{setting.upper()}"
    with pytest.raises(pyfab.InvalidArgumentError, match=f'{name} is "{value}"; it is '):
        pyfab.Domain("shm", **settings)


@pytest.mark.parametrize("value", ["yes", 1, 0])
def test_whether_to_cache_is_a_truth_value(value):
    with pytest.raises(pyfab.InvalidArgumentError, match=f"mr_cache={value!r}"):
        pyfab.Domain("shm", mr_cache=value)


# --- statistics and fork


@pytest.mark.req("MR-79")
def test_statistics_are_exact(links):
    with opened(links, mr_cache_max_count=2) as (domain, _):

        def stats() -> tuple[int, ...]:
            cache = domain.stats().cache
            names = (
                "searches hits misses evictions notifications cached_bytes cached_count idle_bytes idle_count"
            )
            return tuple(cache[name] for name in names.split())

        address = map_memory(4 * PAGE)
        a, b, c, d = (pyfab.Range(address + i * PAGE, 100 + i) for i in range(4))
        assert stats() == (0, 0, 0, 0, 0, 0, 0, 0, 0)
        first = domain.register(a, Access.REMOTE)
        assert stats() == (1, 0, 1, 0, 0, 100, 1, 0, 0)
        second = domain.register(a, Access.REMOTE)
        assert stats() == (2, 1, 1, 0, 0, 100, 1, 0, 0)
        first.close()
        assert stats() == (2, 1, 1, 0, 0, 100, 1, 0, 0)
        registered(domain, b)
        registered(domain, c)
        assert stats() == (4, 1, 3, 0, 0, 303, 3, 203, 2)
        registered(domain, d)
        assert stats() == (5, 1, 4, 1, 0, 305, 3, 205, 2)  # without b
        second.close()
        assert stats() == (5, 1, 4, 2, 0, 203, 2, 203, 2)  # without c
        unmap(address + 3 * PAGE, PAGE)
        assert stats() == (5, 1, 4, 2, 1, 100, 1, 100, 1)
        registered(domain, a)
        assert stats() == (6, 2, 4, 2, 1, 100, 1, 100, 1)
        unmap(address, PAGE)
        assert stats() == (6, 2, 4, 2, 2, 0, 0, 0, 0)
        unmap(address + PAGE, 2 * PAGE)
        assert stats() == (6, 2, 4, 2, 2, 0, 0, 0, 0)


@pytest.mark.req("MR-79")
def test_statistics_show_themselves(cached):
    domain, _ = cached
    registered(domain, np.zeros(1234, np.uint8))
    stats = domain.stats()
    assert stats["cache"] is stats.cache
    assert "misses=1" in repr(stats.cache) and "misses=1" in repr(stats)
    for page in (stats._repr_html_(), stats.cache._repr_html_()):
        assert "<th>misses</th><td>1</td>" in page and "<th>idle_bytes</th><td>1234</td>" in page


FORK = """
import json, mmap, os, sys, warnings
import numpy as np
import pyfab
warnings.simplefilter("ignore")  # newer Pythons warn of forks with threads
spec, settings = sys.argv[1], json.loads(sys.argv[2])
memory = np.zeros(1 << 20, np.uint8)

def register(domain):
    domain.register(memory, pyfab.Access.REMOTE).close()
    stats = domain.stats().cache
    return stats.hits, stats.misses

with pyfab.Domain(spec, mr_cache=True, **settings) as domain:
    assert register(domain) == (0, 1)
    child = os.fork()
    if child == 0:
        try:
            domain.register(memory, pyfab.Access.REMOTE)
            os._exit(1)
        except pyfab.ClosedError:
            pass
        with pyfab.Domain(spec, mr_cache=True, **settings) as own:
            assert own.stats().cache.cached_count == 0
            assert register(own) == (0, 1)
            assert register(own) == (1, 1)
            large = mmap.mmap(-1, 1 << 24)  # unmapped at once, whatever the allocator
            own.register(large, pyfab.Access.REMOTE).close()
            large.close()
            assert own.stats().cache.notifications == 1
        del domain
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert register(domain) == (1, 1)
    large = mmap.mmap(-1, 1 << 24)
    domain.register(large, pyfab.Access.REMOTE).close()
    large.close()
    assert domain.stats().cache.notifications == 1
"""


@without_tsan_fork
@pytest.mark.req("MR-80")
def test_a_child_has_no_part_in_the_cache(links):
    if links.link == "verbs":
        pytest.skip(
            "rdma_cm keeps the devices that it opened: children of fork() cannot open them anew (docs/verbs.md)"
        )
    run = subprocess.run(
        [sys.executable, "-c", FORK, links.spec, json.dumps(links.settings)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
