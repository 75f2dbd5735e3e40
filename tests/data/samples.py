"""A data set whose every sample tells its own number, in shards of unequal size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab.data import Ragged

COUNTS = (37, 0, 120, 63)


def whole(total: int) -> dict[str, Any]:
    """Fixed-size fields of several types, and ragged ones, some of whose samples are empty."""
    numbers = np.arange(total)
    image = (numbers[:, None, None] * 7 + np.arange(12).reshape(3, 4)).astype(np.uint8)
    tokens = [np.full(i * 37 % 11, i, np.int32) for i in range(total)]
    boxes = [np.full((i % 3, 4), i, np.float32) for i in range(total)]
    return {
        "image": image,
        "label": numbers,
        "flag": numbers % 2 == 0,
        "tokens": ragged(tokens, np.int32, ()),
        "boxes": ragged(boxes, np.float32, (4,)),
    }


def ragged(samples: list[NDArray[Any]], dtype: Any, shape: tuple[int, ...]) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum([len(sample) for sample in samples])]).astype(np.int64)
    return Ragged(np.concatenate([np.empty((0, *shape), dtype), *samples]), offsets)


def cut(fields: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Samples [start, stop) of all fields."""
    part: dict[str, Any] = {}
    for name, values in fields.items():
        if isinstance(values, Ragged):
            offsets = values.offsets[start : stop + 1]
            part[name] = Ragged(values.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        else:
            part[name] = values[start:stop]
    return part


def shard(rank: int, counts: tuple[int, ...] = COUNTS) -> dict[str, Any]:
    """One rank's part of whole(sum(counts))."""
    start = sum(counts[:rank])
    return cut(whole(sum(counts)), start, start + counts[rank])


def check(batch: dict[str, Any], indices: NDArray[Any], total: int) -> None:
    """AssertionError unless these are the samples with these numbers."""
    expected = whole(total)
    numbers = np.asarray(indices) % total
    assert set(batch) == set(expected)
    for name, values in expected.items():
        if isinstance(values, Ragged):
            assert len(batch[name]) == len(numbers)
            for place, number in enumerate(numbers):
                np.testing.assert_array_equal(batch[name][place], values[number])
        else:
            np.testing.assert_array_equal(batch[name], values[numbers])
            assert batch[name].dtype == values.dtype
