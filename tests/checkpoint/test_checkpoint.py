"""States in the memory of other ranks: what is left after kill -9 is one version of all, bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab.checkpoint import Checkpoint, holders, load, recover
from pyfab.weights import Shard


def test_holders_are_on_other_hosts():
    assert (
        holders(["a", "a", "b", "b"], 1) == holders(["a", "a", "b", "b"], np.int64(1)) == [[2], [3], [0], [1]]
    )
    for hosts, replicas in (("aabbcc", 2), ("abcdef", 3), ("aaaa", 3), ("aab", 1), ("a", 0)):
        placed = holders(hosts, replicas)
        counts = [sum(rank in ranks for ranks in placed) for rank in range(len(hosts))]
        assert set(counts) == {replicas} or hosts == "aab"
        for rank, ranks in enumerate(placed):
            assert rank not in ranks
            assert len(set(ranks)) == replicas
            spread = {hosts[other] for other in (rank, *ranks)}
            assert len(spread) == min(len(set(hosts)), replicas + 1) or hosts == "aab"
    for replicas in (2, -1):
        with pytest.raises(pyfab.InvalidArgumentError, match=f"replicas={replicas}: .* 0 to 1 of 2 ranks"):
            holders("ab", replicas)


# Ranks save as fast as they can. Some die by themselves, at any moment. Those that are left look at what they have of all.
UNDER_FIRE = """
import json, os, signal, sys, threading
import numpy as np, pyfab
from pyfab.checkpoint import Checkpoint, recover
from pyfab.weights import Shard

ROWS, PARTS = 6, 7

def fill(state, owner, version):  # each version changes one of the parts
    for part, values in enumerate(np.array_split(state["own"], PARTS)):
        changed = version - (version - part) % PARTS
        values[...] = np.random.default_rng([owner, part, changed + PARTS]).random(len(values))
    state["rows"].array[...] = version + np.arange(ROWS * owner, ROWS * (owner + 1))[:, None]

def new_state(owner, size):
    rows = np.zeros((ROWS, 1000), np.int32)
    return {"own": np.zeros(50_000 + owner), "rows": Shard(rows, (ROWS * owner, 0), (ROWS * size, 1000))}

group = pyfab.Group.from_env(sys.argv[1])
replicas, victims, seed, block_size = json.loads(sys.argv[2])
rank, size = group.rank, group.size
state = new_state(rank, size)
former = Checkpoint(group, state, replicas, checksums=True, block_size=block_size)
version, saved = 1, 0
fill(state, rank, version)
try:
    former.save(version).result(60)  # a victim that knows that all have done so may be dead before this rank knows it
    if rank in victims:
        seconds = np.random.default_rng([seed, rank]).random() * 0.3
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        version += 1
        fill(state, rank, version)
        saving = former.save(version)
        saved = version - 1
except pyfab.PeerLostError:
    if rank in victims and version == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # as its time has not begun
while group.size > size - len(victims):
    group = group.shrink()
with recover(group, former) as recovered:
    assert saved <= recovered.version <= version
    for owner in range(size):
        found, expected = new_state(owner, size), new_state(owner, size)
        assert recovered.read(found, owner) == recovered.version
        fill(expected, owner, recovered.version)
        assert np.array_equal(found["own"], expected["own"]), owner
        assert np.array_equal(found["rows"].array, expected["rows"].array)
    whole = {"rows": np.zeros((ROWS * size, 1000), np.int32)}
    recovered.merge(whole)
    assert (whole["rows"] == recovered.version + np.arange(ROWS * size)[:, None]).all()
    assert recovered.read(state) == recovered.version
    told = group.allgather([recovered.version, recovered.lost, recovered.owners])
former.close()
with Checkpoint(group, state, min(replicas, group.size - 1)) as again:
    assert again.save(recovered.version + 1).result(30) == recovered.version + 1
print(json.dumps(told))
group.close()
"""


def survive(ranks: Any, victims: list[int]) -> int:
    """Some of these ranks kill themselves; what the others say must be the same. Returns the version."""
    size = len(ranks)
    left = [rank for rank in range(size) if rank not in victims]
    texts = {rank: ranks[rank].communicate(timeout=100)[0] for rank in left}
    assert [ranks[rank].returncode for rank in left] == [0] * len(left), texts
    told = [json.loads(text) for text in texts.values()]
    versions, lost, owners = zip(*told[0], strict=True)
    assert told == [told[0]] * len(left)
    assert len(set(versions)) == 1
    assert list(lost) == [victims] * len(left)
    assert sorted(owner for some in owners for owner in some) == list(range(size))
    assert [some[0] for some in owners] == left
    return int(versions[0])


@pytest.mark.slow
@litmus
@pytest.mark.parametrize("replicas, block_size", [(1, None), (2, 4096)])
def test_what_is_left_is_one_version_of_all(start_ranks, links, replicas, block_size):
    for seed in range(rounds(1)):
        random = np.random.default_rng([seed, replicas])
        victims = sorted(random.choice(4, replicas, replace=False).tolist())
        told = json.dumps([replicas, victims, seed, block_size])
        version = survive(start_ranks(UNDER_FIRE, 4, links, told, meeting=f"meeting-{seed}"), victims)
        print(f"round {seed}: without ranks {victims}, version {version}")


# One rank dies after a save, and a new process takes its place.
REPLACED = """
import os, signal, sys
import numpy as np, pyfab
from pyfab.checkpoint import Checkpoint, load, recover

links, place, folder = sys.argv[1:]
state = {"x": np.zeros(1000)}
former = None
if "PYFAB_RANK" in os.environ:
    group = pyfab.Group.from_env(links)
    former = Checkpoint(group, state)
    for version in (3, 4):
        state["x"][:] = group.rank + 10 * version
        former.save(version).result(30)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        try:
            group.barrier()
        except pyfab.PeerLostError:
            break
    group = group.shrink().admit(place, 1)
else:
    group = pyfab.Group.join(place, 0, 1, links)
with recover(group, former) as recovered:
    (owner,) = recovered.owners
    recovered.read(state, owner)
    assert owner == [0, 2, 1][group.rank], owner
    assert (state["x"] == 40 + owner).all()
    assert recovered.version == 4
    recovered.write(folder)
    group.barrier()  # all states are written, of each rank by one
    for rank in range(3):
        assert load(folder, state, rank) == 4
        assert (state["x"] == 40 + rank).all()
    if former is None:
        try:
            recovered.read(state)
        except pyfab.InvalidArgumentError as error:
            print(error)
with Checkpoint(group, state) as checkpoint:
    checkpoint.save(recovered.version + 1)
    checkpoint.wait()
if former is not None:
    former.close()
group.close()
"""


@pytest.mark.slow
def test_a_new_process_takes_the_place(start, start_ranks, links, tmp_path):
    place = f"file://{tmp_path}/place"
    arguments = links, place, str(tmp_path / "folder")
    ranks = [*start_ranks(REPLACED, 3, *arguments), start(REPLACED, *arguments)]
    texts = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, -9, 0, 0], texts
    assert len(list((tmp_path / "folder").iterdir())) == 3
    assert (
        "owner=None: the former ranks are 0 to 2; this rank is a new one, so say whose state it takes"
        in texts[3]
    )


TOO_MANY = """
import os, signal, sys
import numpy as np, pyfab
from pyfab.checkpoint import Checkpoint, recover

group = pyfab.Group.from_env(sys.argv[1])
former = Checkpoint(group, {"x": np.zeros(10)})
former.save().result(30)
if group.rank:
    os.kill(os.getpid(), signal.SIGKILL)
while group.size > 1:
    try:
        group.barrier()
    except pyfab.PeerLostError:
        group = group.shrink()
try:
    recover(group, former)
except pyfab.PeerLostError as error:
    print(error)
"""


@pytest.mark.slow
def test_more_deaths_than_replicas_are_told(start_ranks):
    first, *_ = start_ranks(TOO_MANY, 3, "shm")
    text, _ = first.communicate(timeout=60)
    # Each rank holds one other; rank 0 has its own state and one of two.
    assert re.search(
        r"the states of the former ranks \[[12]\] are lost with all that held them; 1 of 3 ranks are left",
        text,
    )


def spill(group: pyfab.Group, folder: str) -> Any:
    x = np.zeros((3, 4))
    with Checkpoint(
        group, {"x": Shard(x, (3 * group.rank, 0), (6, 4)), "n": [np.arange(3)]}, spill=folder
    ) as checkpoint:
        for version in range(1, 6):
            x[...] = 10 * version + group.rank
            checkpoint.save(version)
            checkpoint.wait()
            checkpoint._spill._writing[1].result()  # the next save would leave out what is written too slowly
        told = repr(checkpoint), checkpoint.version, checkpoint.nbytes
        with pytest.raises(pyfab.InvalidArgumentError, match="version 5: it is greater than the last one, 5"):
            checkpoint.save(5)
    with pytest.raises(pyfab.ClosedError):
        checkpoint.save()
    return told


@pytest.mark.slow
def test_states_are_spilled_and_loaded(tmp_path: Path):
    folder = tmp_path / "states"
    told = pyfab.spawn(spill, 2, str(folder), links="shm", timeout=60)
    assert told[1][:2] == ("Checkpoint(rank 1 of 2, held by ranks [0], version 5)", 5)
    assert len(list(folder.iterdir())) == 4
    into = {"x": Shard(np.zeros((3, 4)), (3, 0), (6, 4)), "n": [np.zeros(3, int)]}
    assert load(folder, into, 1) == 5
    assert (into["x"].array == 51).all()
    assert into["n"][0].tolist() == [0, 1, 2]
    assert load(folder, into, 1, version=4) == 4
    assert (into["x"].array == 41).all()
    (last,) = folder.glob("version-*5.rank-1-*")
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    with pytest.raises(
        pyfab.FabricError,
        match=r"damaged: its CRC-32 differs; load another version, there are \[\(4, 2\), \(5, 2\)\]",
    ):
        load(folder, into, 1)
    last.unlink()
    assert load(folder, into, 1) == 4
    for arguments, text in [
        (
            (into, 0),
            r"'x' is \['float64', \[6, 4\], \[\[3, 6\], \[0, 4\]\]\] here, and .*\[\[0, 3\], \[0, 4\]\]\] in version",
        ),
        ((into, 2), "rank=2: version 4 was saved by ranks 0 to 1"),
        ((into, 1, 5), "there is no version 5 with files of all ranks"),
    ]:
        with pytest.raises(pyfab.InvalidArgumentError, match=text):
            load(folder, *arguments)


def test_files_of_a_former_run_stay_and_are_told_of(tmp_path: Path):
    """A run whose versions are lower keeps its own last two."""
    x = np.zeros(4)
    with pyfab.Group(0, 1, domain="shm") as group:
        with Checkpoint(group, {"x": x}, replicas=0, spill=tmp_path) as former:
            x[...] = 100
            former.save(100)
            former.wait()

        def save(checkpoint: Checkpoint, version: int) -> None:
            x[...] = version
            checkpoint.save(version)
            checkpoint.wait()
            checkpoint._spill._writing[1].result()

        with Checkpoint(group, {"x": x}, replicas=0, spill=tmp_path) as checkpoint:
            with pytest.warns(RuntimeWarning, match="version 100 already, which is later than version 1,"):
                save(checkpoint, 1)
            save(checkpoint, 2)
            save(checkpoint, 3)
        into = {"x": np.zeros(4)}
        assert load(tmp_path, into, 0) == 100
        assert [load(tmp_path, into, 0, version) for version in (2, 3)] == [2, 3]
        assert (into["x"] == 3).all()


def test_a_file_that_cannot_be_written_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pyfab.Group(0, 1, domain="shm") as group:
        checkpoint = Checkpoint(group, {"x": np.zeros(4)}, replicas=0, spill=tmp_path)

        def full(*_: Any) -> None:
            raise OSError(28, "no space")

        monkeypatch.setattr(checkpoint._spill, "_write", full)
        checkpoint.save(1)
        checkpoint.wait()
        regions = group.domain.stats()["regions"]
        with pytest.raises(OSError, match="no space"):
            checkpoint.close()
        assert group.domain.stats()["regions"] < regions
        checkpoint.close()


def refuse(group: pyfab.Group) -> list[str]:
    state = {"x": np.zeros(3)}
    told = []

    def refused(call: Any, *arguments: Any) -> None:
        with pytest.raises(pyfab.InvalidArgumentError) as caught:
            call(*arguments)
        told.append(str(caught.value))

    refused(Checkpoint, group, state, 2)
    refused(Checkpoint, group, state, group.rank)
    refused(Checkpoint, group, state if group.rank else {"x": "text"})
    refused(lambda: Checkpoint(group, state, block_size=100))
    refused(recover, group)
    with Checkpoint(group, state) as one, Checkpoint(group, state) as other:
        refused(recover, group, one)
        refused(recover, group, one if group.rank else other)
    return told


@pytest.mark.slow
def test_what_is_refused():
    first, second = pyfab.spawn(refuse, 2, links="shm", timeout=60)
    for text, pattern in zip(
        second,
        [
            "replicas=2: how many other ranks hold each state, 0 to 1 of 2 ranks",
            "replicas=1 here, and 0 on rank 0",
            r"rank 0 could not take part in checkpoint.Checkpoint\(\): .* a str is no array",
            "block_size=100: the bytes of a block, a multiple of 64",
            "no rank gave a checkpoint",
            "no version was saved by all ranks",
            "the ranks gave different checkpoints",
        ],
        strict=True,
    ):
        assert re.search(pattern, text), text
    assert "replicas=0 here, and 1 on rank 1" in first[1]
