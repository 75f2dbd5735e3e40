"""Stores that grow: samples that are appended, what goes on with the old ones, errors of one rank, and ranks that die later."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, LengthBuckets, Loader, Mix, Ragged, ShardedStore, from_samples
from samples import check, cut, shard, whole
from test_tables import mappings

COUNTS, TOTAL = (10, 0, 25), 35
LATER, MORE = ((0, 4, 5), (3, 0, 0)), (44, 47)


def part(rank: int, turn: int) -> dict[str, Any] | None:
    """What a rank appends in a turn, so that sample i of the store is sample i of `whole`."""
    start = TOTAL + sum(map(sum, LATER[:turn])) + sum(LATER[turn][:rank])
    count = LATER[turn][rank]
    return cut(whole(MORE[-1]), start, start + count) if count else None


def check_all(store: ShardedStore, total: int) -> None:
    assert len(store) == total
    everything = np.arange(total)[::-1]
    check(store.gather(everything), everything, total)
    check(store.gather_async([-1, 0]).result(30), np.array([total - 1, 0]), total)
    assert store.gather([total - 1], fields=["label"])["label"].tolist() == [total - 1]
    with pytest.raises(IndexError):
        store.gather([total])


def grows(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank, COUNTS), replicas=2, memory_limit=10_000) as store:
        check_all(store, TOTAL)
        engine = store._engine()
        before = {number: held.memories for number, held in engine._own.items()}
        former = pickle.loads(pickle.dumps(store))
        assert store.append(None) == range(TOTAL, TOTAL) and store._engine() is engine
        for turn, total in enumerate(MORE):
            first = len(store)
            under_way = store.gather_async(np.arange(first))
            read = store._engine()._counts().nbytes
            assert store.append(part(group.rank, turn)) == range(first, total)
            assert (np.array(store._engine()._counts().nbytes) >= read).all()
            assert any(map(any, group.allgather(read)))
            check(under_way.result(30), np.arange(first), first)
            check_all(store, total)
        for number, memories in before.items():  # nothing of the old samples was copied
            assert all(a is b for a, b in zip(store._engine()._own[number].memories, memories, strict=True))
        store.verify()
        assert store.counts == tuple(np.sum([COUNTS, *LATER], 0))
        assert store.lengths("tokens").tolist() == [i * 37 % 11 for i in range(MORE[-1])]
        assert {len(store.holders(i)) for i in range(len(store))} == {2}
        check_all(former, TOTAL)
        with pickle.loads(pickle.dumps(store)) as later, former:
            check_all(later, MORE[-1])
            if store._tables:  # three parts, each once on the node
                assert len(mappings(later)) == len(mappings(store)) == 1 + len(MORE)
            with pytest.raises(pyfab.InvalidArgumentError, match="only reads the store"):
                later.append(None)
        with ShardedStore.moved(group, store) as moved:
            check_all(moved, MORE[-1])
            assert moved._totals == [TOTAL, *MORE]


@pytest.mark.slow
def test_a_store_grows(links):
    pyfab.spawn(grows, 3, links=links, timeout=90)


def texts(rank: int, count: int = 3, **instead: Any) -> list[dict[str, Any]]:
    return [{"text": f"text {rank}.{i}", "x": np.full(2, i, np.float32)} | instead for i in range(count)]


def is_refused(group: pyfab.Group) -> list[str]:
    told = []
    with ShardedStore(group, from_samples(texts(group.rank)), memory_limit=1000) as store:
        other = ShardedStore(group, {"x": np.arange(group.rank)})
        left = store._memory._left
        wrong: list[Any] = [
            lambda: [*texts(1), {"text": "one more", "x": np.zeros(3, np.float32)}],
            [*texts(1), {"text": "without x"}],
            {"text": Ragged(np.zeros(4, np.uint8), [0, 1, 4]), "x": np.zeros((2, 2))},
            {"x": np.zeros((2, 2), np.float32)},
            lambda: 1 // 0,
            7,
        ]
        for given in wrong:
            with pytest.raises((pyfab.FabricError, ZeroDivisionError)) as error:
                store.append(given if group.rank == 1 else texts(group.rank, 10))
            told.append(str(error.value))
            assert len(store) == 9 and store._memory._left == left and store._totals == [9]
        with pytest.raises(pyfab.InvalidArgumentError) as error:
            (other if group.rank == 1 else store).append(None)
        told.append(str(error.value))
        assert store.append(iter(texts(group.rank, 1)) if group.rank == 1 else None) == range(9, 10)
        assert bytes(store[9]["text"]) == b"text 1.0" and bytes(store[8]["text"]) == b"text 2.2"
        other.close()
    return told


@pytest.mark.slow
def test_what_one_rank_gives_wrong_changes_no_rank():
    told = pyfab.spawn(is_refused, 3, links="shm", timeout=60)
    for texts in (told[0], told[2]):
        assert "rank 1 could not append its samples" in texts[0]
        assert "sample 3: field 'x' has samples of float32[3]; the schema says 'x': float32[2]" in texts[0]
        assert (
            "rank 1 could not append its samples" in texts[1] and "sample 3 has the fields text" in texts[1]
        )
        assert "rank 1 gave the fields ('x': float64[2]), the store has ('x': float32[2])" in texts[2]
        assert "rank 1 gave the fields ('x': float32[2]), the store has ('text': ragged" in texts[3]
        assert "rank 1 could not append its samples: ZeroDivisionError" in texts[4]
        assert "rank 1 could not append its samples" in texts[5] and "type int" in texts[5]
        assert "of another store" in texts[6]
    assert "sample 3: field 'x'" in told[1][0] and "division" in told[1][4]


def loses_one(group: pyfab.Group, killed: str) -> list[int]:
    """Rank 1 dies after an append: what it gave is read from others, moves with the rest, and more is appended."""
    store = ShardedStore(group, shard(group.rank, COUNTS), replicas=2)
    store.append(part(group.rank, 0))
    order = GlobalShuffle(store, 4, seed=1)
    loader = Loader(store, order)
    group.barrier()
    print("ready", flush=True)
    while not Path(killed).exists():
        time.sleep(0.005)  # nothing tells of a file that another process makes
    check_all(store, MORE[0])
    with pytest.raises(pyfab.FabricError):
        store.append(part(group.rank, 1))
    check_all(store, MORE[0])
    left = group.shrink()
    with ShardedStore.moved(left, store) as moved:
        assert moved.append(part(group.rank, 1)) == range(*MORE)
        check_all(moved, MORE[1])
        moved.verify()
        order.set_ranks(left.rank, left.size)
        loader = Loader(moved, order)
        seen = [int(number) for batch in loader for number in batch["label"]]
    store._end(wait=False)
    left.close()
    return seen


@pytest.mark.slow
def test_what_was_appended_outlives_the_rank_that_gave_it(start, tmp_path, links):
    ranks = start(loses_one, 3, links, str(tmp_path / "killed"))
    for rank in range(3):
        ranks.wait_for(rank, "ready")
    ranks.kill(1)
    (tmp_path / "killed").touch()
    seen = ranks.results([0, 2])
    assert sorted(seen[0] + seen[1]) == list(range(MORE[1]))


def begins(group: pyfab.Group) -> tuple[list[list[int]], list[dict[str, int]]]:
    """Three steps of an epoch, an append, three more, and their states."""
    with ShardedStore(group, {"label": np.arange(20) + 20 * group.rank}) as store:
        loader = Loader(store, GlobalShuffle(store, 2, seed=3))
        seen, states = [], []
        batches = iter(loader)
        for turn in range(6):
            seen.append(next(batches)["label"].tolist())
            if turn == 2:
                states.append(loader.state_dict())
                store.append({"label": np.arange(60, 65) + 5 * group.rank})
        states.append(loader.state_dict())
        return seen, states


def goes_on(group: pyfab.Group, states: list[dict[str, int]]) -> list[list[list[int]]]:
    parts = []
    with ShardedStore(group, {"label": np.arange(30) + 30 * group.rank}) as store:
        loader = Loader(store, GlobalShuffle(store, 2, seed=3))
        loader.load_state_dict(states[0])  # of 60 samples, which it has
        store.append({"label": np.arange(60, 75)} if group.rank == 0 else None)
        for state in states:
            loader.load_state_dict(state)
            assert len(loader) == -(-(60 - state["cursor"]) // (2 * group.size))
            parts.append([batch["label"].tolist() for batch in loader])
            assert len(loader) == -(-75 // (2 * group.size))  # the next epoch has all
        parts.append([batch["label"].tolist() for batch in loader])
        with pytest.raises(pyfab.InvalidArgumentError, match="of 61 samples, this one has 75, before"):
            loader.load_state_dict(states[0] | {"n": 61})
        for n in (store, 60):
            late = Loader(store, GlobalShuffle(n, 2, seed=3, rank=group.rank, size=group.size))
            late.load_state_dict(states[1])
            assert [batch["label"].tolist() for batch in late] == parts[1]
    return parts


@pytest.mark.slow
def test_an_epoch_ends_with_the_samples_that_it_began_with():
    begun = pyfab.spawn(begins, 3, links="shm", timeout=60)
    states = begun[0][1]
    assert [(state["n"], state["cursor"]) for state in states] == [(60, 18), (60, 36)]
    went_on = pyfab.spawn(goes_on, 2, states, links="shm", timeout=60)
    seen = [number for rank in begun for batch in rank[0] for number in batch]
    for which, used in enumerate((18, 36)):
        steps = [np.concatenate([rank[0][turn] for rank in begun]) for turn in range(used // 6)]
        rest = [number for rank in went_on for batch in rank[which] for number in batch]
        assert sorted(np.concatenate(steps).tolist() + rest) == list(range(60))
    assert len(seen) == 36
    assert sorted(number for rank in went_on for batch in rank[2] for number in batch) == list(range(75))


@pytest.fixture
def alone() -> Any:
    with pyfab.Group(0, 1, domain="shm") as group:
        yield group


def test_passes_and_other_orders_keep_what_they_began_with(alone):
    texts = Ragged(np.arange(10), np.arange(11))
    with ShardedStore(alone, {"text": texts, "n": np.arange(10)}) as store:
        order, plain = GlobalShuffle(store, 3, seed=1), GlobalShuffle(10, 3, rank=0, size=1)
        alike = LengthBuckets(store, 3, lengths="text")
        first, expected = iter(order), [batch.tolist() for batch in GlobalShuffle(10, 3, seed=1)]
        began = [next(first).tolist()]
        store.append({"text": texts, "n": np.arange(10, 20)})
        assert (len(order), len(plain), len(alike)) == (7, 4, 4)
        order.set_epoch(0)
        second = [batch.tolist() for batch in order]  # the same epoch, begun anew
        assert sorted(np.concatenate(second)) == list(range(20))
        assert began + [batch.tolist() for batch in first] == expected
        assert order.epoch == 1 and order.state_dict()["n"] == 20
        assert sorted(np.concatenate(list(Loader(store, alike, transform=lambda b: b["n"])))) == list(
            range(10)
        )
        assert alike.state_dict()["n"] == 10


def test_a_mix_goes_on_over_an_append(alone):
    """The stream, and states of any of its batches, are as without a stop."""
    with (
        ShardedStore(alone, {"n": np.arange(10)}) as web,
        ShardedStore(alone, {"n": np.arange(100, 105)}) as books,
    ):

        def mix() -> Mix:
            orders = (GlobalShuffle(web, 3, seed=1), GlobalShuffle(books, 2, seed=1))
            loaders = (Loader(web, orders[0]), Loader(books, orders[1]))
            return Mix(dict(zip(loaders, (2, 1), strict=True)), seed=5)

        stream = mix()
        batches, given = iter(stream), []
        for turn in range(40):
            given.append(next(batches)["n"].tolist())
            if turn == 6:
                web.append({"n": np.arange(10, 17)})
        assert {number for batch in given for number in batch} > set(range(17))
        for done in (1, 6, 7, 8, 9, 20, 40):
            state = stream.state_dict(batches=done)
            other = mix()
            other.load_state_dict(state)
            again = iter(other)
            # A pass that had not begun when samples were appended has them.
            if done >= 7:
                assert [next(again)["n"].tolist() for _ in range(40 - done)] == given[done:], done
