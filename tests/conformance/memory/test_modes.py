"""What a domain demands of registered memory: each mr_mode bit in force, and discovery that negotiates them (fi_mr(3))."""

from __future__ import annotations

import itertools
import mmap
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab import Access, AtomicOp, Caps, MRFlag, MRMode, RMAEvent
from support import SANITIZED, TIMEOUT, Pair, Reserved, without_tsan

PAGE = mmap.PAGESIZE
BITS = [
    MRMode.LOCAL,
    MRMode.RAW,
    MRMode.VIRT_ADDR,
    MRMode.ALLOCATED,
    MRMode.PROV_KEY,
    MRMode.MMU_NOTIFY,
    MRMode.RMA_EVENT,
    MRMode.ENDPOINT,
]
BASIC_BITS = MRMode.VIRT_ADDR | MRMode.ALLOCATED | MRMode.PROV_KEY
ONE = np.ones(1, np.int64)


def every_mode():
    for chosen in itertools.product([False, True], repeat=len(BITS)):
        yield MRMode(sum(bit for bit, on in zip(BITS, chosen, strict=True) if on))


def error_of(operation):
    return operation.exception(TIMEOUT)


@pytest.fixture
def open_pair(combination):
    """Opens pairs of domains with given settings."""
    pairs = []

    def open_one(**settings):
        pairs.append(Pair(combination, **settings).__enter__())
        return pairs[-1]

    yield open_one
    for pair in pairs:
        pair.__exit__()


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


def bind_and_enable(target, name):
    region = target.kept[name].region
    region.bind(target.endpoint)
    region.enable()


# --- discovery


@pytest.mark.req("MR-42")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_discovery_shows_what_is_needed_of_what_is_offered(spec):
    for needs in every_mode():
        for met in (needs, needs | MRMode.LOCAL | MRMode.RAW, MRMode(0b1111111100)):
            assert pyfab.getinfo(spec, mr_mode=met, needs=needs)[0].mr_mode == needs
        for missing in (bit for bit in BITS if bit & needs):
            with pytest.raises(pyfab.FabricError) as failure:
                pyfab.getinfo(spec, mr_mode=needs & ~missing, needs=needs)
            assert failure.value.name == "FI_ENODATA"


@pytest.mark.req("MR-42")
def test_providers_that_need_nothing_clear_every_bit():
    for info in pyfab.getinfo("shm+tcp", mr_mode=MRMode(0b1111111100)) + pyfab.getinfo("shm"):
        assert info.mr_mode == MRMode.SCALABLE


@pytest.mark.req("MR-41")
@pytest.mark.parametrize("bit", BITS, ids=lambda bit: bit.name)
def test_basic_stands_alone_or_with_local(bit):
    mode = MRMode.BASIC | bit
    if bit == MRMode.LOCAL:
        for needs, shown in ((BASIC_BITS, MRMode.BASIC), (BASIC_BITS | MRMode.LOCAL, mode)):
            info = pyfab.getinfo("shm", mr_mode=mode, needs=needs)[0]
            assert info.mr_mode == shown
            with pyfab.Domain(info) as domain:
                assert domain.info.mr_mode == shown
        return
    for attempt in (lambda: pyfab.getinfo("shm", mr_mode=mode), lambda: pyfab.Domain("shm", mr_mode=mode)):
        with pytest.raises(pyfab.FabricError) as failure:
            attempt()
        assert failure.value.name == "FI_ENODATA"


@pytest.mark.req("MR-41")
def test_basic_is_three_bits(open_pair):
    pair = open_pair(mr_mode=MRMode.BASIC)
    assert pair.domain.info.mr_mode == MRMode.BASIC
    exposed = pair.expose(np.zeros(8, np.int64), key=5)
    assert exposed.key != 5
    assert exposed.remote.address == exposed.address
    pair.put(ONE, exposed.remote[2:3])
    assert exposed.content().tolist() == [0, 0, 1, 0, 0, 0, 0, 0]


@pytest.mark.req("MR-43")
def test_names_of_old():
    assert pyfab.FI_MR_SCALABLE == MRMode.SCALABLE
    assert pyfab.FI_LOCAL_MR == pyfab.FI_MR_LOCAL == MRMode.LOCAL
    assert pyfab.FI_RAW_MR == pyfab.FI_MR_RAW == MRMode.RAW
    with pyfab.Domain("shm", mr_mode=pyfab.FI_LOCAL_MR | pyfab.FI_MR_LOCAL) as domain:
        assert domain.info.mr_mode == MRMode.LOCAL
    with pyfab.Domain("shm", mr_mode=pyfab.FI_MR_SCALABLE) as domain:
        assert domain.info.mr_mode == MRMode.SCALABLE


@pytest.mark.parametrize("mode", [0, *BITS, sum(BITS)], ids=lambda mode: repr(mode))
def test_put_get_and_atomics_in_every_mode(open_pair, mode):
    mode = MRMode(mode)
    pair = open_pair(mr_mode=mode)
    exposed = pair.expose(np.arange(8))
    if mode & MRMode.ENDPOINT:
        pair.peer.run(bind_and_enable, exposed.name)
    address = exposed.address if mode & MRMode.VIRT_ADDR else 0
    key = pair.domain.map_raw(exposed.remote) if mode & MRMode.RAW else exposed.key
    local = pair.domain.alloc(8, np.int64)
    local[:] = 5
    result, operand = pair.domain.alloc(1, np.int64), pair.domain.alloc(1, np.int64)
    operand[:] = 1
    for memory in (local, result, operand):
        pair.register(memory, Access.LOCAL)
    pair.put(local[:2], (address + 16, key))
    assert exposed.content().tolist() == [0, 1, 5, 5, 4, 5, 6, 7]
    pair.get(local, (address, key))
    assert local.tolist() == [0, 1, 5, 5, 4, 5, 6, 7]
    add = pair.endpoint.fetch_atomic(AtomicOp.SUM, operand, result, pair.handle, (address + 56, key))
    add.result(TIMEOUT)
    assert result == 7
    assert exposed.content()[7] == 8
    if mode & MRMode.RAW:
        pair.domain.unmap_key(key)


# --- keys


@pytest.mark.req("MR-14")
def test_keys_of_four_bytes(open_pair):
    pair = open_pair(mr_key_size=4)
    assert pair.domain.info.mr_key_size == 4
    with pytest.raises(pyfab.KeyRejectedError, match="4 bytes"):
        pair.register(np.zeros(1), Access.REMOTE, key=2**32)
    exposed = pair.expose(np.zeros(8), key=2**32 - 1)
    pair.put(np.ones(8), exposed.remote)
    assert exposed.content().all()
    assert 0 <= pair.expose(np.zeros(1)).key < 2**32


@pytest.mark.parametrize("size", [0, 3, 9])
def test_keys_have_four_to_eight_bytes(size):
    with pytest.raises(pyfab.InvalidArgumentError):
        pyfab.Domain("shm", mr_key_size=size)


@pytest.mark.req("MR-16", "MR-36")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_the_library_chooses_keys(spec):
    with pyfab.Domain(spec, mr_mode=MRMode.PROV_KEY) as domain:
        regions = [domain.register(np.zeros(1), Access.REMOTE, key=0) for _ in range(1000)]
        assert len({region.key for region in regions}) == 1000
        assert 0 not in {region.key for region in regions}
    with pyfab.Domain(spec, mr_mode=MRMode.PROV_KEY, strict_keys=True) as domain:
        with pytest.raises(pyfab.KeyRejectedError):
            domain.register(np.zeros(1), Access.REMOTE, key=0)
        domain.register(np.zeros(1), Access.REMOTE).close()


@pytest.mark.req("MR-36")
def test_a_key_that_was_asked_for_is_not_the_key(open_pair):
    pair = open_pair(mr_mode=MRMode.PROV_KEY)
    exposed = pair.expose(np.zeros(8), key=7)
    guessed = pair.endpoint.write(np.ones(8), pair.handle, (0, 7))
    assert isinstance(error_of(guessed), pyfab.KeyRejectedError)
    assert not exposed.content().any()
    pair.put(np.ones(8), exposed.remote)


@pytest.mark.req("MR-21")
@pytest.mark.parametrize("size", [4, 8])
def test_chosen_keys_do_not_come_back_soon(size):
    recent: dict[int, None] = {}
    with pyfab.Domain("shm", mr_mode=MRMode.PROV_KEY, mr_key_size=size) as domain:
        memory = np.zeros(1)
        for _ in range(10_000):
            with domain.register(memory, Access.REMOTE) as region:
                assert region.key not in recent
                recent[region.key] = None
            if len(recent) > 1000:
                del recent[next(iter(recent))]


@pytest.mark.req("MR-21")
def test_a_key_that_was_chosen_is_stale_once_closed(open_pair):
    pair = open_pair(mr_mode=MRMode.PROV_KEY)
    stale = []
    for _ in range(50):
        exposed = pair.expose(np.zeros(8, np.int64))
        stale.append(exposed.key)
        exposed.close()
    living = pair.expose(np.zeros(8, np.int64))
    for key in stale:
        assert isinstance(error_of(pair.endpoint.write(ONE, pair.handle, (0, key))), pyfab.KeyRejectedError)
    assert not living.content().any()


# --- addressing


@pytest.mark.req("MR-33")
def test_peers_address_as_the_mode_says(open_pair):
    for mode in (MRMode.SCALABLE, MRMode.VIRT_ADDR):
        pair = open_pair(mr_mode=mode)
        exposed = pair.expose(np.zeros(8, np.int64))
        base, wrong = (exposed.address, 0) if mode else (0, exposed.address)
        pair.put(ONE, (base + 8, exposed.key))
        assert exposed.content().tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
        refused = pair.endpoint.write(ONE, pair.handle, (wrong + 8, exposed.key))
        assert isinstance(error_of(refused), pyfab.BoundsError)
        pair.put(ONE, exposed.remote[7:8])  # a description is the same in both
        assert exposed.content().tolist() == [0, 1, 0, 0, 0, 0, 0, 1]


def expose_two(target):
    memory = np.zeros(96, np.uint8)
    parts = [memory[64:96], memory[:32]]
    target.kept["two"] = memory, target.domain.register(parts, Access.REMOTE)
    return parts[0].ctypes.data, target.kept["two"][1].key


def close_two(target):
    memory, region = target.kept.pop("two")
    region.close()
    return memory


@pytest.mark.req("MR-34")
def test_several_buffers_have_the_base_of_the_first(open_pair):
    pair = open_pair(mr_mode=MRMode.VIRT_ADDR)
    base, key = pair.peer.run(expose_two)
    pair.put(np.arange(1, 33, dtype=np.uint8), (base + 16, key))
    expected = np.zeros(96, np.uint8)
    expected[80:96], expected[:16] = np.arange(1, 17), np.arange(17, 33)
    assert np.array_equal(pair.peer.run(close_two), expected)


# --- memory that is not there yet


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


# --- local memory


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


# --- raw keys


def raw_of(target, name):
    return target.kept[name].region.raw_attr()


@pytest.mark.req("MR-18", "MR-32", "MR-52", "MR-53")
def test_raw_keys_are_mapped_before_use(open_pair):
    pair = open_pair(mr_mode=MRMode.RAW)
    exposed = pair.expose(np.zeros(8, np.int64))
    assert exposed.key == pyfab.KEY_NOTAVAIL
    raw = pair.peer.run(raw_of, exposed.name)
    assert len(raw.key) == pair.domain.info.mr_key_size
    for key in (
        pyfab.KEY_NOTAVAIL,
        *np.frombuffer(raw.key, np.uint64).tolist(),
        *np.frombuffer(raw.key, ">u8").tolist(),
    ):
        unmapped = pair.endpoint.write(ONE, pair.handle, (0, key))
        assert isinstance(error_of(unmapped), pyfab.KeyRejectedError)
    assert not exposed.content().any()
    one, two = pair.domain.map_raw(raw), pair.domain.map_raw(raw)
    assert one != two
    pair.put(ONE, (raw.base_address, one))
    pair.domain.unmap_key(one)
    late = pair.endpoint.write(ONE * 5, pair.handle, (8, one))
    assert isinstance(error_of(late), pyfab.KeyRejectedError)
    pair.put(ONE * 2, (16, two))
    pair.endpoint.write_many(
        pair.handle, (0, two), ONE * 3, np.array([24]), np.array([0]), np.array([8])
    ).result(TIMEOUT)
    assert exposed.content().tolist() == [1, 0, 2, 3, 0, 0, 0, 0]
    for wrong in (one, 1, exposed.key):
        with pytest.raises(pyfab.InvalidArgumentError):
            pair.domain.unmap_key(wrong)
    pair.domain.unmap_key(two)


@pytest.mark.req("MR-50", "MR-51", "MR-52")
@pytest.mark.parametrize(
    "settings", [{}, {"mr_key_size": 4}, {"mr_mode": MRMode.RAW}, {"mr_mode": MRMode.BASIC}], ids=str
)
def test_any_region_has_a_raw_key(open_pair, settings):
    pair = open_pair(**settings)
    size = pair.domain.info.mr_key_size
    with pair.domain.register(np.zeros(8), Access.REMOTE) as region:
        for small in (0, 1, size - 1):
            with pytest.raises(pyfab.TooSmallError) as failure:
                region.raw_attr(small)
            assert failure.value.needed == size
        assert region.raw_attr(size) == region.raw_attr() == region.raw_attr(size + 9)
        assert len(region.raw_attr().key) == size
    exposed = pair.expose(np.zeros(8))
    raw = pair.peer.run(raw_of, exposed.name)
    key = pair.domain.map_raw(raw)
    pair.put(np.ones(8), (raw.base_address, key))
    assert exposed.content().all()
    pair.domain.unmap_key(key)


@pytest.mark.req("MR-54")
@pytest.mark.parametrize("mode", [MRMode.SCALABLE, MRMode.RAW])
def test_a_domain_with_mapped_keys_is_busy(mode):
    domain = pyfab.Domain("shm", mr_mode=mode)
    with domain.register(np.zeros(8), Access.REMOTE) as region:
        key = domain.map_raw(region.raw_attr())
    with pytest.raises(pyfab.BusyError):
        domain.close()
    domain.unmap_key(key)
    domain.close()


@pytest.mark.req("MR-55")
def test_damaged_raw_keys_are_refused(open_pair):
    pair = open_pair(mr_mode=MRMode.RAW)
    exposed = pair.expose(np.zeros(8, np.int64))
    raw = pair.peer.run(raw_of, exposed.name).key
    generator = np.random.default_rng(1)
    for turn in range(10_000):
        damaged = bytearray(raw)
        for _ in range(generator.integers(1, 4)):
            damaged[generator.integers(len(damaged))] ^= generator.integers(1, 256)
        damaged = damaged[: generator.integers(len(damaged) + 1)] if turn % 3 == 0 else damaged
        if damaged == raw:
            continue
        try:
            key = pair.domain.map_raw(bytes(damaged))
        except pyfab.InvalidArgumentError:
            continue
        assert len(damaged) < len(raw), "a checksum tells all that is as long as a key"
        assert error_of(pair.endpoint.write(ONE, pair.handle, (0, key)))
        pair.domain.unmap_key(key)
    assert not exposed.content().any()


@pytest.mark.req("MR-56")
def test_raw_keys_take_no_flags():
    with pyfab.Domain("shm") as domain:
        with domain.register(np.zeros(8), Access.REMOTE) as region:
            with pytest.raises(pyfab.BadFlagsError):
                region.raw_attr(flags=1)
            with pytest.raises(pyfab.BadFlagsError):
                domain.map_raw(region.raw_attr(), flags=1)
        domain.close()  # nothing was mapped: with a mapped key it would be busy


# --- what has to be bound and enabled


def expose_events(target, flags):
    memory = np.zeros(8, np.int64)
    region = target.domain.register(memory, Access.REMOTE, flags=flags)
    target.kept["events"] = memory, region, target.domain.counter()
    return region.remote, region.enabled


def bind_events(target):
    _, region, counter = target.kept["events"]
    region.bind(counter, RMAEvent.REMOTE_WRITE)


def bind_own_endpoint(target):
    target.kept["events"][1].bind(target.endpoint)


def enable_events(target):
    target.kept["events"][1].enable()


def events(target):
    memory, region, counter = target.kept["events"]
    return memory.copy(), region.enabled, counter.value


def end_events(target):
    _, region, counter = target.kept.pop("events")
    counter.close()
    region._end()


def state_error(function, *arguments):
    with pytest.raises(pyfab.FabricError) as failure:
        function(*arguments)
    return failure.value.name


@pytest.mark.req("MR-38", "MR-62")
def test_a_region_with_events_starts_disabled(open_pair):
    pair = open_pair(mr_mode=MRMode.RMA_EVENT)
    run = pair.peer.run
    remote, enabled = run(expose_events, MRFlag.RMA_EVENT)
    assert not enabled

    def refused():
        return isinstance(error_of(pair.endpoint.write(ONE, pair.handle, remote[:1])), pyfab.KeyRejectedError)

    assert refused()
    assert state_error(run, enable_events) == "FI_EOPBADSTATE"
    run(bind_events)
    assert refused()
    run(enable_events)
    pair.put(ONE, remote[:1])
    memory, enabled, value = run(events)
    assert memory[0] == 1
    assert enabled
    assert value == 1
    assert state_error(run, bind_events) == "FI_EOPBADSTATE"
    assert state_error(run, enable_events) == "FI_EOPBADSTATE"
    run(end_events)


@pytest.mark.req("MR-38")
def test_a_region_without_events_takes_no_counter(open_pair):
    pair = open_pair(mr_mode=MRMode.RMA_EVENT)
    remote, enabled = pair.peer.run(expose_events, MRFlag(0))
    assert enabled
    assert state_error(pair.peer.run, bind_events) == "FI_EINVAL"
    pair.peer.run(enable_events)  # changes nothing
    pair.put(ONE, remote[:1])
    assert pair.peer.run(events)[2] == 0
    pair.peer.run(end_events)


def second_endpoint(target):
    target.kept["sibling"] = target.domain.endpoint()
    return target.kept["sibling"].address


def end_sibling(target):
    target.kept.pop("sibling").close()


@pytest.mark.req("MR-39")
def test_a_region_is_reached_through_its_endpoint_only(open_pair):
    pair = open_pair(mr_mode=MRMode.ENDPOINT)
    sibling = pair.endpoint.av.insert(pair.peer.run(second_endpoint))
    exposed = pair.expose(np.zeros(8, np.int64))
    to = exposed.remote[:1]
    for peer in (pair.handle, sibling):
        assert isinstance(error_of(pair.endpoint.write(ONE, peer, to)), pyfab.KeyRejectedError)
    pair.peer.run(bind_and_enable, exposed.name)
    pair.put(ONE, to)
    for start in (
        lambda: pair.endpoint.write(ONE * 9, sibling, to),
        lambda: pair.endpoint.read(ONE.copy(), sibling, to),
        lambda: pair.endpoint.atomic(AtomicOp.SUM, ONE, sibling, to),
    ):
        assert isinstance(error_of(start()), pyfab.KeyRejectedError)
    assert exposed.content()[0] == 1
    pair.peer.run(end_sibling)


@pytest.mark.req("MR-40")
def test_enable_needs_everything_that_the_modes_ask_for(open_pair):
    pair = open_pair(mr_mode=MRMode.RMA_EVENT | MRMode.ENDPOINT)
    run = pair.peer.run
    for order in ([], [bind_events], [bind_own_endpoint]):
        run(expose_events, MRFlag.RMA_EVENT)
        for step in order:
            run(step)
        assert state_error(run, enable_events) == "FI_EOPBADSTATE"
        run(end_events)
    for flags, order in (
        (MRFlag.RMA_EVENT, [bind_own_endpoint, bind_events]),
        (MRFlag.RMA_EVENT, [bind_events, bind_own_endpoint]),
        (MRFlag(0), [bind_own_endpoint]),
    ):
        remote, _ = run(expose_events, flags)
        for step in order:
            run(step)
        run(enable_events)
        pair.put(ONE, remote[:1])
        assert run(events)[2] == bool(flags)
        run(end_events)


def silent_endpoint(target):
    target.kept["sibling"] = target.domain.endpoint(caps=Caps.RMA | Caps.ATOMIC)
    return target.kept["sibling"].address


@pytest.mark.req("MR-60")
def test_only_an_endpoint_for_events_counts(open_pair):
    pair = open_pair()
    silent = pair.endpoint.av.insert(pair.peer.run(silent_endpoint))
    remote, _ = pair.peer.run(expose_events, MRFlag(0))
    pair.peer.run(bind_events)
    pair.put(ONE, remote[:1])
    pair.endpoint.write(ONE, silent, remote[1:2]).result(TIMEOUT)
    pair.endpoint.atomic(AtomicOp.SUM, ONE, silent, remote[2:3]).result(TIMEOUT)
    memory, _, value = pair.peer.run(events)
    assert memory[:3].all()
    assert value == 1
    pair.peer.run(end_sibling)
    pair.peer.run(end_events)


@pytest.mark.req("MR-61", "MR-63")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_what_cannot_be_bound(spec):
    with (
        pyfab.Domain(spec) as domain,
        pyfab.Domain(spec) as other,
        domain.register(np.zeros(8), Access.REMOTE) as region,
        domain.counter() as counter,
        other.counter() as foreign,
        domain.endpoint() as endpoint,
        other.endpoint() as elsewhere,
    ):
        for flags in (0, RMAEvent.REMOTE_READ, RMAEvent.REMOTE_READ | RMAEvent.REMOTE_WRITE, 64):
            with pytest.raises(pyfab.BadFlagsError):
                region.bind(counter, flags)
        with pytest.raises(pyfab.BadFlagsError):
            region.bind(endpoint, RMAEvent.REMOTE_WRITE)
        with pytest.raises(pyfab.InvalidArgumentError):
            region.bind(foreign, RMAEvent.REMOTE_WRITE)
        with pytest.raises(pyfab.InvalidArgumentError):
            region.bind(elsewhere)
        with pytest.raises(pyfab.InvalidArgumentError, match="ENDPOINT"):
            region.bind(endpoint)
    with (
        pyfab.Domain(spec, caps=Caps.RMA) as domain,
        domain.register(np.zeros(8), Access.REMOTE) as region,
        domain.counter() as counter,
        pytest.raises(pyfab.FabricError) as failure,
    ):
        region.bind(counter, RMAEvent.REMOTE_WRITE)
    assert failure.value.name == "FI_ENOSYS"


@pytest.mark.req("MR-8")
@pytest.mark.parametrize("flags", [4, 1 << 16, 1 << 20, 3 << 30])
def test_unknown_flags_are_refused(flags):
    with pyfab.Domain("shm") as domain, pytest.raises(pyfab.BadFlagsError):
        domain.register(np.zeros(8), Access.REMOTE, flags=flags)


@pytest.mark.req("MR-8")
def test_persistence_needs_the_capability():
    with pyfab.Domain("shm", caps=Caps.RMA) as domain, pytest.raises(pyfab.BadFlagsError):
        domain.register(np.zeros(8), Access.REMOTE, flags=MRFlag.PMEM)


@pytest.mark.req("MR-67")
def test_a_region_with_an_open_endpoint_is_busy():
    with pyfab.Domain("shm", mr_mode=MRMode.ENDPOINT) as domain:
        endpoint = domain.endpoint()
        region = domain.register(np.zeros(8), Access.REMOTE)
        region.bind(endpoint)
        region.enable()
        with pytest.raises(pyfab.BusyError):
            region.close()
        endpoint.close()
        region.close()
        with domain.endpoint() as endpoint, domain.register(np.zeros(8), Access.REMOTE) as region:
            region.bind(endpoint)  # leaving the block detaches it


# --- keys of authorization


def expose_for(target, auth_key):
    memory = np.zeros(8, np.int64)
    target.kept["for"] = memory, target.domain.register(memory, Access.REMOTE, auth_key=auth_key)
    return target.kept["for"][1].remote


def keyed_endpoint(target, auth_key):
    target.kept["sibling"] = target.domain.endpoint(auth_key=auth_key)
    return target.kept["sibling"].address


def end_for(target):
    memory, region = target.kept.pop("for")
    region.close()
    return memory


@pytest.mark.req("MR-68")
@pytest.mark.parametrize("domain_key", [None, b"of the domain"])
def test_a_region_with_a_key_of_its_own(open_pair, domain_key):
    pair = open_pair(auth_key=domain_key)
    address = pair.peer.run(keyed_endpoint, b"special")
    remote = pair.peer.run(expose_for, b"special")
    with pair.domain.endpoint(auth_key=b"special") as endpoint:
        endpoint.write(ONE, endpoint.av.insert(address), remote[:1]).result(TIMEOUT)
    ordinary = pair.endpoint.write(ONE * 5, pair.handle, remote[:1])
    assert isinstance(error_of(ordinary), pyfab.KeyRejectedError)
    for key in (None, b"wrong"):
        with pair.domain.endpoint(auth_key=key) as endpoint:
            try:
                error = error_of(endpoint.write(ONE * 5, endpoint.av.insert(address), remote[:1]))
            except pyfab.FabricError as refusal:
                error = refusal
            assert error is not None
    assert pair.peer.run(end_for)[0] == 1
    remote = pair.peer.run(expose_for, b"")  # that of the domain
    pair.put(ONE, remote[:1])
    assert pair.peer.run(end_for)[0] == 1
    pair.peer.run(end_sibling)


@pytest.mark.req("MR-68")
def test_keys_of_regions_are_ignored_for_old_programs(open_pair):
    pair = open_pair(api_version=(1, 4))
    remote = pair.peer.run(expose_for, b"special")
    pair.put(ONE, remote[:1])
    assert pair.peer.run(end_for)[0] == 1


# --- one call for everything


@pytest.mark.req("MR-3")
def test_all_arguments_in_one_object():
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        endpoint.av.insert(endpoint.address)
        for access in (Access.REMOTE_READ, Access.REMOTE_WRITE, Access.REMOTE):
            outcomes = []
            for register in (
                lambda memory, rights=access: domain.register(memory, rights, key=9),
                lambda memory, rights=access: domain.register([memory], rights, key=9),
                lambda memory, rights=access: domain.register(pyfab.MRAttr(memory, rights, key=9)),
                lambda memory, rights=access: domain.register(
                    pyfab.MRAttr([memory], rights, key=9, offset=0, flags=MRFlag(0), auth_key=b"", context=1)
                ),
            ):
                with register(np.arange(8)) as region:
                    starts = (
                        endpoint.write(ONE, 0, (0, 9)),
                        endpoint.read(ONE.copy(), 0, (0, 9)),
                        endpoint.atomic(AtomicOp.SUM, ONE, 0, (0, 9)),
                        endpoint.write(ONE, 0, (60, 9)),
                    )
                    outcomes.append([region.key, region.nbytes, *(type(error_of(start)) for start in starts)])
            assert all(outcome == outcomes[0] for outcome in outcomes)
        for wrong in (
            pyfab.MRAttr(np.zeros(8), Access.REMOTE, offset=4),
            pyfab.MRAttr([], Access.REMOTE),
            pyfab.MRAttr(np.zeros(8), 64),
        ):
            with pytest.raises(pyfab.InvalidArgumentError):
                domain.register(wrong)


@pytest.mark.req("MR-10")
@pytest.mark.parametrize("mode", [MRMode.SCALABLE, MRMode.ALLOCATED | MRMode.MMU_NOTIFY])
def test_failing_calls_leave_nothing(mode):
    reserved = Reserved(1)
    with pyfab.Domain("shm", mr_mode=mode) as domain, domain.register(np.zeros(8), Access.REMOTE, key=1):
        before = domain.stats()["regions"]
        for turn in range(10_000):
            key, memory = 2, [np.zeros(8), np.zeros(0)]
            if turn % 3 == 0:
                key, memory = 1, np.zeros(8)
            elif turn % 3 == 1 and mode:
                memory = reserved.range
            with pytest.raises(pyfab.FabricError):
                domain.register(memory, Access.REMOTE, key=key)
        assert domain.stats()["regions"] == before
        domain.register(np.zeros(8), Access.REMOTE, key=2).close()
    reserved.unmap()


@pytest.fixture
def only_given_away():
    """The interpreter takes its lock from nobody: another thread runs only while a call has let go of it."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(10 * TIMEOUT)
    yield
    sys.setswitchinterval(former)


@pytest.mark.req("MR-84")
@pytest.mark.usefixtures("only_given_away")
def test_other_threads_run_while_memory_is_registered():
    """The look at the pages goes through all mappings below them, of which there are many here."""
    memory, below = Reserved(1), Reserved(20_000)
    memory.back()
    assert below.address < memory.address
    for page in range(0, 20_000, 2):
        below.back(page, 1)
    turns, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)  # gives the lock back

    def ran_during(call):
        before = turns[0]
        result = call()
        return turns[0] != before, result

    def until_one_ran(attempt):
        deadline = time.monotonic() + TIMEOUT
        while not attempt():
            assert time.monotonic() < deadline

    def register():
        ran, region = ran_during(lambda: domain.register(memory.range, Access.REMOTE))
        region.close()
        return ran

    def refresh():
        """What else takes the region waits for it."""
        while not stop.is_set():
            region.refresh()

    def bind():
        with suppress(pyfab.FabricError):  # there is room for a few
            region.bind(counter, RMAEvent.REMOTE_WRITE)

    thread = threading.Thread(target=count)
    with (
        pyfab.Domain("shm", mr_mode=MRMode.ALLOCATED | MRMode.MMU_NOTIFY) as domain,
        domain.counter() as counter,
    ):
        thread.start()
        try:
            until_one_ran(register)
            with domain.register(memory.range, Access.REMOTE) as region:
                until_one_ran(lambda: ran_during(region.refresh)[0])
                refreshing = threading.Thread(target=refresh)
                refreshing.start()
                for call in (lambda: region.remote, bind, region.enable):
                    until_one_ran(lambda call=call: ran_during(call)[0])
                stop.set()
                refreshing.join()
        finally:
            stop.set()
            thread.join()
    memory.unmap()
    below.unmap()


# --- groups and windows, which do without what the modes ask of programs


def use_windows(spec, mode, rank, meeting):
    """Blocking, queued, atomic and notified operations on windows of both kinds of memory; large things that are told to all."""
    with pyfab.Domain(spec, mr_mode=mode) as domain, pyfab.Group(rank, 2, meeting, domain) as group:
        other = 1 - rank
        for memory in ({"array": np.zeros(10)}, {"shape": (10,)}):
            with group.window(**memory, counters=1) as win:
                win[other][2:5] = np.full(3, rank)
                win[other].put(np.full(2, 7.0), np.s_[6:8]).result(TIMEOUT)
                win[0].fetch_add(1.0, 9)
                win[other].put(np.ones(1), np.s_[0:1], notify=0).result(TIMEOUT)
                win.counters[0].wait(1, TIMEOUT)
                win.fence()
                expected = np.array([1, 0, other, other, other, 0, 7, 7, 0, 2 if rank == 0 else 0])
                assert (win.local == expected).all(), win.local
                assert win[other][9] == 2 - win.local[9]
        told = group.allgather(b"x" * 100_000 + bytes([rank]))
        assert [len(one) for one in told] == [100_001] * 2
        # Regions of the program itself are as the domain demands all the same.
        region = domain.register(np.zeros(8), Access.REMOTE)
        assert (region.key == pyfab.KEY_NOTAVAIL) == bool(mode & MRMode.RAW)
        region.close()


@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
@pytest.mark.parametrize("mode", [*BITS, MRMode(sum(BITS))], ids=str)
def test_windows_meet_every_mode_themselves(spec, mode, tmp_path):
    meeting = f"file://{tmp_path}/meeting"
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(use_windows, spec, mode, rank, meeting) for rank in range(2)]:
            done.result(TIMEOUT)
