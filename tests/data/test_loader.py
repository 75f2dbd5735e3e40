"""Loaders: each batch in its turn, whatever was read ahead, and a state that tells of what was given."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, JaxLoader, Loader, ShardedStore
from samples import COUNTS, check, shard

TOTAL = sum(COUNTS)


def loads(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank)) as store:
        for depth, copy in ((4, True), (4, False), (0, True), (0, False), (1, True)):
            sampler = GlobalShuffle(len(store), 16, seed=3, rank=group.rank, size=group.size)
            loader = Loader(store, sampler, depth, copy=copy)
            expected = list(GlobalShuffle(len(store), 16, seed=3, rank=group.rank, size=group.size))
            assert len(loader) == len(expected)
            kept = []
            for batch, indices in zip(loader, expected, strict=True):
                check(batch, indices, TOTAL)
                kept.append(batch)
            if copy:
                for batch, indices in zip(kept, expected, strict=True):
                    check(batch, indices, TOTAL)
            state = {"format": 1, "shuffle": 1, "seed": 3, "epoch": 1, "cursor": 0, "n": TOTAL}
            assert loader.state_dict() == state
            assert loader.metrics()["wait_p99"] >= loader.metrics()["wait_p50"] >= 0

        # Stopped in the middle, and gone on with by another number of ranks.
        sampler = GlobalShuffle(len(store), 8, seed=4, rank=group.rank, size=group.size)
        loader = Loader(store, sampler)
        seen = []
        for turn, batch in enumerate(loader):
            seen.append(batch["label"])
            if turn == 2:
                break
        state = loader.state_dict()
        assert state["cursor"] == 3 * 8 * group.size
        together = group.allgather(np.concatenate(seen).tolist())
        rest = []
        if group.rank == 0:
            alone = Loader(store, GlobalShuffle(len(store), 50, rank=0, size=1))
            alone.load_state_dict(state)
            rest = np.concatenate([batch["label"] for batch in alone]).tolist()
        if group.rank == 0:
            assert sorted([*chain.from_iterable(together), *rest]) == list(range(TOTAL))
        # The one that was stopped goes on where it was, if it is told to.
        loader.load_state_dict(state)
        assert len(list(loader)) == -(-(TOTAL - state["cursor"]) // (8 * group.size))


@pytest.mark.slow
def test_batches_come_in_their_order(links):
    pyfab.spawn(loads, 4, links=links, timeout=90)


def resumes_after_a_failure(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank)) as store:
        sampler = GlobalShuffle(len(store), 16, rank=group.rank, size=group.size)
        loader = Loader(store, sampler)
        loader.load_state_dict({"seed": 0, "epoch": 0, "cursor": 20, "n": TOTAL})
        whole_store = loader.store
        loader.store = Broken(store)  # type: ignore[assignment]
        with pytest.raises(pyfab.PeerLostError):
            next(iter(loader))
        assert loader.state_dict()["cursor"] == sampler.cursor == 20
        loader.store = whole_store
        assert len(list(loader)) == -(-(TOTAL - 20) // (16 * group.size))
        sampler.set_epoch(7)
        assert loader.state_dict()["epoch"] == 7


class Broken:
    """A store whose gathers fail."""

    def __init__(self, store: ShardedStore) -> None:
        self.timeout = store.timeout

    def gather_async(self, indices: Any, out: Any, *, fields: Any) -> Any:
        del indices, out, fields
        raise pyfab.PeerLostError("on purpose")


@pytest.mark.slow
def test_what_failed_is_drawn_again():
    pyfab.spawn(resumes_after_a_failure, 4, links="shm", timeout=60)


def transforms(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank)) as store:
        loader = Loader(
            store,
            [[1, 2], [3]],
            transform=lambda batch: batch["label"].sum(),
            progress=True,
        )
        assert list(loader) == [3, 3]
        with pytest.raises(pyfab.InvalidArgumentError, match="the store has"):
            Loader(store, GlobalShuffle(5, 1, rank=0, size=1))
        with pytest.raises(pyfab.InvalidArgumentError, match="depth"):
            Loader(store, [], -1)
        with pytest.raises(IndexError):
            list(Loader(store, [[0], [TOTAL]]))
        unordered = Loader(store, [[0]])
        for call in (
            unordered.state_dict,
            lambda: unordered.load_state_dict({}),
            lambda: unordered.state_dict(1),
        ):
            with pytest.raises(pyfab.InvalidArgumentError, match=r"list.*GlobalShuffle|GlobalShuffle.*list"):
                call()


@pytest.mark.slow
def test_transforms_and_wrong_arguments():
    pyfab.spawn(transforms, 4, links="shm", timeout=60)


def of_jax(group: pyfab.Group) -> None:
    fields = {name: shard(group.rank, (20, 30))[name] for name in ("image", "boxes")}
    with ShardedStore(group, fields) as store:
        kept: list[Any] = list(JaxLoader(store, [np.arange(i, i + 5) for i in range(0, 50, 5)]))
        for start, batch in zip(range(0, 50, 5), kept, strict=True):
            expected = store.gather(np.arange(start, start + 5))
            np.testing.assert_array_equal(np.asarray(batch["image"]), expected["image"])
            values, offsets = batch["boxes"]
            np.testing.assert_array_equal(np.asarray(values), expected["boxes"].values)
            np.testing.assert_array_equal(np.asarray(offsets), expected["boxes"].offsets)
        with pytest.raises(pyfab.InvalidArgumentError):
            JaxLoader(store, [], copy=False)


def test_arrays_of_jax_share_the_memory():
    pytest.importorskip("jax")
    pyfab.spawn(of_jax, 2, links="shm", timeout=90)
