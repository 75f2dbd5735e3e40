"""Owners that die, stop or leave early, files that are cut short: errors that name them, or replicas; never a hang."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, Loader, ShardedStore
from samples import COUNTS, check, shard

TOTAL = sum(COUNTS)
SIZE = len(COUNTS)


def reads_on(group: pyfab.Group, folder: str) -> list[str]:
    """Reads from all until rank 2 is lost."""
    told: list[str] = []
    with ShardedStore(group, shard(group.rank), timeout=30) as store:
        ready(store, group)
        if group.rank == 2:
            wait_for(Path(folder) / "never")
        wait_for(Path(folder) / "killed")
        mine = np.arange(TOTAL)[: sum(COUNTS[:2])]
        while not told:  # mapped memory of one that has just died can still be read
            try:
                store.gather(np.arange(TOTAL))
            except pyfab.PeerLostError as error:
                told.append(str(error))
        check(store.gather(mine), mine, TOTAL)  # others' samples are as good as before
        gathered = store.gather_async(np.arange(TOTAL))
        assert isinstance(gathered.exception(30), ConnectionError)
    return told


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)  # nothing tells of a file that another process makes


def ready(store: ShardedStore, group: pyfab.Group) -> None:
    check(store.gather(np.arange(TOTAL)), np.arange(TOTAL), TOTAL)
    group.barrier()
    print("ready", flush=True)


@pytest.mark.slow
def test_a_killed_owner_is_named(start, tmp_path, links):
    ranks = start(reads_on, SIZE, links, str(tmp_path))
    for rank in range(SIZE):
        ranks.wait_for(rank, "ready")
    ranks.kill(2)
    (tmp_path / "killed").touch()
    for (text,) in ranks.results([0, 1, 3]):
        assert "rank 2 on host" in text and "shard 2" in text and "'image'" in text


def finishes(group: pyfab.Group, folder: str) -> dict[str, Any]:
    """An epoch of which rank 2 sees only the beginning; the others take over what is left of it."""
    store = ShardedStore(group, shard(group.rank), replicas=2)
    sampler = GlobalShuffle(len(store), 4, seed=1, rank=group.rank, size=group.size)
    loader = Loader(store, sampler)
    ready(store, group)
    seen: list[int] = []
    for turn, batch in enumerate(loader):
        seen += batch["label"].tolist()
        if turn == 3:
            break
    state = loader.state_dict()
    group.barrier()
    print("paused", flush=True)
    if group.rank == 2:
        wait_for(Path(folder) / "never")
    wait_for(Path(folder) / "killed")
    check(store.gather(np.arange(TOTAL)), np.arange(TOTAL), TOTAL)
    survivors = group.shrink()
    sampler.set_ranks(survivors.rank, survivors.size)
    loader.load_state_dict(state)
    for batch in loader:
        check(batch, batch["label"], TOTAL)
        seen += batch["label"].tolist()
    # Between epochs the samples move to those that are left, so that each is held twice again.
    moved = ShardedStore.moved(survivors, store)
    check(moved.gather(np.arange(TOTAL)), np.arange(TOTAL), TOTAL)
    moved.verify()
    told = {"seen": seen, "lost": list(store.lost), "replicas": store.metrics()["replica_samples"]}
    moved.close()
    store.close()
    survivors.close()
    return told


def test_an_epoch_finishes_on_the_replicas(start, tmp_path, links):
    ranks = start(finishes, SIZE, links, str(tmp_path))
    for rank in range(SIZE):
        ranks.wait_for(rank, "paused")
    ranks.kill(2)
    (tmp_path / "killed").touch()
    results = ranks.results([0, 1, 3])
    seen = [number for result in results for number in result["seen"]]
    by_two = GlobalShuffle(TOTAL, 4, seed=1, rank=2, size=4)
    lost = np.concatenate([batch for _, batch in zip(range(4), by_two, strict=False)]).tolist()
    assert sorted(seen + lost) == list(range(TOTAL))
    assert any(2 in result["lost"] for result in results)


def meets_a_stopped_one(group: pyfab.Group, folder: str) -> None:
    with ShardedStore(group, shard(group.rank), timeout=2) as store:
        ready(store, group)
        if group.rank == 2:
            wait_for(Path(folder) / "stopped")
            return
        wait_for(Path(folder) / "stopped")
        if group.domain.info.spec == "shm":  # nobody asks the owner
            check(store.gather(np.arange(TOTAL)), np.arange(TOTAL), TOTAL)
        else:
            with pytest.raises((pyfab.OperationTimeout, ConnectionError), match="rank 2 on host"):
                store.gather(np.arange(TOTAL))
        print("waited", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_a_stopped_owner_holds_nobody_up(start, tmp_path, links):
    ranks = start(meets_a_stopped_one, SIZE, links, str(tmp_path))
    for rank in range(SIZE):
        ranks.wait_for(rank, "ready")
    ranks.stop(2)
    (tmp_path / "stopped").touch()
    for rank in (0, 1, 3):
        ranks.wait_for(rank, "waited")
    ranks.resume(2)
    ranks.results(list(range(SIZE)))


def closes_beside_a_stopped_one(group: pyfab.Group, folder: str) -> str:
    store = ShardedStore(group, shard(group.rank))
    ready(store, group)
    if group.rank == 1:
        wait_for(Path(folder) / "closed")
        group.leave()
        return ""
    wait_for(Path(folder) / "stopped")
    with pytest.warns(RuntimeWarning) as seen:
        store.close()
    print("closed", flush=True)
    group.leave()
    return str(seen[0].message)


@pytest.mark.slow
@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_a_store_closes_beside_a_stopped_rank(start, tmp_path, links):
    """Reading a stopped rank's memory still works over shm, but that is no sign of life."""
    ranks = start(closes_beside_a_stopped_one, SIZE, links, str(tmp_path))
    for rank in range(SIZE):
        ranks.wait_for(rank, "ready")
    ranks.stop(1)
    (tmp_path / "stopped").touch()
    others = [rank for rank in range(SIZE) if rank != 1]
    for rank in others:
        ranks.wait_for(rank, "closed")
    (tmp_path / "closed").touch()
    ranks.resume(1)
    for said in ranks.results(others):
        assert "for rank 1 on host" in said
    ranks.results([1])


def leaves_early(group: pyfab.Group) -> int:
    """Rank 0 is done at once; its samples stay until the others are."""
    with ShardedStore(group, shard(group.rank)) as store:
        group.barrier()
        loader = Loader(store, GlobalShuffle(len(store), 4, rank=group.rank, size=group.size))
        batches = 0
        for batch in loader:
            check(batch, batch["label"], TOTAL)
            batches += 1
            if group.rank == 0:
                break
    return batches


@pytest.mark.slow
def test_one_that_stops_early_goes_on_lending(start, links):
    batches = start(leaves_early, SIZE, links).results(list(range(SIZE)))
    assert batches[0] == 1 and len(set(batches[1:])) == 1 and batches[1] > 1


def waits(group: pyfab.Group, folder: str) -> None:
    with ShardedStore(group, shard(group.rank), replicas=2, memory_limit=100, spill_folder=folder) as store:
        ready(store, group)
        wait_for(Path(folder) / "never")


@pytest.mark.slow
def test_nothing_is_left_of_killed_ranks(start, tmp_path, links):
    before = set(os.listdir("/dev/shm"))
    spill = tmp_path / "spill"
    spill.mkdir()
    ranks = start(waits, SIZE, links, str(spill))
    for rank in range(SIZE):
        ranks.wait_for(rank, "ready")
    for rank in range(SIZE):
        ranks.kill(rank)
    assert set(os.listdir("/dev/shm")) - before == set()
    assert os.listdir(spill) == []


@pytest.mark.parametrize("row", [8, 20_000])
def test_a_file_of_this_process_that_is_cut_short_is_named(tmp_path, row):
    path = tmp_path / "x.npy"
    whole = np.arange(64 * row, dtype=np.uint8).reshape(64, row)
    np.save(path, whole)
    labels = np.arange(64)
    with (
        pyfab.Domain("tcp:lo") as domain,
        pyfab.Group(0, 1, rendezvous=f"file://{tmp_path}/meeting", domain=domain) as group,
        ShardedStore(group, {"x": np.load(path, mmap_mode="r+"), "label": labels}) as store,
    ):
        assert (store.gather(labels)["x"] == whole).all()
        os.truncate(path, 0)
        with pytest.raises(pyfab.BoundsError, match="'x' of shard 0 from this process"):
            store.gather(labels)
        assert (store.gather(labels, fields=["label"])["label"] == labels).all()
