"""Memory that needs synchronisation: who sees what, before and after the calls, over every way for the bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from pyfab import Access, AtomicOp, Counter, MRMode, RMAEvent
from pyfab.testing import Exposed, Target
from support import TIMEOUT, Combination, Pair, collect, random_bytes

Range = tuple[int, int]  # offset and length within an exposed array
ALL: Range = (0, 1 << 30)


@pytest.fixture(scope="module")
def shared_pair(combination: Combination) -> Iterator[Pair]:
    """Both sides have memory that needs synchronisation."""
    cache = {"thread": "device", "process": "cpu"}[combination.where]
    with Pair(combination, coherent=False, cache=cache) as pair:
        yield pair


# What the owner of the memory does. None of these calls does what another one is for.


def load(target: Target, name: int) -> np.ndarray:
    return target.kept[name].array.copy()


def store(target: Target, name: int, offset: int, values: Any, *, elsewhere: bool = False) -> None:
    """By this thread, or by another one that has ended on return."""
    array = target.kept[name].array

    def assign() -> None:
        array[offset : offset + len(values)] = values

    if elsewhere:
        thread = threading.Thread(target=assign)
        thread.start()
        thread.join()
    else:
        assign()


def sync(target: Target, name: int, side: Literal["read", "write"], *ranges: Range) -> None:
    region = target.kept[name].region
    call = target.domain.sync_rdma_read if side == "read" else target.domain.sync_rdma_write
    call([region[offset : offset + length] for offset, length in ranges])


class Owner:
    """An exposed array and what its owner does with it."""

    def __init__(self, pair: Pair, content: Any) -> None:
        self.pair = pair
        self.exposed: Exposed = pair.expose(content)
        self.remote = self.exposed.remote

    def load(self) -> bytes:
        return self.pair.peer.run(load, self.exposed.name).tobytes()

    def store(self, offset: int, values: bytes, *, elsewhere: bool = False) -> None:
        self.pair.peer.run(store, self.exposed.name, offset, list(values), elsewhere=elsewhere)

    def sync_read(self, *ranges: Range) -> None:
        self.pair.peer.run(sync, self.exposed.name, "read", *(ranges or [ALL]))

    def sync_write(self, *ranges: Range) -> None:
        self.pair.peer.run(sync, self.exposed.name, "write", *(ranges or [ALL]))

    def put(self, offset: int, values: bytes) -> None:
        self.pair.put(np.frombuffer(values, np.uint8), self.remote.bytes(offset, offset + len(values)))

    def get(self) -> bytes:
        out = np.empty(self.remote.nbytes, np.uint8)
        self.pair.get(out, self.remote)
        return out.tobytes()


@pytest.fixture
def owner(pair: Pair) -> Owner:
    return Owner(pair, np.frombuffer(b"." * 64, np.uint8))


@pytest.mark.req("SYNC-15", "SYNC-17")
def test_stores_are_seen_by_gets_after_the_call(owner: Owner) -> None:
    owner.store(0, b"stored")
    assert owner.get()[:6] == b"......"
    owner.sync_read()
    assert owner.get() == b"stored" + b"." * 58
    owner.store(3, b"RED")
    assert owner.get()[:6] == b"stored"


@pytest.mark.req("SYNC-16")
def test_other_stores_are_not_shown(owner: Owner) -> None:
    owner.store(8, b"one")
    owner.store(11, b"two")
    owner.sync_read((8, 3))
    assert owner.get()[8:14] == b"one..."
    owner.sync_read((13, 1), (20, 1))
    assert owner.get()[8:14] == b"one..o"


@pytest.mark.req("SYNC-18")
def test_stores_of_another_thread_are_covered(owner: Owner) -> None:
    owner.store(4, b"thread", elsewhere=True)
    owner.sync_read()
    assert owner.get()[4:10] == b"thread"


@pytest.mark.req("SYNC-19")
def test_puts_are_seen_by_loads_after_the_call(owner: Owner) -> None:
    owner.put(60, b"put!")
    assert owner.load()[60:] == b"...."
    owner.sync_write((61, 2))
    assert owner.load()[60:] == b".ut."
    owner.sync_write()
    assert owner.load()[60:] == b"put!"


@pytest.mark.req("SYNC-20")
def test_one_call_covers_several_puts(owner: Owner) -> None:
    for turn in range(5):
        owner.put(turn * 10, b"%d" % turn)
    owner.sync_write(*((turn * 10, 1) for turn in range(5)))
    assert owner.load()[:50:10] == b"01234"


@pytest.mark.req("SYNC-21")
def test_stores_before_a_put_are_kept_by_the_call_before_it(owner: Owner) -> None:
    owner.store(0, b"a" * 32)
    owner.sync_write()
    owner.put(32, b"b" * 32)
    owner.sync_write()
    assert owner.load() == b"a" * 32 + b"b" * 32 == owner.get()


@pytest.mark.req("SYNC-22")
def test_stores_after_a_put_and_its_call_reach_peers(owner: Owner) -> None:
    owner.put(0, b"put and more")
    owner.sync_write()
    owner.store(0, b"own")
    owner.sync_read()
    assert owner.get()[:12] == b"own and more" == owner.load()[:12]


@pytest.mark.req("SYNC-24")
def test_neighbouring_stores_are_not_lost(owner: Owner) -> None:
    owner.put(32, b"p")
    owner.store(0, b"s" * 32)
    owner.store(33, b"s" * 31)
    owner.sync_write((32, 1))
    assert owner.load() == b"s" * 32 + b"p" + b"s" * 31
    assert owner.get() == b"." * 32 + b"p" + b"." * 31
    owner.sync_read()
    assert owner.get() == owner.load()


def test_atomics_act_on_what_peers_see(pair: Pair) -> None:
    numbers = Owner(pair, np.arange(4, dtype=np.int64))
    former = np.zeros(4, np.int64)
    pair.endpoint.fetch_atomic(AtomicOp.SUM, np.full(4, 10), former, pair.handle, numbers.remote).result(
        TIMEOUT
    )
    assert former.tolist() == [0, 1, 2, 3]
    assert np.frombuffer(numbers.load(), np.int64).tolist() == [0, 1, 2, 3]
    numbers.sync_write()
    assert np.frombuffer(numbers.load(), np.int64).tolist() == [10, 11, 12, 13]


def test_large_arrays(pair: Pair) -> None:
    size = 3_000_000
    first, second = random_bytes(size, 1), random_bytes(size, 2)
    owner = Owner(pair, first)
    owner.put(0, second.tobytes())
    assert owner.load() == first.tobytes()
    owner.sync_write((0, size // 2))
    half = owner.load()
    assert half[: size // 2] == second[: size // 2].tobytes()
    assert half[size // 2 :] == first[size // 2 :].tobytes()
    owner.sync_write()
    assert owner.load() == second.tobytes() == owner.get()


def two_zones(target: Target) -> list[Any]:
    arrays = [np.zeros(16, np.uint8) for _ in range(3)]
    accesses = [Access.REMOTE, Access.REMOTE_WRITE | Access.REMOTE_READ, Access.REMOTE_READ]
    regions = [target.domain.register(a, access) for a, access in zip(arrays, accesses, strict=True)]
    arrays.append(np.zeros(16, np.uint8))
    regions.append(target.domain.register(arrays[3], Access.REMOTE, auth_key=b"of other peers"))
    target.kept["zones"] = regions, arrays
    return [region.remote for region in regions[:3]]


def store_in_zones(target: Target) -> None:
    regions, arrays = target.kept.pop("zones")
    for array in arrays:
        array[:] = 7
    target.domain.sync_rdma_read(
        [regions[1], regions[0][2:6], regions[2], regions[0][4:8], regions[1], regions[3]]
    )
    target.kept["regions"] = regions


def close_zones(target: Target) -> None:
    for region in target.kept.pop("regions"):
        region.close()


@pytest.mark.req("SYNC-6")
def test_segments_of_several_regions_that_repeat_and_overlap(pair: Pair) -> None:
    remotes = pair.peer.run(two_zones)
    pair.peer.run(store_in_zones)
    seen = [np.zeros(16, np.uint8) for _ in remotes]
    for out, remote in zip(seen, remotes, strict=True):
        pair.get(out, remote)
    pair.peer.run(close_zones)
    assert seen[0].tolist() == [0] * 2 + [7] * 6 + [0] * 8
    assert (seen[1] == 7).all()
    assert (seen[2] == 7).all()


# SYNC-32: three ways to learn of a put, each of which ends in the call for what was put.


def counted(target: Target, name: int) -> None:
    counter = target.kept["counter"] = target.domain.counter()
    target.kept[name].region.bind(counter, RMAEvent.REMOTE_WRITE)


def take_counted(target: Target, name: int, count: int) -> np.ndarray:
    counter: Counter = target.kept.pop("counter")
    counter.wait(count, TIMEOUT)
    target.domain.sync_rdma_write([target.kept[name].region])
    counter.close()
    return load(target, name)


def take_announced(target: Target, name: int, remote_data: bool) -> np.ndarray:
    exposure = target.kept[name]
    if remote_data:  # offset and length fit its 64 bits
        (entry,) = collect(target.endpoint.cq, 1)
        offset, length = divmod(entry.data, 1 << 32)
    else:  # the last 16 bytes of the array are the letter box
        box = exposure.array[-16:].view(np.uint64)
        letter_box = exposure.region[exposure.array.nbytes - 16 :]
        while not box[1]:
            target.domain.sync_rdma_write([letter_box])
        offset, length = (int(word) for word in box)
    target.domain.sync_rdma_write([exposure.region[offset : offset + length]])
    return load(target, name)


@pytest.mark.req("SYNC-32")
@pytest.mark.parametrize("way", ["message", "remote data", "counter"])
def test_ways_to_learn_of_a_put(pair: Pair, way: str) -> None:
    owner = Owner(pair, np.zeros(64, np.uint8))
    name, piece = owner.exposed.name, owner.remote.bytes(8, 12)
    if way == "counter":
        pair.peer.run(counted, name)
        owner.put(8, b"news")
        seen = pair.peer.run(take_counted, name, 1)
    elif way == "remote data":
        news = np.frombuffer(b"news", np.uint8)
        pair.endpoint.write(news, pair.handle, piece, data=8 << 32 | 4).result(TIMEOUT)
        seen = pair.peer.run(take_announced, name, True)
    else:
        owner.put(8, b"news")
        pair.put(np.array([8, 4], np.uint64), owner.remote.bytes(48, 64))
        seen = pair.peer.run(take_announced, name, False)
    assert seen[8:12].tobytes() == b"news"


@pytest.mark.req("SYNC-3")
def test_addresses_are_virtual_in_both_modes(combination: Combination) -> None:
    for mode in (MRMode.SCALABLE, MRMode.VIRT_ADDR):
        with Pair(combination, coherent=False, mr_mode=mode) as pair:
            owner = Owner(pair, np.frombuffer(b"." * 16, np.uint8))
            assert owner.remote.base == (owner.exposed.address if mode else 0)
            pair.peer.run(store_and_show, owner.exposed.name)
            assert owner.get() == b"...x...........x"


def store_and_show(target: Target, name: int) -> None:
    from pyfab import Triplet

    exposure = target.kept[name]
    exposure.array[[2, 3, 15]] = ord("x")
    address = exposure.array.ctypes.data
    context = exposure.region.lmr_context
    target.domain.sync_rdma_read([Triplet(context, address + 3, 1), Triplet(context, address + 15, 1)])
