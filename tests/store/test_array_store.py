"""A dictionary in the memory of a group: what it holds, who gets it, and what is left after kill -9."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.store import Store, recover
from pyfab.store._layout import Layout, gap_for, place_of, record_of
from pyfab.store._looking import fetch, slot_start
from pyfab.store._recovery import _newest
from pyfab.store._store import _entry
from pyfab.store._values import flatten, restore

VALUES = [
    None, True, -(1 << 70), 2.5, "text", b"bytes", np.float32(3), [], (), {},
    np.arange(24, dtype=">i4").reshape(2, 3, 4)[:, ::2], np.array(7), np.zeros((0, 3)), np.array(["ab", "c"]),
    {"w": [np.eye(3), (np.arange(5, dtype=np.int8), None)], 3: {"x": b"", "b": [b"a", b"bc"]}, "n": [1, 2, 3]},
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Equal in values, types and dtypes."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_as_they_were(value):
    flat = flatten(value)
    content = np.zeros(flat.nbytes, np.uint8)
    start = 0
    for leaf in flat.leaves:
        content[start : start + leaf.nbytes] = leaf
        start += -(-leaf.nbytes // 64) * 64
    assert same(restore(flat.description, content), value)
    with pytest.raises(pyfab.FabricError):
        restore(flat.description[:-1], content)


@pytest.mark.parametrize(
    "value, text",
    [
        ({"a": [1, object()]}, r"the value\['a'\]\[1\] is a object"),
        (np.array([object()]), "the value has dtype object"),
        (np.zeros(2, [("x", int)]), "more than plain numbers"),
        ({1j: 2}, "no plain objects"),
    ],
)
def test_what_is_no_plain_value_is_refused(value, text):
    with pytest.raises(pyfab.InvalidArgumentError, match=text):
        flatten(value)


def test_the_widest_gap_is_taken():
    assert gap_for(3, [], 8) == (0, 8)
    assert gap_for(3, [(4, 1), (0, 2)], 8) == (5, 8)
    assert gap_for(4, [(4, 1), (0, 2)], 8) is None
    assert gap_for(1, [(0, 8)], 8) is None


class Shard:
    """A shard in memory of this process, which changes between the steps of a look."""

    def __init__(self) -> None:
        self.layout = Layout.of(10_000, 16)
        self.memory = np.zeros(self.layout.nbytes, np.uint8)

    def set(self, slot: int, key: str, version: int, unit: int, value: Any) -> None:
        place = place_of(key)
        record = record_of(place.key, version, flatten(value))
        location = self.layout.location(version, unit)
        start = self.layout.start(location)
        self.memory[start : start + record.nbytes] = record
        self.memory[slot_start(slot) :][:16].view(np.uint64)[:] = place.tag, location

    def clear(self, slot: int) -> None:
        self.memory[slot_start(slot) + 8 :][:8] = 0

    def get(self, key: str, *changes: Any) -> tuple[Any, int]:
        """What a get finds; change i comes before step i. And how many steps it took."""
        steps = fetch(self.layout, place_of(key), lambda held: _entry(held).value)
        row, count = next(steps), 0
        try:
            while True:
                if count < len(changes) and changes[count]:
                    changes[count]()
                count += 1
                row = steps.send(self.memory[row[0] : row[0] + row[1]].copy())
        except StopIteration as stop:
            return stop.value, count


def test_a_get_looks_again_when_something_has_changed():
    shard = Shard()
    assert shard.get("a") == (None, 1)
    shard.set(0, "a", 1, 0, "first")
    assert shard.get("a") == ("first", 3)
    shard.set(0, "a", 1, 0, "first" * 1000)
    assert shard.get("a") == ("first" * 1000, 4)

    def taken() -> None:  # a new value, and another key where the former one was
        shard.set(0, "a", 2, 90, "second")
        shard.set(1, "b", 3, 0, "b's")

    for moment in (1, 2, 3):
        shard.set(0, "a", 1, 0, "first" * 1000)
        shard.clear(1)
        assert shard.get("a", *[None] * moment, taken)[0] == "second"
        shard.set(0, "a", 1, 0, "first" * 1000)
        assert shard.get("a", *[None] * moment, lambda: shard.clear(0))[0] is None
    # Another key with the same tag is no reason to look again.
    shard.clear(1)
    shard.set(0, "b", 4, 0, "b's")
    shard.memory[slot_start(0) :][:8].view(np.uint64)[0] = place_of("a").tag
    shard.set(5, "a", 5, 90, "third")
    assert shard.get("a")[0] == "third"
    # What was there while it cannot be understood is damaged.
    shard.memory[shard.layout.start(shard.layout.location(5, 90)) + 30 :][:20] = 0
    with pytest.raises(pyfab.FabricError):
        shard.get("a")


def add(store: Store, key: str) -> None:
    """Adds 1, whoever else does the same."""
    while True:
        (entry,) = store.read([key])
        if store.compare_and_set(key, entry.version, (entry.value or 0) + 1).done:
            return


def use(group: pyfab.Group) -> None:
    with Store(group, keys=64) as store:
        versions = group.allgather(store.put(f"of {group.rank}", VALUES))
        entries = store.read([*(f"of {rank}" for rank in range(group.size)), "nobody's"])
        assert [entry.version for entry in entries] == [*versions, 0]
        assert all(same(entry.value, VALUES) for entry in entries[:-1])
        entries[0].value[10][...] = 1  # the arrays are the caller's
        assert store.get("nobody's", 5) == 5 and "nobody's" not in store
        group.barrier()
        done = group.allgather(store.compare_and_set("one", 0, group.rank))
        (winner,) = (rank for rank, swap in enumerate(done) if swap.done)
        assert {swap[1] for swap in done} == {store.version("one")} and store["one"] == winner
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda _: add(store, "sum"), range(6)))
        group.barrier()
        assert store["sum"] == 6 * group.size
        if group.rank == 0:
            with store._alone(place_of("sum"), None):  # as somebody who is stopped in the middle of a put
                group.barrier()
                group.barrier()
        else:
            group.barrier()
            with pytest.raises(pyfab.OperationTimeout, match="rank 0 holds it alone"):
                store.put("sum", 0, timeout=0.5)
            assert store["sum"] == 6 * group.size  # gets do not wait
            group.barrier()
        if group.rank == 0:
            assert store.watch("later", 0).value == "now"
            del store["one"]
        else:
            store.put("later", "now")
        group.barrier()
        assert store.version("one") == 0 and not store.delete("one")
        with pytest.raises(KeyError):
            store["one"]
        assert not store.compare_and_set("sum", 0, None).done
        with pytest.raises(pyfab.OperationTimeout, match="key 'sum' still has version"):
            store.watch("sum", store.version("sum"), timeout=0)
        with pytest.raises(pyfab.InvalidArgumentError, match="a key is a text, not a int"):
            store.get(1)
    with pytest.raises(pyfab.ClosedError):
        store.get("of 0")


@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_every_rank_has_every_key(links):
    pyfab.spawn(use, 3, links=links, timeout=100)


def look(group: pyfab.Group) -> None:
    with Store(group, replicas=0) as store:
        if group.rank == 0:
            store.put("a", {"x": np.arange(10), "s": "text"})
        group.barrier()
        view = store.view("a")
        assert view is not None and view.is_current() and view.value["s"] == "text"
        assert (view.value["x"] == np.arange(10)).all()
        with pytest.raises(ValueError, match="read-only"):
            view.value["x"][0] = 1
        group.barrier()
        if group.rank == 1:
            store.put("a", {"x": np.zeros(10, int), "s": "text"})
        group.barrier()
        assert not view.is_current() and store.view("b") is None
        # The memory stays, whoever ends.
        view = store.view("a")
    assert view is not None and not view.value["x"].any() and not view.is_current()


@pytest.mark.slow
def test_views_are_in_place_and_say_whether_they_are_current():
    pyfab.spawn(look, 2, links="shm", timeout=60)


def fill(group: pyfab.Group) -> None:
    """Against a plain dict: places are taken again, and what does not fit changes nothing."""
    chance = random.Random(1)
    with Store(group, capacity=13_000, keys=16, replicas=0) as store:
        room, model, refused = 16, {}, {"keys": 0, "capacity": 0}
        for step in range(300):
            key = f"key {chance.randrange(24)}"
            if chance.random() < 0.3:
                assert store.delete(key) == (model.pop(key, None) is not None)
                continue
            value = np.full(chance.randrange(150), step)
            try:
                store.put(key, value)
                model[key] = value
            except pyfab.TooSmallError as error:
                refused["keys" if "keys" in str(error) else "capacity"] += 1
        found = store.read([f"key {number}" for number in range(24)])
        assert all(same(each.value, model.get(f"key {number}")) for number, each in enumerate(found))
        assert store.keys() == sorted(model)
        assert len(model) <= room and all(refused.values()), (len(model), refused)


@pytest.mark.slow
def test_room_is_used_again_and_has_an_end():
    pyfab.spawn(fill, 1, links="shm", timeout=60)


def refuse(group: pyfab.Group) -> list[str]:
    told = []
    for call in (
        lambda: Store(group, capacity=0),
        lambda: Store(group, replicas=2),
        lambda: Store(group, keys=10 + group.rank),
        lambda: recover(group),
    ):
        with pytest.raises(pyfab.InvalidArgumentError) as caught:
            call()
        told.append(str(caught.value))
    with Store(group) as one, Store(group) as other:
        with pytest.raises(pyfab.InvalidArgumentError) as caught:
            recover(group, one if group.rank else other)
        told.append(str(caught.value))
    return told


@pytest.mark.slow
def test_what_is_refused():
    for text, wanted in zip(
        pyfab.spawn(refuse, 2, links="shm", timeout=60)[1],
        [
            "capacity=0",
            "replicas=2",
            "capacity, keys and replicas are [67108864, 11, 1] here, and [67108864, 10, 1] on rank 0",
            "no rank gave a store",
            "gave different stores",
        ],
        strict=True,
    ):
        assert wanted in text


# Rank 1 dies. The others notice by their next call, whichever it is, and what was in its memory is in that of others.
DEATH = """
import os, signal, sys
import numpy as np, pyfab
from pyfab.store import Store, recover

group = pyfab.Group.from_env(sys.argv[1])
former = Store(group, capacity=1 << 20, keys=64, replicas=int(sys.argv[2]))
versions = {f"{group.rank} {number}": former.put(f"{group.rank} {number}", np.full(100, number)) for number in range(8)}
versions = {key: version for some in group.allgather(versions) for key, version in some.items()}
group.barrier()
if group.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        former.read(versions)
        former.put(f"{group.rank} 0", np.zeros(100))
        versions[f"{group.rank} 0"] = former.version(f"{group.rank} 0")
except pyfab.PeerLostError as error:
    assert "call Group.shrink() and store.recover()" in str(error), error
try:
    former.get("any")
except pyfab.PeerLostError:
    pass
group = group.shrink()
try:
    store = recover(group, former)
except pyfab.PeerLostError as error:
    print(error)
    group.close()
    sys.exit()
try:
    former.get("any")
except pyfab.ClosedError:
    pass
entries = dict(zip(versions, store.read(versions)))
for key, entry in entries.items():
    rank, number = map(int, key.split())
    if number:
        assert entry.version == versions[key] and (entry.value == number).all() and entry.value.shape == (100,)
    else:
        assert entry.value is not None
assert entries[f"{group.rank + (group.rank > 0)} 0"].version >= versions[f"{group.rank + (group.rank > 0)} 0"]
assert store.put("new", 1) > max(versions.values())
store.close()
group.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_nothing_is_lost_while_a_replica_is_left(start_ranks, replicas):
    ranks = start_ranks(DEATH, 3, "shm", str(replicas))
    texts = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, -9, 0], texts
    lost = "the shards of the former ranks [1] are lost with all that held them"
    assert [lost in text for text in texts] == [replicas == 0, False, replicas == 0], texts


@pytest.mark.slow
def test_a_history_with_a_death_and_a_newcomer_is_linearizable():
    program = str(Path(__file__).parent / "history.py")
    words = ["--members", "3", "--kills", "1", "--operations", "600"]
    done = subprocess.run(
        [sys.executable, program, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "linearizable" in done.stdout


# In each round the last rank dies at one step of a write, in the last one another rank while it recovers.
STEPS = """
import os, signal, sys
import numpy as np, pyfab
import pyfab.store._recovery as recovery
from pyfab.store import Store, recover
from pyfab.store._copies import Copies
from pyfab.store._layout import place_of

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def key_of(shard, size):
    return next(key for key in map(str, range(1000)) if place_of(key).number % size == shard)

def write_and_die(store, key, step):
    if step == "add":
        Copies.add = die
    elif step == "between":
        usual = Copies._set
        def only_the_others(self, copy, start, word):
            return die() if start and copy is self._shards[store._shard(place_of(key))][0] else usual(self, copy, start, word)
        Copies._set = only_the_others
    else:
        store._cells.release = die
    store.put(key, "new")

group = pyfab.Group.from_env(sys.argv[1])
store = Store(group, capacity=1 << 20, keys=64, replicas=2)
told = []
for step in ("add", "between", "release"):
    size, victim = group.size, group.size - 1
    keys = [key_of(0, size), key_of(victim, size)]  # read at a rank that stays, and at the one that dies
    if group.rank == 0:
        versions = [store.put(key, "old") for key in keys]
    versions = group.broadcast(versions if group.rank == 0 else None)
    number = size % 2
    key = keys[number]
    if group.rank == victim:
        write_and_die(store, key, step)
    try:
        group.barrier()
    except pyfab.PeerLostError:
        pass
    try:
        store.read([key])
        store.put(key, "later")  # the lock is with the dead
    except pyfab.PeerLostError:
        pass
    group = group.shrink()
    if step == "release" and group.rank == group.size - 1:
        recovery.Store._restore = die
    try:
        store = recover(group, store)
    except pyfab.PeerLostError:
        group = group.shrink()
        store = recover(group, store)
    found, untouched = store.read([key, keys[1 - number]])
    assert untouched.value == "old", untouched
    told.append(group.allgather([step, found.value]))
    assert told[-1] == [told[-1][0]] * group.size
    assert store.put(key, "again") > found.version
    group.barrier()
print([each[0] for each in told])
store.close()
group.close()
"""


@pytest.mark.slow
def test_a_death_at_each_step_leaves_the_value_whole(start_ranks):
    ranks = start_ranks(STEPS, 6, "shm")
    texts = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, -9, -9, -9, -9], texts
    # Before the word is set anywhere nothing has changed; then what the copies know counts, if the rank that was read is gone.
    assert texts[:2] == ["[['add', 'old'], ['between', 'new'], ['release', 'new']]\n"] * 2


def test_a_store_that_was_filled_when_a_rank_died_is_taken():
    former, new = SimpleNamespace(_job=b"former"), SimpleNamespace(_job=b"new")
    one, filled, not_filled = (b"former", True), (b"new", True), (b"new", False)
    for told, expected in [
        ([[one], [one]], former),
        ([[one, not_filled], [one]], former),
        ([[one, not_filled], [one, filled]], new),
        ([[one, not_filled], [filled]], new),
        ([[filled], [one, filled], [filled, (b"later", False)]], new),
    ]:
        assert _newest(told, [former, new]) is expected
    for told in ([[one], [filled]], [[one, filled], [one]]):
        with pytest.raises(pyfab.InvalidArgumentError, match="gave different stores"):
            _newest(told, [former, new])
