"""Every way to load × every way to be interrupted: each sample of an epoch is counted, and none is trained on twice or never.

The ranks are samplers and loaders over one store in this process; what must be processes is in test_recovery.py.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, JaxLoader, Loader, ShardedStore

TOTAL, BATCH, RANKS = 220, 16, 2
STEPS = 7  # of an epoch; the last one is smaller
TORCH = importlib.util.find_spec("torch") is not None
pytestmark = [
    # Workers, which are forks, call nothing of what has threads here.
    pytest.mark.filterwarnings("ignore:This process.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:only .* batches of epoch:RuntimeWarning"),
]


class Transform:
    """Fails once in one of its calls, when it is told to, and leaves the batch spoilt."""

    def __init__(self) -> None:
        self.left: int | None = None

    def __call__(self, batch: Any) -> Any:
        if self.left == 0:
            self.left = None
            if not hasattr(batch["label"], "at"):  # arrays of JAX do not change
                batch["label"][:] = -1
            raise ArithmeticError("on purpose")
        if self.left is not None:
            self.left -= 1
        return batch


class Rig:
    """One rank: a sampler, and what loads in its order."""

    def __init__(self, kind: str, store: ShardedStore, rank: int, size: int, **options: Any) -> None:
        self.order = GlobalShuffle(TOTAL, BATCH, seed=3, rank=rank, size=size)
        self.transform = Transform()
        self.kind = kind
        self.loader: Any = KINDS[kind](store, self.order, self.transform, **options)

    def __iter__(self) -> Iterator[list[int]]:
        return map(numbers_of, iter(self.loader))

    def state(self, done: int) -> Any:
        """After so many batches of the latest iteration."""
        if "DataLoader" in self.kind or self.kind == "sampler":
            return self.order.state_dict(batches=done)
        return self.loader.state_dict(batches=done)

    def load(self, state: Any) -> None:
        target = self.order if "DataLoader" in self.kind or self.kind == "sampler" else self.loader
        target.load_state_dict(state)


def numbers_of(batch: Any) -> list[int]:
    """The samples of a batch. That of a sampler is their numbers, which are their labels too."""
    labels: list[int] = np.asarray(batch["label"] if isinstance(batch, dict) else batch).tolist()
    return labels


def torch_kind(workers: int, **options: Any) -> Callable[..., Any]:
    def make(store: ShardedStore, order: GlobalShuffle, transform: Transform) -> Any:
        from pyfab.torch import ShardedDataset
        from torch.utils.data import DataLoader

        del transform
        if workers:
            options["multiprocessing_context"] = "fork"
        return DataLoader(ShardedDataset(store), batch_sampler=order, num_workers=workers, **options)

    return make


def sharded(store: ShardedStore, order: GlobalShuffle, transform: Transform, **options: Any) -> Any:
    from pyfab.torch import ShardedLoader

    return ShardedLoader(store, order, transform=transform, **options)


KINDS: dict[str, Callable[..., Any]] = {
    "sampler": lambda store, order, transform: order,  # noqa: ARG005
    "Loader": lambda store, order, transform, **o: Loader(store, order, transform=transform, **o),
    "Loader, lent": lambda store, order, transform, **o: Loader(
        store, order, copy=False, transform=transform, **o
    ),
    "Loader, depth 0": lambda store, order, transform, **o: Loader(store, order, 0, transform=transform, **o),
    "Loader, bar": lambda store, order, transform, **o: Loader(
        store, order, progress=True, transform=transform, **o
    ),
    "JaxLoader": lambda store, order, transform, **o: JaxLoader(store, order, transform=transform, **o),
    "ShardedLoader": sharded,
    "DataLoader, 0 workers": torch_kind(0),
    "DataLoader, 1 worker": torch_kind(1),
    "DataLoader, 2 workers": torch_kind(2),
    "DataLoader, 2 workers that stay": torch_kind(2, persistent_workers=True),
}
OURS = [kind for kind in KINDS if "DataLoader" not in kind and kind != "sampler"]


def need(kind: str) -> None:
    if kind == "JaxLoader":
        pytest.importorskip("jax")
    if kind == "ShardedLoader" or "DataLoader" in kind:
        pytest.importorskip("torch")


def one_at_a_time(kind: str) -> None:
    if "stay" in kind:
        pytest.skip("torch has one iterator for all passes of a DataLoader whose workers stay")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


@pytest.fixture(params=OURS)
def ours(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def store() -> Iterator[ShardedStore]:
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        ShardedStore(group, {"label": np.arange(TOTAL), "x": np.ones((TOTAL, 8), np.float32)}) as made,
    ):
        yield made


@pytest.fixture
def rigs(kind: str, store: ShardedStore) -> Iterator[list[Rig]]:
    made = [Rig(kind, store, rank, RANKS) for rank in range(RANKS)]
    yield made
    made.clear()  # workers end with their loader


def each_once(*batches: Any) -> None:
    """These lists of batches together have each sample of the data set once."""
    assert sorted(chain.from_iterable(chain.from_iterable(batches))) == list(range(TOTAL))


def order_of(epoch: int, samples: int = TOTAL) -> list[int]:
    first: list[int] = GlobalShuffle(TOTAL, BATCH, seed=3, rank=0, size=1).order(0, samples, epoch).tolist()
    return first


# --- a new iteration is a new pass


def test_a_look_at_the_first_batch_costs_nothing(rigs):
    for rig in rigs:
        next(iter(rig))
    each_once(*map(list, rigs))
    each_once(*map(list, rigs))


def test_a_look_by_one_rank_alone_costs_nothing(rigs):
    next(iter(rigs[0]))
    each_once(*map(list, rigs))


def test_a_pass_that_was_broken_off_is_begun_again(rigs):
    for rig in rigs:
        for _ in islice(rig, 2):
            pass
    each_once(*map(list, rigs))


@pytest.mark.parametrize("batches", [1, 3, STEPS - 1])
def test_parts_of_epochs_are_their_beginnings(rigs, batches):
    for epoch in range(3):
        for rig in rigs:
            rig.order.set_epoch(epoch)
        parts = [list(islice(rig, batches)) for rig in rigs]
        steps = chain.from_iterable(zip(*parts, strict=True))
        assert list(chain.from_iterable(steps)) == order_of(epoch, batches * BATCH * RANKS)


def test_set_epoch_begins_the_epoch_again(rigs):
    for rig in rigs:
        for _ in islice(rig, 2):
            pass
        rig.order.set_epoch(0)
    each_once(*map(list, rigs))


def test_epochs_follow_each_other_where_nobody_sets_them(rigs):
    passes = [[list(rig) for rig in rigs] for _ in range(3)]
    for one in passes:
        each_once(*one)
    assert passes[0] != passes[1] != passes[2]


def test_two_iterations_have_places_of_their_own(kind, rigs):
    one_at_a_time(kind)
    for rig in rigs:
        pairs = list(zip(rig, rig, strict=True))
        assert len(pairs) == STEPS
        for first, second in pairs:
            assert first == second
    each_once(*map(list, rigs))


# --- going on


def train(rig: Rig, seen: list[list[int]], done: int) -> None:
    """Steps, of which one fails when so many are done."""
    for batch in rig:
        if len(seen) == done:
            break
        seen.append(batch)
    raise ArithmeticError("on purpose")


@pytest.mark.parametrize("done", [0, 1, 3, STEPS - 1, STEPS])
def test_a_failed_step_is_taken_again(rigs, done):
    trained: list[list[list[int]]] = [[] for _ in rigs]
    for rig, seen in zip(rigs, trained, strict=True):
        with pytest.raises(ArithmeticError):
            train(rig, seen, done)
        rig.load(rig.state(done))
    for rig, seen in zip(rigs, trained, strict=True):
        if done < STEPS:
            seen += rig
    each_once(*trained)


@pytest.mark.parametrize("size", [1, 3])
def test_another_number_of_ranks_goes_on(kind, rigs, size, store):
    trained = []
    for rig in rigs:
        iterator = iter(rig)
        trained.append([next(iterator) for _ in range(3)])
        next(iterator)  # its step fails
        del iterator
    state = rigs[0].state(3)
    assert state == rigs[1].state(3)
    others = [Rig(kind, store, rank, size) for rank in range(size)]
    for other in others:
        other.load(state)
        other.order.set_epoch(0)  # as loops over epochs do
        if "worker" not in kind:  # which draw all of so few batches ahead, and so have ended the epoch
            next(iter(other))  # a look costs nothing here either
    each_once(*trained, *map(list, others))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_torchdata_keeps_the_state_by_itself(store):
    pytest.importorskip("torchdata.stateful_dataloader")
    from pyfab.torch import ShardedDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    for workers in (0, 2):

        def made(workers: int = workers) -> Any:
            order = GlobalShuffle(store, BATCH)
            return StatefulDataLoader(ShardedDataset(store), batch_sampler=order, num_workers=workers)

        loader = made()
        iterator = iter(loader)
        seen = [numbers_of(next(iterator)) for _ in range(3)]
        state = loader.state_dict()
        del iterator
        again = made()
        again.load_state_dict(state)
        each_once(seen, map(numbers_of, again))
        each_once(map(numbers_of, again))
        each_once(map(numbers_of, loader))


# --- loaders of the library


@pytest.mark.parametrize("fails", [0, 3, STEPS - 1])
def test_a_batch_that_could_not_be_transformed_comes_with_the_next_call(ours, store, fails):
    rig = Rig(ours, store, 0, 2)
    other = Rig(ours, store, 1, 2)
    rig.transform.left = fails
    iterator = iter(rig)
    seen = list(islice(iterator, fails))
    with pytest.raises(ArithmeticError):
        next(iterator)
    assert rig.loader.state_dict()["cursor"] == fails * BATCH * 2
    seen += iterator
    each_once(seen, other)


@pytest.mark.parametrize("fails", [0, 3, STEPS - 1])
def test_a_batch_that_could_not_be_transformed_is_in_the_state(ours, store, fails):
    rigs = [Rig(ours, store, rank, 2) for rank in range(2)]
    seen: list[list[list[int]]] = [[], []]
    for rig, batches in zip(rigs, seen, strict=True):
        rig.transform.left = fails
        with pytest.raises(ArithmeticError):
            batches += rig
    for rig, batches in zip(rigs, seen, strict=True):
        rig.load(rig.loader.state_dict())
        batches += rig
    each_once(*seen)


def test_parts_of_one_epoch_where_that_is_asked_for(ours, store):
    rigs = [Rig(ours, store, rank, 2, resume=True) for rank in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = [[list(islice(rig, 3)) for _ in range(2)] + [list(rig)] for rig in rigs]
    assert [[len(part) for part in of_rank] for of_rank in parts] == [[3, 3, STEPS - 6]] * 2
    each_once(*chain.from_iterable(parts))
    each_once(*map(list, rigs))
    with pytest.raises(pyfab.InvalidArgumentError, match="GlobalShuffle"):
        Loader(store, [[0]], resume=True)


def test_lent_batches_of_two_iterations_do_not_mix(store):
    loader = Loader(store, GlobalShuffle(store, BATCH), copy=False)
    iterators = iter(loader), iter(loader)
    first, expected = next(iterators[0]), next(iter(GlobalShuffle(store, BATCH)))
    for _ in islice(iterators[1], loader.depth + 4):
        pass
    np.testing.assert_array_equal(first["label"], expected)


# --- what is said of a pass that is dropped


def test_a_pass_that_is_dropped_warns_once(kind, store):
    one_at_a_time(kind)
    rig = Rig(kind, store, 0, 1)
    for _ in islice(rig, 2):
        pass
    with pytest.warns(RuntimeWarning, match=r"batches of epoch 0 were used.*set_epoch\(0\)") as told:
        passes = [list(rig), list(islice(rig, 1)), list(rig)]
    assert [len(one) for one in passes] == [14, 1, 14]
    (one,) = (warning for warning in told if "batches of epoch" in str(warning.message))
    assert one.filename == __file__


def test_nothing_is_said_to_those_who_say_a_word(kind, store):
    rig = Rig(kind, store, 0, 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "only .* batches")
        list(rig)
        list(rig)
        for _ in islice(rig, 2):
            pass
        rig.order.set_epoch(2)
        for _ in islice(rig, 2):
            pass
        rig.load(rig.state(2))
        list(rig)
        if "stay" not in kind:
            alive = iter(rig)
            next(alive)
            list(rig)  # the other pass is not dropped
            assert len(list(alive)) > 0
