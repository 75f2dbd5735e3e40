"""The synchronisation calls as Python has them: their arguments, what they name, and what they do."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from numpy.typing import NDArray
from pyfab import Access, Triplet
from pyfab.testing import Peer, Target
from sync_memory import TIMEOUT, Memory


def calls(domain: pyfab.Domain) -> list[Callable[[Any], None]]:
    return [domain.sync_rdma_read, domain.sync_rdma_write]


# --- triplets


@pytest.mark.req("SYNC-2")
def test_triplets_pack_into_sixteen_bytes() -> None:
    triplet = Triplet(lmr_context=0x01020304, virtual_address=2**64 - 1, segment_length=2**32 - 1)
    assert len(triplet.pack()) == 16
    assert Triplet.unpack(triplet.pack()) == triplet == pickle.loads(pickle.dumps(triplet))
    assert np.frombuffer(triplet.pack(), "u8,u4,u4").tolist() == [(2**64 - 1, 2**32 - 1, 0x01020304)]
    with pytest.raises(pyfab.InvalidArgumentError, match="does not fit"):
        Triplet(1, 0, 2**32).pack()
    with pytest.raises(pyfab.InvalidArgumentError, match="has 16"):
        Triplet.unpack(bytes(15))
    with pytest.raises(dataclasses.FrozenInstanceError):
        triplet.segment_length = 1  # type: ignore[misc]
    for fields in ((-1, 0, 0), (2**32, 0, 0), (1, 2**64, 0), (1, 0, 2**64), (1, 0, -1)):
        with pytest.raises(pyfab.InvalidArgumentError, match="bits"):
            Triplet(*fields)
    with pytest.raises(TypeError):
        Triplet(1, 0, 1.5)  # type: ignore[arg-type]


@pytest.mark.req("SYNC-2")
def test_one_triplet_covers_more_than_4_gib() -> None:
    sparse = np.zeros(5 << 30, np.uint8)
    with pyfab.Domain("shm") as domain, domain.register(sparse, Access.REMOTE) as region:
        whole = Triplet(region.lmr_context, region.address, 5 << 30)
        for call in calls(domain):
            call([whole])
            with pytest.raises(pyfab.InvalidArgumentError):
                call([dataclasses.replace(whole, segment_length=(5 << 30) + 1)])


# --- arguments


@pytest.mark.req("SYNC-1", "SYNC-5")
def test_no_segments_and_none(either: Memory) -> None:
    for call in calls(either.domain):
        call([])
        call(())
        call(iter([either.region]))
        with pytest.raises(pyfab.InvalidArgumentError, match="None") as caught:
            call(None)
        assert caught.value.argument == "segments"


@pytest.mark.req("SYNC-4")
def test_a_segment_of_no_bytes_is_always_valid(either: Memory) -> None:
    context = either.region.lmr_context
    either.array[:] = 1
    for call in calls(either.domain):
        call(
            [Triplet(0xFFFFFFFF, 0, 0), Triplet(context, 2**64 - 1, 0), either.region[8:8], either.array[:0]]
        )
        call([np.empty((3, 0))])
    assert not either.get().any() or either.domain.info.needs_sync_rdma_read is False


@pytest.mark.req("SYNC-8")
def test_a_closed_domain_comes_before_bad_segments() -> None:
    with Memory() as memory:
        bad = [Triplet(1, 0, 8), memory.region]
    for call in calls(memory.domain):
        for segments in (bad, None, [object()], []):
            with pytest.raises(pyfab.ClosedError) as caught:
                call(segments)
            assert caught.value.argument == "domain"


FOREIGN = """
import os, pyfab
with pyfab.Domain("shm", progress="manual") as domain:
    child = os.fork()
    if not child:
        try:
            for call in (domain.sync_rdma_read, domain.sync_rdma_write):
                for segments in ([pyfab.Triplet(1, 0, 8)], None, [object()], []):
                    try:
                        call(segments)
                    except pyfab.ClosedError as error:
                        assert error.argument == "domain" and "parent process" in str(error)
                    else:
                        os._exit(2)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.req("SYNC-8")
def test_the_domain_of_another_process_comes_before_bad_segments() -> None:
    subprocess.run([sys.executable, "-c", FOREIGN], check=True, timeout=TIMEOUT)


BAD: dict[str, Callable[[Memory], Any]] = {
    "one byte before": lambda m: Triplet(m.region.lmr_context, m.region.address - 1, 2),
    "one byte after": lambda m: Triplet(m.region.lmr_context, m.region.address, 65),
    "behind": lambda m: Triplet(m.region.lmr_context, m.region.address + 64, 1),
    "unknown": lambda m: Triplet(m.region.lmr_context + 1000, m.region.address, 1),
    "none": lambda m: Triplet(0, m.region.address, 1),
    "wraps": lambda m: Triplet(m.region.lmr_context, 2**64 - 4, 8),
    "wraps to the end": lambda m: Triplet(m.region.lmr_context, m.region.address + 8, 2**64 - 8),
    "slice made by hand": lambda m: pyfab.RegionSlice(m.region, 60, 5),
    "negative": lambda m: (m.region, -1, 5),
    "array elsewhere": lambda _: np.zeros(8),
    "array that sticks out": lambda m: np.lib.stride_tricks.as_strided(m.array, (65,), (1,)),
}


@pytest.mark.req("SYNC-9", "SYNC-10", "SYNC-12", "SYNC-13", "SYNC-14")
@pytest.mark.parametrize("bad", BAD)
def test_bad_segments_are_refused_whole(either: Memory, bad: str) -> None:
    either.array[:] = 1
    if either.domain.info.needs_sync_rdma_write:
        either.put(0, 8, 2)
    for call in calls(either.domain):
        with pytest.raises(pyfab.InvalidArgumentError, match=r"segments\[1000\]") as caught:
            call([*[either.region] * 500, *[either.array[::8]] * 500, BAD[bad](either), either.region])
        assert (caught.value.argument, caught.value.index) == ("segments", 1000)
    assert (either.array == 1).all()
    if either.domain.info.needs_sync_rdma_read:
        assert either.get().tolist() == [2] * 8 + [0] * 56


@pytest.mark.req("SYNC-9")
def test_closed_regions_are_refused(either: Memory) -> None:
    with either.domain.register(np.zeros(8), Access.LOCAL) as region:
        address = region.address
        for call in calls(either.domain):
            call([region, Triplet(region.lmr_context, address, 64)])
    for call in calls(either.domain):
        for segment in (region, region[1:2], Triplet(region.lmr_context, address, 1)):
            with pytest.raises(pyfab.InvalidArgumentError) as caught:
                call([either.region, segment])
            assert (caught.value.argument, caught.value.index) == ("segments", 1)


@pytest.mark.req("SYNC-11")
def test_regions_of_another_domain_are_refused(either: Memory) -> None:
    """Also of one that looks the same: the same memory, and the first region of its domain like the other."""
    with pyfab.Domain("shm") as other, other.register(either.array, Access.REMOTE) as region:
        assert region.lmr_context != either.region.lmr_context
        for call in calls(either.domain):
            for segment in (region, region[:8], Triplet(region.lmr_context, region.address, 8)):
                with pytest.raises(pyfab.InvalidArgumentError):
                    call([segment])
        other.sync_rdma_read([region])


def test_what_is_no_segment(either: Memory) -> None:
    for call in calls(either.domain):
        for segment in (object(), 5, "text", None):
            with pytest.raises(TypeError, match="a segment is"):
                call([either.region, segment])
        with pytest.raises(TypeError):
            call(5)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"cache": "disk"}, "device"),
        ({"cache_line": 0}, "power of two"),
        ({"cache_line": 24}, "power of two"),
        ({"cache_line": 2**40}, "power of two"),
    ],
)
def test_caches_that_there_are_not(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match=message):
        pyfab.Domain("shm", coherent=False, **options)


@pytest.mark.req("SYNC-27")
def test_domains_say_whether_they_need_it() -> None:
    for options, needed in (({}, False), ({"coherent": False}, True), ({"checker": True}, True)):
        with pyfab.Domain("shm", **options) as domain:
            assert (domain.info.needs_sync_rdma_read, domain.info.needs_sync_rdma_write) == (needed, needed)
    assert not any(info.needs_sync_rdma_read for info in pyfab.getinfo("shm"))


def test_durable_writes_have_no_place_there(memory: Memory) -> None:
    with pytest.raises(pyfab.NotSupportedError, match="device's view"):
        memory.domain.register(np.zeros(8), Access.REMOTE, flags=pyfab.MRFlag.PMEM)


# --- what segments name


def strided() -> dict[str, tuple[Callable[[NDArray[np.uint8]], Any], list[int]]]:
    def every(start: int, stop: int, step: int, size: int = 1) -> list[int]:
        return [i + k for i in range(start, stop, step) for k in range(size)]

    return {
        "a[::4]": (lambda a: a[::4], every(0, 64, 4)),
        "a[60:4:-8]": (lambda a: a[60:4:-8], [12, 20, 28, 36, 44, 52, 60]),
        "words": (lambda a: a.view("i4")[1::5], every(4, 64, 20, 4)),
        "columns": (lambda a: a.reshape(8, 8)[2:4, 3:6], [19, 20, 21, 27, 28, 29]),
        "transposed": (lambda a: a.reshape(4, 4, 4).transpose(2, 0, 1)[::2], every(0, 64, 2)),
        "both gaps": (
            lambda a: a.reshape(4, 4, 4)[::3, ::2, 1:],
            [1, 2, 3, 9, 10, 11, 49, 50, 51, 57, 58, 59],
        ),
        "contiguous": (lambda a: a.reshape(4, 4, 4)[1:3].T, list(range(16, 48))),
        "broadcast": (lambda a: np.broadcast_to(a[5:6], (9, 1)), [5]),
        "overlapping": (lambda a: np.lib.stride_tricks.as_strided(a[8:], (3, 4), (2, 1)), list(range(8, 16))),
        "scalar": (lambda a: a[63:].reshape(()), [63]),
        "memoryview": (lambda a: memoryview(a)[10:20:3], [10, 13, 16, 19]),
    }


@pytest.mark.req("SYNC-31")
@pytest.mark.parametrize("which", strided())
def test_arrays_stand_for_their_bytes(memory: Memory, which: str) -> None:
    of, bytes_named = strided()[which]
    assert memory.shown([of(memory.array)]) == bytes_named


@pytest.mark.req("SYNC-31")
def test_regions_and_slices(memory: Memory) -> None:
    region = memory.region
    assert memory.shown([region]) == list(range(64))
    assert memory.shown(region) == list(range(64))
    assert memory.shown([region[8:16], region[-4:], region[60:100]]) == [*range(8, 16), *range(60, 64)]
    assert memory.shown([(region, 3, 2), Triplet(region.lmr_context, region.address + 9, 1)]) == [3, 4, 9]
    assert memory.shown(region[8:4]) == []
    assert repr(region[8:16]).startswith("<RegionSlice [8:16] of <MemoryRegion")
    with pytest.raises(pyfab.InvalidArgumentError, match="step 2"):
        region[::2]
    with pytest.raises(TypeError, match="mr"):
        region[3]  # type: ignore[index]


def test_slices_are_local_buffers(either: Memory) -> None:
    with either.domain.register(np.arange(64, dtype=np.uint8), Access.ALL) as source:
        either.endpoint.write(source[8:12], either.handle, either.region.remote.bytes(0, 4)).result(TIMEOUT)
        assert either.get()[:5].tolist() == [8, 9, 10, 11, 0]


def test_regions_of_several_buffers() -> None:
    with Memory(coherent=False) as memory:
        parts = [np.zeros(10, np.uint8), np.zeros(20, np.uint8), np.zeros(30, np.uint8)]
        with memory.domain.register(parts, Access.REMOTE) as region:
            memory.region, memory.array = region, np.zeros(60, np.uint8)

            def shown(segment: Any) -> list[int]:
                for part in parts:
                    part += 1
                memory.domain.sync_rdma_read([segment])
                shown = np.flatnonzero(memory.get() == parts[0][0]).tolist()
                memory.domain.sync_rdma_read([region])
                return shown

            assert shown(region[5:35]) == list(range(5, 35))
            assert shown(region) == list(range(60))
            assert shown(parts[1][::5]) == [10, 15, 20, 25]


@pytest.mark.req("SYNC-31")
def test_an_array_in_two_regions_is_synchronised_in_both(memory: Memory) -> None:
    with memory.domain.register(memory.array[16:32], Access.REMOTE) as second:
        memory.array[20] = 5
        memory.domain.sync_rdma_read([memory.array[20:21]])
        seen = np.zeros(16, np.uint8)
        memory.endpoint.read(seen, memory.handle, second.remote).result(TIMEOUT)
        assert seen[4] == memory.get()[20] == 5


@pytest.mark.req("SYNC-7")
def test_many_segments_in_one_call() -> None:
    count = 100_000
    with Memory(2 * count, coherent=False) as memory:
        context, address = memory.region.lmr_context, memory.region.address
        memory.array[:] = 1
        memory.domain.sync_rdma_read([Triplet(context, address + 2 * i, 1) for i in range(count)])
        seen = memory.get()
        assert (seen[::2] == 1).all()
        assert not seen[1::2].any()
        memory.put(0, 2 * count, 9)
        memory.domain.sync_rdma_write([memory.array[1::2]])
        assert (memory.array[1::2] == 9).all()
        assert (memory.array[::2] == 1).all()


# --- effects that need no peer of their own


@pytest.mark.req("SYNC-23")
def test_flushes_and_invalidations() -> None:
    for cache, flushes, invalidations in (("device", 2, 1), ("cpu", 1, 2)):
        with Memory(coherent=False, cache=cache) as memory:
            memory.array[:4] = 1
            memory.put(8, 16, 2)
            memory.domain.sync_rdma_write([memory.region[:8], memory.region[8:]])
            memory.array[:4] = 3
            memory.domain.sync_rdma_read([memory.region])
            assert memory.domain.sync_stats == pyfab.SyncStats(
                1, 1, flushes, invalidations, bytes_to_device=8, bytes_to_cpu=8
            )
    with Memory() as memory:
        memory.domain.sync_rdma_read([memory.region])
        assert memory.domain.sync_stats == pyfab.SyncStats(0, 0, 0, 0, 0, 0)


@pytest.mark.req("SYNC-24")
def test_lines_of_many_bytes_lose_their_neighbours() -> None:
    for line, kept in ((1, True), (64, False)):
        with Memory(192, coherent=False, cache="cpu", cache_line=line) as memory:
            memory.array[70:80] = 1
            memory.array[[63, 128]] = 1
            memory.put(64, 65, 2)
            memory.domain.sync_rdma_write([memory.region[64:65]])
            assert memory.array[64] == 2
            assert bool(memory.array[70:80].all()) is kept
            assert memory.array[[63, 128]].all()  # in other lines


@pytest.mark.req("SYNC-34")
def test_threads_on_disjoint_ranges() -> None:
    threads, size, rounds = 8, 512, 40
    with Memory(threads * size, coherent=False) as memory:
        wrong: list[int] = []

        def work(number: int) -> None:
            start = number * size
            mine = memory.region[start : start + size]
            for turn in range(1, rounds):
                memory.array[start : start + size // 2] = turn
                memory.domain.sync_rdma_write([mine])
                memory.put(start + size // 2, start + size, turn + 100)
                memory.domain.sync_rdma_write([mine])
                expected = [turn] * (size // 2) + [turn + 100] * (size // 2)
                if memory.array[start : start + size].tolist() != expected:
                    wrong.append(number)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert wrong == []
        assert np.array_equal(memory.get(), memory.array)


SILENT = """
import ctypes, os
import numpy as np, pyfab
with pyfab.Domain("shm", progress="manual") as domain:
    region = domain.register(np.zeros(640, np.uint8), pyfab.Access.REMOTE)
    segments = [pyfab.Triplet(region.lmr_context, region.address + 64 * i, 64) for i in range(10)]
    def calls(rounds):
        for _ in range(rounds):
            domain.sync_rdma_read(segments)
            domain.sync_rdma_write(segments)
    calls(1000)
    PR_SET_SECCOMP, SECCOMP_MODE_STRICT = 22, 1
    if ctypes.CDLL(None).prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0:
        os.write(1, b"not possible here")
        os._exit(0)
    # From here on the kernel kills whoever asks it for more than read, write or exit; the end of the script is one case.
    calls(100)
    os.write(1, b"silent")
"""


@pytest.mark.req("SYNC-29")
def test_calls_that_are_not_needed_make_no_system_call() -> None:
    result = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, timeout=60)
    if result.stdout == b"not possible here":
        pytest.skip("this kernel has no strict seccomp mode")
    assert (result.stdout, result.stderr) == (b"silent", b"")


def read_after_flag(target: Target, path: str, rounds: int) -> int:
    """How often the data was not what the flag said."""
    wrong = 0
    with target.domain.register(shared := np.memmap(path, np.int64, "r+"), Access.LOCAL) as region:
        for number in range(1, rounds + 1):
            while shared[0] != number:
                pass
            target.domain.sync_rdma_write([region])
            wrong += int(shared[512] != number)
            shared[8] = number
    return wrong


@litmus
@pytest.mark.req("SYNC-26")
def test_calls_order_memory_that_processes_share(tmp_path: Path) -> None:
    turns, path = rounds(5000), str(tmp_path / "shared")
    shared = np.memmap(path, np.int64, "w+", shape=1024)
    with pyfab.Domain("shm") as domain, domain.register(shared, Access.LOCAL) as region, Peer("shm") as peer:
        peer.start(read_after_flag, path, turns)
        for number in range(1, turns + 1):
            shared[512] = number
            domain.sync_rdma_read([region])
            shared[0] = number
            while shared[8] != number:
                time.sleep(0)
        assert peer.finish(TIMEOUT) == 0


def test_registering_and_closing_leave_nothing_behind(memory: Memory) -> None:
    """Both views start equal; what was put and not synchronised goes with the region."""
    array = np.arange(64, dtype=np.uint8)
    with memory.domain.register(array, Access.REMOTE) as region:
        seen = np.zeros(64, np.uint8)
        memory.endpoint.read(seen, memory.handle, region.remote).result(TIMEOUT)
        assert np.array_equal(seen, array)
        memory.endpoint.write(np.zeros(64, np.uint8), memory.handle, region.remote).result(TIMEOUT)
    assert array.tolist() == list(range(64))


def test_read_only_memory() -> None:
    with (
        Memory(coherent=False, cache_line=64) as memory,
        memory.domain.register(b"constant" * 8, Access.REMOTE_READ) as region,
    ):
        for call in calls(memory.domain):
            call([region[3:5]])
        seen = bytearray(64)
        memory.endpoint.read(seen, memory.handle, region.remote).result(TIMEOUT)
        assert seen == b"constant" * 8
