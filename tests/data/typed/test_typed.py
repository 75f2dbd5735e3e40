"""Batches of a class that the program declares: for type checkers, and where a program runs."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pyfab
import pytest
from numpy.typing import NDArray
from pyfab.data import GlobalShuffle, Loader, ShardedStore


class Labels(TypedDict):
    label: NDArray[np.int64]


class AsDict(Labels, total=False):
    weight: NDArray[np.float32]


class AsTuple(NamedTuple):
    label: NDArray[np.int64]
    weight: NDArray[np.float32]


@dataclasses.dataclass
class AsObject:
    weight: NDArray[np.float32]
    label: NDArray[np.int64]
    seen: int = dataclasses.field(default=0, init=False)


class Wrong(TypedDict):
    label: NDArray[np.int64]
    text: NDArray[np.int64]


@pytest.fixture
def store() -> Any:
    content = {
        "weight": np.arange(12, dtype=np.float32) / 2,
        "label": np.arange(12),
        "image": np.zeros((12, 4)),
    }
    with pyfab.Group(0, 1, domain="shm") as group, ShardedStore(group, content) as store:
        yield store


@pytest.mark.parametrize("depth, copy", [(0, True), (2, True), (2, False)])
@pytest.mark.parametrize("kind", [AsDict, AsTuple, AsObject])
def test_batches_are_of_the_class_and_only_its_fields_are_read(
    store: ShardedStore, kind: type[Any], depth: int, copy: bool
) -> None:
    seen: list[int] = []
    for batch in Loader(store, GlobalShuffle(12, 4), depth, copy=copy, batch=kind):
        if kind is AsDict:
            assert sorted(batch) == ["label", "weight"]
            label, weight = batch["label"], batch["weight"]
        else:
            assert isinstance(batch, kind)
            label, weight = batch.label, batch.weight
            assert not hasattr(batch, "image")
        assert (weight == label / 2).all()
        seen += label.tolist()
    assert sorted(seen) == list(range(12))


def test_a_transform_takes_the_object(store: ShardedStore) -> None:
    loader = Loader(store, GlobalShuffle(12, 4), batch=AsTuple, transform=lambda batch: batch.label.sum())
    assert sum(loader) == sum(range(12))


def test_fields_that_there_are_not_are_named(store: ShardedStore) -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match="text"):
        Loader(store, GlobalShuffle(12, 4), batch=Wrong)


@pytest.mark.parametrize("kind", [int, dict, AsTuple(np.zeros(1, int), np.zeros(1, np.float32)), "AsTuple"])
def test_what_declares_no_fields_is_refused(store: ShardedStore, kind: Any) -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match="TypedDict, a NamedTuple or a dataclass"):
        Loader(store, GlobalShuffle(12, 4), batch=kind)


def test_fields_are_named_once(store: ShardedStore) -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match="one of both"):
        Loader(store, GlobalShuffle(12, 4), batch=AsTuple, fields=["label"])
