"""Tables of ragged fields are in memory once a node: for its ranks and their workers, read-only, until the last one has gone."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import Ragged, ShardedStore
from pyfab.data.memory import tables
from samples import COUNTS, check, shard

TOTAL = sum(COUNTS)


def mappings(store: ShardedStore) -> list[tuple[str, str]]:
    """Rights and inode of the memory of each table of this process."""
    found = []
    for table in [table for part in store._engine()._all_tables for table in part if table is not None]:
        assert not table.flags.writeable
        address = table.ctypes.data
        for line in Path("/proc/self/maps").read_text().splitlines():
            region, rights, _, _, inode, *_ = line.split()
            start, stop = (int(end, 16) for end in region.split("-"))
            if start <= address < stop:
                found.append((rights, inode))
    return sorted(set(found))


def uses(inode: str) -> int:
    """Mappings and descriptors that this process has of a file."""
    mapped = [line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines()]
    opened = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list
            opened.append(str(Path(f"/proc/self/fd/{fd}").stat().st_ino))
    return (mapped + opened).count(inode)


def works(store: Any, answers: Any) -> None:
    store = pickle.loads(store) if isinstance(store, bytes) else store
    with store:
        check(store.gather(np.arange(TOTAL)), np.arange(TOTAL), TOTAL)
        of_worker = mappings(pickle.loads(pickle.dumps(store)))
        answers.send(mappings(store) + of_worker)


def shares(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank), replicas=2) as store:
        check(store.gather(np.arange(TOTAL)), np.arange(TOTAL), TOTAL)
        ((rights, inode),) = mappings(store)
        assert rights == "r--s" and set(group.allgather(inode)) == {inode}
        here, there = multiprocessing.Pipe()
        for method, given in (("fork", store), ("spawn", pickle.dumps(store))):
            if method == "spawn" and group.rank:
                continue
            worker = multiprocessing.get_context(method).Process(target=works, args=(given, there))
            worker.start()
            assert here.recv() == [("r--s", inode)] * 2
            worker.join()
            assert worker.exitcode == 0
    assert uses(inode) == 0


@pytest.mark.slow
def test_ranks_and_workers_map_the_same_memory(links):
    pyfab.spawn(shares, 4, links=links, timeout=90)


def on_two_nodes(group: pyfab.Group) -> list[list[Any]]:
    """Ranks 0 and 2 are on one node, 1 and 3 on another. Later rank 2 cannot map what rank 0 has."""
    name = "ab"[group.rank % 2]
    group._hosts = ["a", "b", "a", "b"]
    socket.gethostname = lambda: name
    asked = np.arange(TOTAL)[::-1]
    told = []
    for replicas, maps in ((1, True), ("node", True), (1, False), ("node", False)):
        if group.rank == 2 and not maps:
            tables.open_file = refuse
        with ShardedStore(group, shard(group.rank), replicas=replicas) as store:
            check(store.gather(asked), asked, TOTAL)
            copy = pickle.loads(pickle.dumps(store))
            check(copy.gather(asked), asked, TOTAL)
            assert store.lengths("tokens").tolist() == [i * 37 % 11 for i in range(TOTAL)]
            told.append(mappings(store) if store._tables else None)
            copy.close()
    return told


def refuse(*_: Any) -> int:
    raise pyfab.NotSupportedError("it is in another pid name space")


@pytest.mark.slow
def test_each_node_has_its_own():
    for which, inodes in enumerate(
        zip(*pyfab.spawn(on_two_nodes, 4, links="shm+tcp", timeout=90), strict=True)
    ):
        assert inodes[1] == inodes[3] != inodes[0] and all(len(found) == 1 for found in inodes if found)
        assert inodes[2] == (inodes[0] if which < 2 else None)


def outlives(group: pyfab.Group, killed: str) -> list[Any]:
    """Rank 0, which has made the memory, is killed. The others go on, and their workers begin."""
    counts = (37, 120, 63)
    everything = np.arange(sum(counts))
    with ShardedStore(group, shard(group.rank, counts), replicas=2) as store:
        ((_, inode),) = mappings(store)
        group.barrier()
        if group.rank == 0:
            print("open", flush=True)
            signal.pause()
        while not Path(killed).exists():
            time.sleep(0.005)  # nothing tells of a file that another process makes
        check(store.gather(everything), everything, len(store))
        copy = pickle.loads(pickle.dumps(store))
        check(copy.gather(everything), everything, len(store))
        assert mappings(copy) == [("r--s", inode)]
        copy.close()
    return [inode, uses(inode)]


@pytest.mark.slow
def test_a_killed_rank_takes_nothing_with_it_and_leaves_nothing(start, tmp_path):
    before = set(os.listdir("/dev/shm"))
    ranks = start(outlives, 3, "tcp", str(tmp_path / "killed"))
    ranks.wait_for(0, "open")
    ranks.kill(0)
    (tmp_path / "killed").touch()
    first, second = ranks.results([1, 2])
    assert first == second and first[1] == 0
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "pyfab" in name}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_cannot_open_it():
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        ShardedStore(group, {"x": Ragged(np.zeros(3), [0, 1, 3])}) as store,
    ):
        card = store._tables[0].card
        child = os.fork()
        if child == 0:
            try:
                os.setuid(65534)
                for refused in (
                    lambda: os.open(f"/proc/{card['pid']}/fd/{card['fd']}", os.O_RDONLY),
                    lambda: tables.open_file(card, "it"),
                ):
                    with pytest.raises((PermissionError, pyfab.NotSupportedError)):
                        refused()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert json.loads(json.dumps(card)) == card
