"""Gathering from a store: the right samples, wherever they lie, and a clear error for everything else."""

from __future__ import annotations

import asyncio
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import Loader, Ragged, ShardedStore, from_raw, from_samples
from pyfab.data._placement import by_nearness, holders
from samples import COUNTS, check, cut, shard, whole

TOTAL = sum(COUNTS)


def gathers(group: pyfab.Group, replicas: Any, copy: bool) -> None:
    random = np.random.default_rng(group.rank)
    with ShardedStore(group, shard(group.rank), replicas=replicas, copy=copy) as store:
        assert len(store) == TOTAL
        assert store.counts == COUNTS
        for indices in (
            random.integers(-TOTAL, TOTAL, 300),
            np.arange(TOTAL),
            np.arange(TOTAL)[::-1],
            np.array([5]),
            np.array([], np.int64),
            np.full(40, 36),
        ):
            check(store.gather(indices), indices, TOTAL)
            check(store.gather(indices.tolist()), indices, TOTAL)
            pending = [store.gather_async(indices) for _ in range(5)]
            for gathered in pending:
                check(gathered.result(30), indices, TOTAL)
                assert gathered.done() and gathered.exception() is None and not gathered.cancelled()
        assert store[7]["label"] == 7
        assert store[-1]["label"] == TOTAL - 1
        check(store[TOTAL - 4 : 2 : -7], np.arange(TOTAL - 4, 2, -7), TOTAL)
        check(store[[3, -1, 3]], np.array([3, TOTAL - 1, 3]), TOTAL)
        check(store[np.arange(TOTAL) % 50 == 1], np.arange(1, TOTAL, 50), TOTAL)
        store.verify()
        metrics = store.metrics()
        assert metrics["samples"] > 0 and metrics["replica_samples"] == 0 and metrics["ranks_lost"] == 0
        assert "pyfab_data_samples_total" in metrics.prometheus()


def gathers_every_way(group: pyfab.Group) -> None:
    for replicas, copy in ((1, True), (1, False), (2, True), (4, False), ("node", True)):
        gathers(group, replicas, copy)


def test_gather_gives_the_samples_asked_for(links):
    pyfab.spawn(gathers_every_way, 4, links=links, timeout=90)


def fills_buffers(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank)) as store:
        indices = np.random.default_rng(3).integers(0, TOTAL, 50)
        out = {
            "image": np.zeros((60, 3, 4), np.uint8),
            "label": np.zeros(50, np.int64),
            "flag": np.zeros(50, bool),
            "tokens": np.zeros(5000, np.int32),
            "boxes": Ragged(np.zeros((500, 4), np.float32), [0, 500]),
        }
        for _ in range(3):
            batch = store.gather(indices, out)
            check(batch, indices, TOTAL)
        assert all(
            np.shares_memory(getattr(batch[n], "values", batch[n]), getattr(out[n], "values", out[n]))
            for n in out
        )
        kept = store.gather(indices)
        address = kept["label"].ctypes.data
        again = store.gather(indices)
        assert again["label"].ctypes.data != address  # somebody has the first one
        view = kept["image"][3]
        expected = view.copy()
        del kept, again
        for _ in range(20):
            store.gather(indices[::-1])
        np.testing.assert_array_equal(view, expected)

        for wrong, what in (
            (out | {"label": np.zeros(49, np.int64)}, "room for 49"),
            (out | {"label": np.zeros(50, np.int32)}, "int64"),
            (out | {"image": np.zeros((50, 4, 3), np.uint8)}, "image"),
            (out | {"tokens": np.zeros(1, np.int32)}, "room for 1 values"),
            ({"label": out["label"]}, "fields"),
        ):
            with pytest.raises(pyfab.InvalidArgumentError, match=what):
                store.gather(indices, wrong)
        read_only = np.zeros(50, np.int64)
        read_only.flags.writeable = False
        with pytest.raises(pyfab.FabricError):
            store.gather(indices, out | {"label": read_only})


@pytest.mark.slow
def test_buffers_of_the_caller_are_filled(links):
    pyfab.spawn(fills_buffers, 4, links=links, timeout=60)


def refuses(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank)) as store:
        for indices in ([TOTAL], [0, -TOTAL - 1], [2**62], np.array([2**64 - 1], np.uint64)):
            with pytest.raises(IndexError, match="out of range"):
                store.gather(indices)
        for indices in ([0.5], [[1, 2]], ["a"], 3):
            with pytest.raises(pyfab.InvalidArgumentError):
                store.gather(indices)
        for index in (TOTAL, [0, TOTAL], np.ones(3, bool), [0.5]):
            with pytest.raises(IndexError):
                store[index]
        with pytest.raises(TypeError, match="chosen by an integer, a slice, integers or a mask, not by str"):
            store["label"]
        check(store.gather([1, 2]), np.array([1, 2]), TOTAL)
    with pytest.raises(pyfab.ClosedError):
        store.gather([0])
    store.close()


@pytest.mark.slow
def test_wrong_indices_are_refused(links):
    pyfab.spawn(refuses, 4, links=links, timeout=60)


WRONG: dict[str, Any] = {
    "dtype": {"x": np.zeros((4, 2), "f4"), "y": np.zeros(4)},
    "shape": {"x": np.zeros((4, 3)), "y": np.zeros(4)},
    "names": {"x": np.zeros((4, 2)), "z": np.zeros(4)},
    "lengths": {"x": np.zeros((4, 2)), "y": np.zeros(5)},
    "records": {"x": np.zeros(4, [("a", "i4"), ("b", "f8")]), "y": np.zeros(4)},
    "objects": {"x": np.array([object()] * 4), "y": np.zeros(4)},
    "file": {"x": "nothing.npy", "y": np.zeros(4)},
    "none": {},
    "scalar": {"x": 3, "y": 4},
    "empty": {"x": np.zeros((4, 0)), "y": np.zeros(4)},
}


def mismatched(group: pyfab.Group) -> dict[str, str]:
    texts = {}
    for which, wrong in WRONG.items():
        try:
            ShardedStore(group, wrong if group.rank == 1 else {"x": np.zeros((4, 2)), "y": np.zeros(4)})
        except (pyfab.FabricError, OSError) as error:
            texts[which] = str(error)
    return texts


@pytest.mark.slow
def test_all_ranks_learn_that_one_gave_something_else():
    for rank, texts in enumerate(pyfab.spawn(mismatched, 3, links="shm", timeout=60)):
        assert texts.keys() == WRONG.keys()
        assert rank == 1 or all("rank 1" in text for text in texts.values()), texts


@pytest.mark.parametrize(
    "values, offsets",
    [
        (np.zeros(5), [0, 3]),
        (np.zeros(5), [1, 5]),
        (np.zeros(5), [0, 4, 3, 5]),
        (np.zeros(5), [0.0, 5.0]),
        (np.zeros(5), [[0, 5]]),
        (np.zeros(5), []),
        (np.float64(3), [0, 1]),
    ],
)
def test_offsets_that_are_none_are_refused(values, offsets):
    with pytest.raises(pyfab.InvalidArgumentError):
        Ragged(values, offsets)


def gathers_some_fields(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank)) as store:
        copies = (store, pickle.loads(pickle.dumps(store)))
        for one in copies:
            asked = np.arange(0, TOTAL, 3)
            everything = one.gather(asked)
            for names in (["label"], ["tokens", "image"]):
                some = one.gather(asked, fields=names)
                assert list(some) == names
                again = one.gather_async(asked, some, fields=names).result(30)
                for name in names:
                    for batch in (some, again):
                        np.testing.assert_array_equal(batch[name][5], everything[name][5])
            for wrong in (["label", "nothing"], [], ["label", "label"], "label"):
                with pytest.raises(
                    pyfab.InvalidArgumentError, match=r"fields=.*'image', 'label', 'flag', 'tokens', 'boxes'"
                ):
                    one.gather(asked, fields=wrong)
            assert one.metrics()["samples"] == 5 * len(asked)
        (batch,) = Loader(store, [[5, 7]], fields=["label"])
        assert {name: values.tolist() for name, values in batch.items()} == {"label": [5, 7]}
        lent = [batch["label"].tolist() for batch in Loader(store, [[5], [7]], fields=["label"], copy=False)]
        assert lent == [[5], [7]]
        copies[1].close()


@pytest.mark.slow
def test_some_fields_alone(links):
    pyfab.spawn(gathers_some_fields, 4, links=links, timeout=60)


MASKED = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])
RECORDS = np.ma.masked_array([(1, 2.0)], [(False, True)], [("a", "i4"), ("b", "f8")])


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"x": MASKED},
        lambda: {"x": [MASKED, MASKED]},
        lambda: {"x": RECORDS},
        lambda: {"x": Ragged(MASKED, [0, 1, 3])},
        lambda: {"x": Ragged.from_samples([MASKED, MASKED[:1]])},
        lambda: from_samples({"x": MASKED} for _ in range(2)),
        lambda: from_samples({"x": value} for value in MASKED),
        lambda: from_samples({"x": MASKED[:i]} for i in range(4)),
    ],
)
def test_masks_are_refused(make):
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        pytest.raises(pyfab.InvalidArgumentError, match=r"values are masked.*filled\(value\).*another field"),
    ):
        ShardedStore(group, make())


def test_masked_arrays_without_a_mask_are_taken():
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        ShardedStore(group, {"x": np.ma.masked_array([1, 2], [False, False]), "y": np.ma.zeros(2)}) as store,
    ):
        assert store.gather([1])["x"].tolist() == [2]


def test_ragged_samples():
    samples = Ragged.from_samples(["ab", b"", "c"])
    assert bytes(samples[0]) == b"ab" and len(samples[1]) == 0 and bytes(samples[-1]) == b"c"
    assert samples.cu_seqlens.dtype == np.int32
    np.testing.assert_array_equal(samples.padded(), [[97, 98], [0, 0], [99, 0]])
    np.testing.assert_array_equal(samples.padded(1, 1), [[97], [1], [99]])
    with pytest.raises(IndexError):
        samples[3]
    assert len(Ragged.from_samples([])) == 0
    numbers = Ragged.from_samples([[1, 2], [], [2**53 + 1]])  # an empty list does not make them floats
    assert numbers.values.tolist() == [1, 2, 2**53 + 1] and numbers.values.dtype == np.int64
    assert Ragged.from_samples([[], np.zeros((2, 3), np.int8)]).values.shape == (2, 3)


def from_files(group: pyfab.Group, folder: str) -> None:
    values = whole(40)
    mine = cut(values, group.rank * 20, group.rank * 20 + 20)
    path = Path(folder) / f"image-{group.rank}.npy"
    np.save(path, mine["image"])
    raw = Path(folder) / f"label-{group.rank}.raw"
    raw.write_bytes(mine["label"].tobytes())
    with ShardedStore(group, {"image": path, "label": from_raw(raw, np.int64)}) as store:
        indices = np.arange(40)[::-3]
        batch = store.gather(indices)
        np.testing.assert_array_equal(batch["image"], values["image"][indices])
        np.testing.assert_array_equal(batch["label"], indices)
        assert store.spilled_bytes == 0


@pytest.mark.slow
def test_files_are_served_from_where_they_are_mapped(tmp_path, links):
    pyfab.spawn(from_files, 2, str(tmp_path), links=links, timeout=60)


def spills(group: pyfab.Group, folder: str) -> int:
    before = os.listdir(folder)
    settings: Any = {"memory_limit": 1000, "spill_folder": folder}
    with ShardedStore(group, shard(group.rank), replicas=2, **settings) as store:
        check(store.gather(np.arange(TOTAL)), np.arange(TOTAL), TOTAL)
        store.verify()
        assert os.listdir(folder) == before
        return store.spilled_bytes


def test_arrays_of_an_npz_file(tmp_path):
    path = tmp_path / "shard.npz"
    np.savez_compressed(path, x=np.arange(12.0).reshape(4, 3), y=np.arange(4))
    with pyfab.Group(0, 1, domain="shm") as group:
        with np.load(path) as fields, ShardedStore(group, fields) as store:
            assert [field.name for field in store.fields] == ["x", "y"]
            assert (store[2]["x"] == [6, 7, 8]).all() and store[2]["y"] == 2
        for fields in (str(path), {"x": path}, [1, 2]):
            with pytest.raises(pyfab.InvalidArgumentError) as raised:
                ShardedStore(group, fields)
            assert ("numpy.load(path)" in str(raised.value)) == (fields != [1, 2])


@pytest.mark.slow
def test_more_than_the_memory_limit_goes_to_files(tmp_path, links):
    assert sum(pyfab.spawn(spills, 4, str(tmp_path), links=links, timeout=60)) > 0


@pytest.mark.slow
def test_a_full_disk_is_told_to_all(full_disk):
    with pytest.raises(OSError, match="No space left"):
        pyfab.spawn(overflows, 2, str(full_disk), links="shm", timeout=60)


def overflows(group: pyfab.Group, folder: str) -> None:
    fields = {"x": np.zeros((1000, 10_000), np.uint8)}
    ShardedStore(group, fields, memory_limit=0, spill_folder=folder)


@pytest.fixture
def full_disk(tmp_path):
    import subprocess

    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def pickled(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank)) as store:
        copy = pickle.loads(pickle.dumps(store))
        indices = np.arange(0, TOTAL, 3)
        check(copy.gather(indices), indices, TOTAL)
        copy.close()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                check(store.gather(indices), indices, TOTAL)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        check(store.gather(indices), indices, TOTAL)


@pytest.mark.slow
def test_other_processes_find_their_own_way(links):
    pyfab.spawn(pickled, 4, links=links, timeout=60)


def awaits(group: pyfab.Group) -> None:
    async def several(store: ShardedStore) -> None:
        orders = [np.random.default_rng(i).integers(0, TOTAL, 64) for i in range(8)]
        batches = await asyncio.gather(*(one(store, order) for order in orders))
        for order, batch in zip(orders, batches, strict=True):
            check(batch, order, TOTAL)

    async def one(store: ShardedStore, order: Any) -> Any:
        return await store.gather_async(order)

    with ShardedStore(group, shard(group.rank)) as store:
        asyncio.run(several(store))
        told: list[Any] = []
        gathered = store.gather_async(np.arange(5))
        gathered.add_done_callback(told.append)
        gathered.result(30)
        store.gather([0])
        assert told == [gathered]


@pytest.mark.slow
def test_gathers_are_awaited_and_called_back(links):
    pyfab.spawn(awaits, 4, links=links, timeout=60)


def leaves_by_an_exception(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank), replicas=2) as alone_lost:
        check(alone_lost.gather(np.arange(TOTAL)), np.arange(TOTAL), TOTAL)
        group.barrier()
        if group.rank == 2:
            with pytest.raises(ZeroDivisionError), alone_lost:
                _ = 1 / 0
        group.barrier()
        if group.rank != 2:
            check(alone_lost.gather(np.arange(TOTAL)), np.arange(TOTAL), TOTAL)
        group.barrier()
    store = ShardedStore(group, shard(group.rank))
    group.barrier()
    if group.rank == 2:
        store.__exit__(ValueError, None, None)
    group.barrier()
    if group.rank != 2:
        with pytest.raises(pyfab.PeerLostError, match=r"rank 2 on host.*closed the store"):
            store.gather(np.arange(TOTAL))
    store.close()


@pytest.mark.slow
def test_a_rank_that_left_by_an_exception_counts_as_lost(links):
    pyfab.spawn(leaves_by_an_exception, 4, links=links, timeout=60)


@pytest.mark.slow
def test_memory_of_batches_is_used_again_and_by_nobody_twice():
    import gc
    import threading

    from pyfab.data.memory.pool import MemoryPool

    pool = MemoryPool()
    first = pool.take((100, 100), np.int32)
    address = first.ctypes.data
    view = first[3:5]
    del first
    assert pool.take((100, 100), np.int32).ctypes.data != address
    del view
    again = [pool.take((100, 100), np.int32) for _ in range(3)]
    assert address in {array.ctypes.data for array in again}

    def churn() -> None:
        for i in range(3000):
            array = pool.take((10 + i % 5, 1000), np.uint8)
            array[:] = i % 251
            cycle = [array]
            cycle.append(cycle)  # type: ignore[arg-type]
            assert (array == i % 251).all()

    threads = [threading.Thread(target=churn) for _ in range(4)]
    threshold = gc.get_threshold()
    gc.set_threshold(7)  # collections in the middle of everything
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        gc.set_threshold(*threshold)


def moves(group: pyfab.Group) -> None:
    color = 0 if group.rank < 2 else None
    pair = group.split(color)
    store = None
    if pair is not None:
        store = ShardedStore(pair, shard(pair.rank, (30, 50)))
    moved = ShardedStore.moved(group, store)
    if store is not None:
        store.close()
    assert moved.counts == (20, 20, 20, 20)
    check(moved.gather(np.arange(80)), np.arange(80), 80)
    moved.close()
    if pair is not None:
        pair.close()


@pytest.mark.slow
def test_a_store_moves_to_more_ranks(links):
    pyfab.spawn(moves, 4, links=links, timeout=60)


def test_replicas_lie_far_apart_and_the_nearest_is_read():
    hosts = ["a", "a", "b", "b"]
    assert holders(hosts, 1) == [[0], [1], [2], [3]]
    assert holders(hosts, 2) == [[0, 2], [1, 3], [2, 0], [3, 1]]
    assert holders(hosts, "node") == [[0, 2], [1, 3], [2, 0], [3, 1]]
    assert holders(["a", "a", "a", "b"], "node") == [[0, 3], [1, 3], [2, 3], [3, 0]]
    for several in (
        ["a", "b", "a", "b"],
        ["a", "a", "b"],
        ["a", "a", "a", "b"],
        list("abcabc"),
        list("aaaabb"),
    ):
        for copies in (2, min(3, len(set(several)))):
            for ranks in holders(several, copies):
                assert len(set(ranks)) == copies
                assert len({several[rank] for rank in ranks}) == min(copies, len(set(several)))
    assert by_nearness([0, 2], hosts, 3, "b") == [2, 0]
    assert by_nearness([0, 2], hosts, 0, "a") == [0, 2]
    for wrong in (0, 5, -1, 1.5, "rack"):
        with pytest.raises(pyfab.InvalidArgumentError):
            holders(hosts, wrong)
