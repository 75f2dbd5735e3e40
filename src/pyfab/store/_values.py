"""Values as bytes: nested dicts, lists and tuples of arrays and plain objects. Nothing is pickled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import FabricError, InvalidArgumentError
from pyfab.group import objects

ALIGNMENT = 64
"""Bytes of which the place of each array is a multiple."""


class Flat(NamedTuple):
    """A value in two parts: `description` says what it is, `leaves` are the bytes of its arrays."""

    description: bytes
    leaves: list[NDArray[np.uint8]]

    @property
    def nbytes(self) -> int:
        """Bytes of the leaves, each at a multiple of the alignment."""
        return sum(aligned(leaf.nbytes) for leaf in self.leaves)


def aligned(nbytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def flatten(value: Any) -> Flat:
    """InvalidArgumentError names what cannot be stored. Arrays that lie in one piece are not copied."""
    leaves: list[NDArray[np.uint8]] = []
    kinds: list[tuple[str, tuple[int, ...]]] = []

    def strip(item: Any, name: str) -> Any:
        if type(item) is dict:
            return {key: strip(each, f"{name}[{key!r}]") for key, each in item.items()}
        if type(item) in (list, tuple):
            return type(item)(strip(each, f"{name}[{number}]") for number, each in enumerate(item))
        if isinstance(item, bytes):
            return keep("", (len(item),), np.frombuffer(item, np.uint8))
        if isinstance(item, np.ndarray):
            dtype = item.dtype
            if not objects.is_plain_dtype(dtype) or not dtype.itemsize:
                raise InvalidArgumentError(
                    f"{name} has dtype {dtype}, which is more than plain numbers or texts: give it as a view of another one"
                )
            flat = np.ascontiguousarray(item).reshape(-1)
            return keep(dtype.str, item.shape, flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8))
        if item is None or isinstance(item, bool | int | float | str | np.generic):
            return item
        raise InvalidArgumentError(
            f"{name} is a {type(item).__name__}: a store holds dicts, lists and tuples of NumPy's arrays, numbers, texts, bytes"
            " and None"
        )

    def keep(dtype: str, shape: tuple[int, ...], content: NDArray[np.uint8]) -> bytes:
        leaves.append(content)
        kinds.append((dtype, shape))
        return (len(leaves) - 1).to_bytes(4, "little")  # stands for the leaf in the description

    description = objects.encode((strip(value, "the value"), kinds))
    if not objects.is_plain(description):
        raise InvalidArgumentError(
            "the value has keys or scalars that are no plain objects, or more containers in each other than"
            f" {objects.DEEPEST - 1}"
        )
    return Flat(description, leaves)


def restore(description: bytes, content: NDArray[np.uint8]) -> Any:
    """The value. Its arrays are views of `content`. FabricError if the two do not describe a value."""
    if not objects.is_plain(description):
        raise FabricError("what the store holds is no description of a value")
    try:
        skeleton, kinds = objects.decode(description)
        leaves = list(_leaves(kinds, content))
        return _filled(skeleton, leaves)
    except (TypeError, ValueError, IndexError) as error:
        if isinstance(error, FabricError):
            raise
        raise FabricError(f"what the store holds is no value: {ascii(str(error))[:200]}") from None


def _leaves(kinds: Any, content: NDArray[np.uint8]) -> Iterator[Any]:
    start = 0
    for name, shape in kinds:
        dtype = objects.plain_dtype(name or "|u1")
        nbytes = dtype.itemsize * math.prod(shape)
        if not 0 <= nbytes <= content.nbytes - start:
            raise FabricError("what the store holds is shorter than its description")
        piece = content[start : start + nbytes]
        yield piece.view(dtype).reshape(shape) if name else piece.tobytes()
        start += aligned(nbytes)


def _filled(item: Any, leaves: list[Any]) -> Any:
    if type(item) is dict:
        return {key: _filled(each, leaves) for key, each in item.items()}
    if type(item) in (list, tuple):
        return type(item)(_filled(each, leaves) for each in item)
    return leaves[int.from_bytes(item, "little")] if type(item) is bytes else item
