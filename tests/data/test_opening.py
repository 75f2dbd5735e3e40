"""Opening a store: ranks that come late, that read for long, that fail, and that have nothing to give."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import ShardedStore, _opening
from samples import check, shard, whole

COUNTS = (20, 30, 25)
TOTAL = sum(COUNTS)


def wait_for(*paths: Path) -> None:
    while not all(path.exists() for path in paths):
        time.sleep(0.005)  # nothing tells of a file that another process makes


def check_all(store: ShardedStore, total: int = TOTAL) -> None:
    check(store.gather(np.arange(total)), np.arange(total), total)


def times_out(group: pyfab.Group, folder: str, calls: bool) -> tuple[list[str], int]:
    """Ranks 0 and 2 give up once before rank 1 has called, or has read its samples; then all open the store."""
    given_up = [Path(folder) / str(rank) for rank in range(3)]
    told: list[str] = []
    reads = 0

    def read() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        if group.rank == 1 and calls:
            wait_for(given_up[0], given_up[2])
        return shard(group.rank, COUNTS)

    if group.rank == 1:
        if not calls:
            wait_for(given_up[0], given_up[2])
        store = ShardedStore(group, read)
    else:
        try:
            ShardedStore(group, read, open_timeout=0.1)
        except pyfab.OperationTimeout as error:
            told.append(str(error))
        given_up[group.rank].touch()
        store = ShardedStore(group, read)
    with store:
        check_all(store)
    return told, reads


def times_out_twice(group: pyfab.Group, folder: str) -> list[tuple[list[str], int]]:
    results = []
    for calls in (True, False):
        part = Path(folder) / str(calls)
        part.mkdir(exist_ok=True)
        results.append(times_out(group, str(part), calls))
    return results


@pytest.mark.slow
def test_a_call_that_timed_out_is_repeated(tmp_path):
    told = pyfab.spawn(times_out_twice, 3, str(tmp_path), links="shm", timeout=60)
    for which, doing in enumerate(("still reads samples", "did not call ShardedStore")):
        assert [ranks[which][1] for ranks in told] == [1, 1, 1]  # nobody reads twice
        for (text,) in (told[0][which][0], told[2][which][0]):
            assert f"rank 1 of 3 {doing} after 0.1 s" in text and "repeat the call" in text


def reads_longer_than_the_group_waits(group: pyfab.Group, folder: str) -> list[str]:
    warned = [Path(folder) / str(rank) for rank in range(3)]
    _opening._TELL = 0.1
    group.timeout = 0.05

    def read() -> dict[str, Any]:
        if group.rank == 1:
            wait_for(warned[0], warned[2])
            group.timeout = 60
        return shard(group.rank, COUNTS)

    told: list[str] = []

    def show(message: Any, *_: Any, **__: Any) -> None:
        told.append(str(message))
        group.timeout = 60
        warned[group.rank].touch()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        with ShardedStore(group, read, timeout=60) as store:
            check_all(store)
    return told


@pytest.mark.slow
def test_a_rank_may_read_longer_than_the_group_waits_and_is_named(tmp_path):
    told = pyfab.spawn(reads_longer_than_the_group_waits, 3, str(tmp_path), links="shm", timeout=60)
    assert all(texts and "rank 1 of 3 still reads samples" in texts[0] for texts in (told[0], told[2]))


def fails(group: pyfab.Group) -> list[str]:
    def read() -> dict[str, Any]:
        if group.rank == 1:
            raise FileNotFoundError("no train-1.tar")
        return shard(group.rank, COUNTS)

    told = []
    for instead in (None, group.barrier, lambda: group.allgather("no samples")):
        try:
            if group.rank == 1 and instead is not None:
                instead()
            else:
                ShardedStore(group, read)
            told.append("")
        except (pyfab.FabricError, OSError) as error:
            told.append(f"{type(error).__name__}: {error}")
    with ShardedStore(group, shard(group.rank, COUNTS)) as store:
        check_all(store)
    return told


@pytest.mark.slow
def test_all_learn_why_one_rank_gives_no_samples():
    told = pyfab.spawn(fails, 3, links="shm", timeout=60)
    assert told[1][0] == "FileNotFoundError: no train-1.tar"
    for text, called in zip(told[1][1:], ("barrier()", "allgather()"), strict=True):
        assert "did not call the same collective method" in text and f"rank 1 of 3: {called}" in text
    for texts in (told[0], told[2]):
        assert (
            "rank 1 could not open its part" in texts[0] and "FileNotFoundError: no train-1.tar" in texts[0]
        )
        assert all("did not call the same collective method" in text for text in texts[1:])
        assert all("give ShardedStore a function" in text for text in texts[1:])


def gives_nothing(group: pyfab.Group) -> None:
    counts = (0, 30, 0)
    given = {0: None, 1: shard(1, counts), 2: lambda: None}[group.rank]
    for replicas in (1, 3):
        with ShardedStore(group, given, replicas=replicas) as store:
            assert store.counts == counts
            check_all(store, 30)
            assert [field.name for field in store.fields] == list(whole(1))
    with pytest.raises(pyfab.InvalidArgumentError, match="no rank gave samples"):
        ShardedStore(group, None)


@pytest.mark.slow
def test_ranks_without_samples_take_the_fields_of_the_others(links):
    pyfab.spawn(gives_nothing, 3, links=links, timeout=60)


def ends_while_the_others_wait(group: pyfab.Group, folder: str) -> str:
    def read() -> dict[str, Any]:
        if group.rank == 1:
            print("reads", flush=True)
            wait_for(Path(folder) / "never")
        return shard(group.rank, COUNTS)

    try:
        ShardedStore(group, read)
    except pyfab.PeerLostError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_rank_that_dies_while_it_reads_is_named(start, tmp_path):
    ranks = start(ends_while_the_others_wait, 3, "shm", str(tmp_path))
    ranks.wait_for(1, "reads")
    ranks.kill(1)
    told = ranks.results([0, 2])
    assert any("rank 1 of 3 ended" in text for text in told)
    assert all(" of 3 ended" in text for text in told)  # one may name the rank that has learnt it before
