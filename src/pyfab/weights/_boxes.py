"""Boxes in a tensor: what they share, what is left of one without another, and the runs of bytes that a copy consists of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pyfab.weights._tensors import Box


def shared(one: Box, other: Box) -> Box | None:
    """What two boxes of a tensor have in common; None for nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def without(box: Box, hole: Box) -> list[Box]:
    """Boxes that together are `box` without `hole`, which lies within it."""
    rest: list[Box] = []
    left = list(box)
    for axis, ((start, stop), (first, last)) in enumerate(zip(box, hole, strict=True)):
        sides = ((start, first), (last, stop))
        rest += ((*left[:axis], side, *left[axis + 1 :]) for side in sides if side[0] < side[1])
        left[axis] = (first, last)
    return rest


def cover(wanted: Box, offered: Sequence[Box]) -> tuple[list[tuple[Box, int]], list[Box]]:
    """Disjoint pieces of `wanted`, each with the number of the offered box that has it, and what none of them has."""
    pieces = []
    missing = [wanted] if all(start < stop for start, stop in wanted) else []
    for number, box in enumerate(offered):
        left = []
        for part in missing:
            common = shared(part, box)
            if common is None:
                left.append(part)
            else:
                pieces.append((common, number))
                left += without(part, common)
        missing = left
    return pieces, missing


def split(box: Box, count: int) -> list[Box]:
    """`count` boxes of about equal size that together are `box`, cut along the first axis that is long enough; else it alone."""
    for axis, (start, stop) in enumerate(box):
        if stop - start >= count:
            cuts = [start + (stop - start) * number // count for number in range(count + 1)]
            return [(*box[:axis], part, *box[axis + 1 :]) for part in pairwise(cuts)]
    return [box]


class Runs:
    """The bytes of `piece` as they lie in two arrays, whose boxes contain it: from where to where, how many at a time."""

    def __init__(self, piece: Box, source: Box, target: Box, itemsize: int) -> None:
        self.length = itemsize
        outer = len(piece)
        while outer:  # axes that both arrays have whole are one run with the one before them
            outer -= 1
            self.length *= piece[outer][1] - piece[outer][0]
            if not piece[outer] == source[outer] == target[outer]:
                break
        self.source = _offsets(piece, source, outer, itemsize)
        self.target = _offsets(piece, target, outer, itemsize)


def _offsets(piece: Box, box: Box, outer: int, itemsize: int) -> NDArray[np.int64]:
    """Where the runs of `piece` begin in the array of `box`, in bytes. They differ in the first `outer` indices."""
    stride = itemsize
    strides: list[int] = []
    for start, stop in reversed(box):
        strides.insert(0, stride)
        stride *= stop - start
    first = sum((p[0] - b[0]) * step for p, b, step in zip(piece, box, strides, strict=True))
    offsets = np.array([first], np.int64)
    for (start, stop), step in zip(piece[:outer], strides, strict=False):
        offsets = np.add.outer(offsets, np.arange(stop - start, dtype=np.int64) * step).ravel()
    return offsets
