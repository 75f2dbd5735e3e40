"""Fields of bfloat16 and float8, which NumPy has from another package; and samples by slices, lists and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import FieldInfo, GlobalShuffle, Loader, Ragged, ShardedStore, from_samples
from samples import COUNTS, check, shard, whole

TOTAL = sum(COUNTS)
EACH = 20


def narrow(group: pyfab.Group) -> dict[str, Any]:
    import ml_dtypes

    numbers = np.arange(EACH) + EACH * group.rank
    return {
        "b": np.repeat(numbers, 3).reshape(-1, 3).astype(ml_dtypes.bfloat16),
        "q": (numbers % 16).astype(ml_dtypes.float8_e4m3fn),
        "e": (numbers % 8).astype(ml_dtypes.float8_e5m2),
        "r": Ragged.from_samples([np.full(i % 4, i, ml_dtypes.bfloat16) for i in numbers]),
        "label": numbers,
    }


def check_narrow(batch: dict[str, Any], labels: list[int]) -> None:
    assert batch["label"].tolist() == labels
    assert np.asarray(batch["b"], "f4").tolist() == [[i] * 3 for i in labels]
    assert np.asarray(batch["q"], "f4").tolist() == [i % 16 for i in labels]
    assert np.asarray(batch["e"], "f4").tolist() == [i % 8 for i in labels]
    assert [np.asarray(row, "f4").tolist() for row in batch["r"]] == [[i] * (i % 4) for i in labels]


def gathers_narrow(group: pyfab.Group) -> None:
    with ShardedStore(group, narrow(group), replicas=2) as store:
        labels = [39, 0, 21, 7]
        batch = store.gather(labels)
        check_narrow(batch, labels)
        assert batch["b"].dtype.name == "bfloat16" and "'b': bfloat16[3], 'q': float8_e4m3fn[]" in repr(store)
        check_narrow(store.gather(labels, batch), labels)
        (lent,) = Loader(store, [labels], copy=False)
        check_narrow(lent, labels)
        store.verify()
        schema = [field for field in store.fields if field.name in "bq"]
    given = [{"b": np.full(3, i + 0.5), "q": i + 0.0} for i in range(2)]
    with ShardedStore(group, from_samples(given, schema)) as store:
        assert list(store.fields) == schema
        assert np.asarray(store[1]["b"], "f4").tolist() == [1.5] * 3


def test_bfloat16_and_float8():
    pytest.importorskip("ml_dtypes")
    pyfab.spawn(gathers_narrow, 2, links="shm", timeout=60)


def loads_narrow(group: pyfab.Group) -> list[int]:
    import torch
    from pyfab.torch import ShardedDataset, ShardedLoader
    from torch.utils.data import DataLoader

    given = narrow(group)
    given["b"] = (
        torch.arange(EACH * group.rank, EACH * group.rank + EACH)[:, None].expand(-1, 3).to(torch.bfloat16)
    )
    seen: list[int] = []
    with ShardedStore(group, given) as store:
        data = ShardedDataset(store)
        for loader in (
            ShardedLoader(store, GlobalShuffle(store, 8)),
            ShardedLoader(store, GlobalShuffle(store, 8), copy=False),
            DataLoader(data, batch_sampler=GlobalShuffle(store, 8)),
            DataLoader(data, batch_sampler=GlobalShuffle(store, 8), num_workers=1),
        ):
            for batch in loader:
                assert batch["b"].dtype == torch.bfloat16 and batch["q"].dtype == torch.float8_e4m3fn
                values, offsets = batch["r"]
                assert batch["e"].dtype == torch.float8_e5m2 and values.dtype == torch.bfloat16
                rows = [values[offsets[i] : offsets[i + 1]].float() for i in range(len(offsets) - 1)]
                floats = {name: batch[name].float().numpy() for name in "bqe"}
                check_narrow({**floats, "r": rows, "label": batch["label"]}, batch["label"].tolist())
                seen += batch["label"].tolist()
        assert ShardedDataset(store, transform=lambda sample: sample["b"] * 2)[3].tolist() == [6.0] * 3
    return seen


def test_bfloat16_and_float8_as_tensors():
    pytest.importorskip("ml_dtypes")
    pytest.importorskip("torch")
    first, second = pyfab.spawn(loads_narrow, 2, links="shm", timeout=60)
    assert sorted(first + second) == sorted(4 * list(range(2 * EACH)))


def test_names_of_dtypes(monkeypatch):
    assert str(FieldInfo("x", "bfloat16", (2,), True)) == "'x': ragged bfloat16[2]"
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match="pip install ml_dtypes"):
        _ = FieldInfo("x", "bfloat16", (2,), False).row


CHOICES: list[Any] = [
    slice(3, 5),
    slice(None, None, -7),
    slice(5, 3),
    slice(-4, None),
    slice(1, 30, 4),
    [7, -1, 7],
    [],
    np.arange(0, 40, 9),
    np.arange(TOTAL) % 11 == 3,
    np.zeros(TOTAL, bool),
]
WRONG: list[Any] = [[TOTAL], [-TOTAL - 1], [0.5], [[1]], np.ones(3, bool), np.ones((1, TOTAL), bool)]


def test_slices_lists_and_masks():
    everything = whole(TOTAL)
    numbers = np.arange(TOTAL)
    for name in ("tokens", "boxes"):
        field = everything[name]
        for index in CHOICES:
            expected = numbers[np.asarray(index, np.int64) if isinstance(index, list) else index]
            part = field[index]
            assert isinstance(part, Ragged) and len(part) == len(expected)
            for sample, number in zip(part, expected, strict=True):
                np.testing.assert_array_equal(sample, field[number])
            assert part.offsets[0] == 0 and part.offsets[-1] == len(part.values)
        assert np.shares_memory(field[3:9].values, field.values)
        for index in WRONG:
            with pytest.raises(IndexError):
                field[index]


def chooses(group: pyfab.Group) -> None:
    with ShardedStore(group, shard(group.rank)) as store:
        for index in CHOICES:
            check(
                store[index],
                np.arange(TOTAL)[np.asarray(index, np.int64) if isinstance(index, list) else index],
                TOTAL,
            )
        for index in WRONG:
            with pytest.raises(IndexError):
                store[index]


@pytest.mark.slow
def test_a_store_by_slices_lists_and_masks():
    pyfab.spawn(chooses, len(COUNTS), links="shm", timeout=60)
