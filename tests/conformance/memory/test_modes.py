"""What a domain demands of registered memory (fi_mr(3)): discovery negotiates the mode bits, and each works."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyfab
import pytest
from modes import BITS, ONE, bind_and_enable, error_of
from pyfab import Access, AtomicOp, MRMode
from support import TIMEOUT

BASIC_BITS = MRMode.VIRT_ADDR | MRMode.ALLOCATED | MRMode.PROV_KEY


def every_mode():
    for chosen in itertools.product([False, True], repeat=len(BITS)):
        yield MRMode(sum(bit for bit, on in zip(BITS, chosen, strict=True) if on))


# --- discovery


@pytest.mark.slow
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


@pytest.mark.slow
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
