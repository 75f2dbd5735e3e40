"""Where a publisher has its tensors, and what it tells its readers of that.

The memory of a publisher begins with a header of 16 bytes for each buffer: a sequence number, which is odd while the buffer is
written, and the version that the buffer holds. The buffers follow, each with the CRC-32 of every tensor and then the tensors
themselves, in C order. Everything begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyfab import versions
from pyfab.core.errors import FabricError, InvalidArgumentError
from pyfab.core.region import RemoteRegion
from pyfab.weights._tensors import Box, Kind, Leaf, elements

HEADER = np.dtype([("sequence", np.uint64), ("version", np.uint64)])
CALL = "weights.Publisher() or weights.Reader()"
TAKE_PART = f"take part in {CALL}"
MOST_VERSION = 2**64 - 1
_ALIGNED = 64


def aligned(nbytes: int) -> int:
    """The next multiple of 64."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def complete(headers: NDArray[np.void]) -> dict[int, int]:
    """The buffers that hold a version wholly, by version, of memory with these headers."""
    return {
        version: buffer
        for buffer, (sequence, version) in enumerate(headers.tolist())
        if sequence and not sequence % 2
    }


class Held(NamedTuple):
    """One array of a publisher: `offset` is where its bytes begin in each buffer."""

    name: str
    kind: Kind
    box: Box
    offset: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return elements(self.box) * self.kind.itemsize


class Layout(NamedTuple):
    """What a publisher has in each of its `buffers` buffers of `size` bytes."""

    held: tuple[Held, ...]
    buffers: int
    size: int
    checksums: bool

    @classmethod
    def of(cls, leaves: Sequence[Leaf], buffers: int, checksums: bool) -> Layout:
        """The layout for these arrays."""
        offset = aligned(4 * len(leaves)) if checksums else 0
        held = []
        for leaf in leaves:
            held.append(Held(leaf.name, leaf.kind, leaf.box, offset))
            offset += aligned(leaf.nbytes)
        return cls(tuple(held), buffers, max(offset, _ALIGNED), checksums)

    def start(self, buffer: int) -> int:
        """Where a buffer begins in the memory of the publisher."""
        return aligned(self.buffers * HEADER.itemsize) + buffer * self.size

    @property
    def nbytes(self) -> int:
        """The memory of the publisher."""
        return self.start(self.buffers)


class Card(NamedTuple):
    """All that a reader needs to know of a publisher: a name for errors, the address of its endpoint, and its memory."""

    who: str
    address: bytes
    region: RemoteRegion
    layout: Layout

    def to_bytes(self) -> bytes:
        """The same for the way to other processes."""
        layout = self.layout
        tensors = [
            (one.name, one.kind.dtype, one.kind.itemsize, one.kind.shape, one.box, one.offset)
            for one in layout.held
        ]
        told = {
            "format": versions.WEIGHTS,
            "who": self.who,
            "address": base64.b64encode(self.address).decode(),
            "region": base64.b64encode(self.region.to_bytes()).decode(),
            "buffers": layout.buffers,
            "size": layout.size,
            "checksums": layout.checksums,
            "tensors": tensors,
        }
        return json.dumps(told).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Card:
        """The inverse. InvalidArgumentError for what is no card, or one of another version."""
        try:
            told = json.loads(data)
            if told["format"] != versions.WEIGHTS:
                raise InvalidArgumentError(
                    f"the publisher's card has format {told['format']}, this pyfab reads {versions.WEIGHTS}: use one version"
                )
            held = tuple(_held(tensor) for tensor in told["tensors"])
            layout = Layout(held, int(told["buffers"]), int(told["size"]), bool(told["checksums"]))
            region = RemoteRegion.from_bytes(base64.b64decode(told["region"]))
            card = cls(str(told["who"]), base64.b64decode(told["address"]), region, layout)
        except (ValueError, TypeError, KeyError, binascii.Error) as error:
            if isinstance(error, FabricError):
                raise
            raise InvalidArgumentError(
                f"not the card of a publisher: {type(error).__name__}: {error}"
            ) from None
        fits = all(0 <= one.offset <= layout.size - one.nbytes for one in held)
        if not fits or layout.buffers < 1 or layout.nbytes > region.nbytes:
            raise InvalidArgumentError(f"the card of {card.who} names more memory than its region has")
        return card


def _held(told: Any) -> Held:
    name, dtype, itemsize, shape, box, offset = told
    where = tuple((int(start), int(stop)) for start, stop in box)
    kind = Kind(str(dtype), int(itemsize), tuple(map(int, shape)))
    inside = len(where) == len(kind.shape) and all(
        0 <= start <= stop <= length for (start, stop), length in zip(where, kind.shape, strict=True)
    )
    if not inside or kind.itemsize < 1:
        raise ValueError(f"tensor {name!r} lies outside of itself")
    return Held(str(name), kind, where, int(offset))
