"""The registration cache: what is kept, for whom and for how long, and what is a hit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyfab
import pytest
from caching import opened, outcome, registered, spread
from mappings import PAGE, map_memory, unmap
from pyfab import Access
from support import TIMEOUT, random_bytes, without_asan_fork, without_tsan_fork

pytestmark = pytest.mark.usefixtures("default_cache")

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


@pytest.mark.slow
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
import ast, mmap, os, sys, warnings
import numpy as np
import pyfab
warnings.simplefilter("ignore")  # newer Pythons warn of forks with threads
spec, settings = sys.argv[1], ast.literal_eval(sys.argv[2])
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
@without_asan_fork
@pytest.mark.req("MR-80")
def test_a_child_has_no_part_in_the_cache(links):
    if links.link == "verbs":
        pytest.skip(
            "rdma_cm keeps the devices that it opened: children of fork() cannot open them anew (docs/verbs.md)"
        )
    run = subprocess.run(
        [sys.executable, "-c", FORK, links.spec, repr(links.settings)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
