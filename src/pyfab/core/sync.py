"""Synchronisation of memory that peers see through another cache than this process."""

from __future__ import annotations

import dataclasses
import operator
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab import _core
from pyfab.core.errors import ClosedError, InvalidArgumentError
from pyfab.core.region import MemoryRegion, RegionSlice

__all__ = ["SyncStats", "Triplet", "synchronise"]

_PACKED = struct.Struct("=QII")  # address, length, context
_NATIVE = struct.Struct("=QQQ")  # context, address, length
_NO_REGION = 0  # a context that no region has


@dataclasses.dataclass(frozen=True)
class Triplet:
    """A range of local memory: `segment_length` bytes from `virtual_address` in the region with this `lmr_context`.

    The length has 64 bits. A triplet of length 0 names nothing and is always valid.
    """

    lmr_context: int
    virtual_address: int
    segment_length: int

    def __post_init__(self) -> None:
        for name, bits in (("lmr_context", 32), ("virtual_address", 64), ("segment_length", 64)):
            value = getattr(self, name)
            if not 0 <= operator.index(value) < 1 << bits:
                raise InvalidArgumentError(f"{name}={value}: it is an int of {bits} bits, not negative")
        # The core takes these bytes, so that a call in a loop costs next to nothing where memory is coherent.
        native = _NATIVE.pack(self.lmr_context, self.virtual_address, self.segment_length)
        object.__setattr__(self, "_native", native)

    def pack(self) -> bytes:
        """The 16 bytes of DAT 2.0, in this machine's byte order. InvalidArgumentError for a length of 4 GiB or more."""
        if self.segment_length >= 1 << 32:
            raise InvalidArgumentError(
                f"a segment of {self.segment_length} bytes does not fit the 16-byte form, whose lengths have 32 bits; "
                "split it, or pass the triplet itself"
            )
        return _PACKED.pack(self.virtual_address, self.segment_length, self.lmr_context)

    @classmethod
    def unpack(cls, packed: bytes) -> Triplet:
        """The inverse of `pack`."""
        if len(packed) != _PACKED.size:
            raise InvalidArgumentError(f"{len(packed)} bytes: a packed triplet has {_PACKED.size}")
        address, length, context = _PACKED.unpack(packed)
        return cls(context, address, length)


@dataclasses.dataclass(frozen=True)
class SyncStats:
    """Counts of what the synchronisation calls of a non-coherent domain have done. All are 0 on a coherent domain."""

    read_calls: int
    write_calls: int
    # The emulated cache counts one flush, or one invalidation, for each segment of a call.
    flushes: int
    invalidations: int
    bytes_to_device: int
    bytes_to_cpu: int


def synchronise(
    domain: _core.DomainCore, segments: Any, *, write_side: bool, deliberate: bool
) -> list[tuple[Any, ...]]:
    """Carries out one call, for either side, and returns what the checker has found about it.

    deliberate: the program asked for this call. One that the library makes on its own is never needless.
    An error says whether the domain or the segments are to blame (FabricError.argument).
    """
    owners: Sequence[int]
    try:
        if type(segments) is list:
            owners = range(len(segments))
            try:
                found = _core.synchronise_plain(domain, write_side, segments, deliberate, Triplet)
            except InvalidArgumentError as error:
                raise _of_segment(error, owners) from None
            if found is not None:
                return found
        domain.check_open()
        triplets, owners = _triplets(domain, segments)
        try:
            return _core.synchronise(domain, write_side, triplets, deliberate)
        except InvalidArgumentError as error:
            raise _of_segment(error, owners) from None
    except ClosedError as error:
        error.argument = "domain"
        raise
    except InvalidArgumentError as error:
        error.argument = "segments"
        raise


def _triplets(domain: _core.DomainCore, segments: Any) -> tuple[list[tuple[int, int, int]], list[int]]:
    """The triplets of all segments, and which segment each belongs to."""
    if segments is None:
        raise InvalidArgumentError("segments is None: pass a list, which may be empty")
    if isinstance(segments, Triplet | MemoryRegion | RegionSlice | np.ndarray):
        segments = [segments]
    triplets: list[tuple[int, int, int]] = []
    owners: list[int] = []
    for number, segment in enumerate(segments):
        if isinstance(segment, Triplet):
            triplets.append((segment.lmr_context, segment.virtual_address, segment.segment_length))
        elif isinstance(segment, MemoryRegion):
            triplets += _core.triplets_of(segment._core, 0, segment.nbytes)
        elif isinstance(segment, tuple) and len(segment) == 3 and isinstance(segment[0], MemoryRegion):
            region, offset, length = segment
            if offset < 0 or length < 0:
                raise _bad_segment(number, f"offset={offset}, length={length}: neither is negative")
            triplets += _core.triplets_of(region._core, offset, length)
        else:
            triplets += _of_array(domain, _as_array(segment))
        owners += [number] * (len(triplets) - len(owners))
    return triplets, owners


def _as_array(segment: Any) -> NDArray[Any]:
    if isinstance(segment, np.ndarray):
        return segment
    try:
        return np.asarray(memoryview(segment))
    except TypeError:
        raise TypeError(
            "a segment is a region, a slice mr[8:64], an array or other buffer, or a Triplet, not an object of type"
            f" {type(segment).__name__}"
        ) from None


def _of_array(domain: _core.DomainCore, array: NDArray[Any]) -> Iterable[tuple[int, int, int]]:
    """The array's runs, in each of the regions that hold it."""
    starts, run = runs(array)
    if not starts:
        return []
    contexts = _core.regions_holding(domain, starts[0], starts[-1] + run - starts[0])
    return [(context, start, run) for context in contexts or [_NO_REGION] for start in starts]


def runs(array: NDArray[Any]) -> tuple[list[int], int]:
    """Addresses, in rising order, of the runs of bytes that an array consists of, and their common length."""
    if array.size == 0 or array.itemsize == 0:
        return [], 0
    address = array.__array_interface__["data"][0]
    run, gaps = array.itemsize, []
    for stride, extent in sorted(
        (abs(stride), extent) for stride, extent in zip(array.strides, array.shape, strict=True)
    ):
        if stride <= run:  # the items touch or overlap
            run += stride * (extent - 1)
        else:
            gaps.append((stride, extent))
    address += sum(
        stride * (extent - 1) for stride, extent in zip(array.strides, array.shape, strict=True) if stride < 0
    )
    starts = np.array([address], np.uint64)
    for stride, extent in reversed(gaps):
        starts = np.add.outer(starts, np.arange(extent, dtype=np.uint64) * np.uint64(stride)).ravel()
    return starts.tolist(), run


def _of_segment(error: InvalidArgumentError, owners: Sequence[int]) -> InvalidArgumentError:
    """The error with the number of the segment that the caller passed. The core numbers triplets instead."""
    return error if error.index is None else _bad_segment(owners[error.index], str(error.strerror))


def _bad_segment(number: int, reason: str) -> InvalidArgumentError:
    error = InvalidArgumentError(f"segments[{number}]: {reason}")
    error.index = number
    return error
