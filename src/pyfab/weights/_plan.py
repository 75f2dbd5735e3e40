"""Which bytes a reader asks which publisher for."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import FabricError, InvalidArgumentError
from pyfab.weights._boxes import Runs, cover, shared, split
from pyfab.weights._layout import Card, Held
from pyfab.weights._tensors import Box, Kind, Leaf, elements, leaves_of

if TYPE_CHECKING:
    from pyfab.core.endpoint import Endpoint, Operation
    from pyfab.core.region import RemoteRegion

_LARGE = (
    256 << 10
)  # bytes of a run that is read by an operation of its own; shorter ones that follow each other share one
_MOST_BUFFERS = 1000  # of one operation; the core takes 1024
_GAP = 64  # bytes between two tensors in a buffer: fewer than this
_SHARED_OUT = 1 << 20  # bytes of a piece from which on its holders share it; of smaller ones each takes some


class Copy(NamedTuple):
    """An array of a publisher: `number` is its place in the layout."""

    peer: int
    number: int
    held: Held


class Offer(NamedTuple):
    """What publishers have of one tensor: where, and who has each of these boxes."""

    kind: Kind
    boxes: dict[Box, list[Copy]]


def offers_of(cards: Sequence[Card], names: Collection[str] | None = None) -> dict[str, Offer]:
    """What there is, by the name of the tensor; of these names, if they are given.

    InvalidArgumentError if publishers do not agree on what a tensor is.
    """
    found: dict[str, Offer] = {}
    for peer, card in enumerate(cards):
        for number, held in enumerate(card.layout.held):
            if names is not None and held.name not in names:
                continue
            offer = found.setdefault(held.name, Offer(held.kind, {}))
            if offer.kind != held.kind:
                other = next(iter(offer.boxes.values()))[0].peer
                raise InvalidArgumentError(
                    f"tensor {held.name!r}: {card.who} publishes {held.kind}, and {cards[other].who} {offer.kind}"
                )
            offer.boxes.setdefault(held.box, []).append(Copy(peer, number, held))
    return found


class _Target:
    """An array that is filled. `memory` are its bytes; if it is converted or has gaps, those of a copy."""

    def __init__(self, leaf: Leaf, offer: Offer, convert: bool) -> None:
        self.leaf, self.offer, self.dtype = leaf, offer, None
        there, here = offer.kind, leaf.kind
        if there.shape != here.shape:
            raise InvalidArgumentError(
                f"tensor {leaf.name!r} is published with shape {there.shape}, and asked for with {here.shape}; a part of a tensor"
                " is pyfab.weights.Shard(array, offsets, shape)"
            )
        same = there.dtype == here.dtype
        if not same and not convert:
            raise InvalidArgumentError(
                f"tensor {leaf.name!r} is published as {there.dtype}, and asked for as {here.dtype}: convert=True converts it"
            )
        direct = leaf.memory()
        self.direct = same and direct is not None
        if direct is not None and same:
            self.memory = direct
        else:
            self.dtype = leaf.dtype_named(there.dtype)
            self.memory = np.empty(elements(leaf.box) * there.itemsize, np.uint8)

    def part(self, box: Box) -> NDArray[np.uint8]:
        """The bytes of a part of it, in C order."""
        item = np.dtype(f"V{self.offer.kind.itemsize}")
        whole = self.memory.view(item).reshape([stop - start for start, stop in self.leaf.box])
        where = tuple(
            slice(start - first, stop - first)
            for (start, stop), (first, _) in zip(box, self.leaf.box, strict=True)
        )
        return np.ascontiguousarray(whole[where]).reshape(-1).view(np.uint8)


class Vector:
    """What is asked of one publisher, as operations that are the same every time. Offsets count from the start of a buffer."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._short: list[tuple[int, NDArray[np.uint8]]] = []
        self._reads: list[tuple[int, int, list[NDArray[np.uint8]]]] = []
        self._many: list[tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint64], int]] = []
        self._remote: dict[
            int, tuple[RemoteRegion, list[RemoteRegion]]
        ] = {}  # by buffer: it, and what is read of it
        layout = card.layout
        self.sums = np.zeros(len(layout.held) if layout.checksums else 0, np.uint32)
        if layout.checksums:
            self._reads.append((0, self.sums.nbytes, [self.sums.view(np.uint8)]))

    def add(self, runs: Runs, offset: int, memory: NDArray[np.uint8]) -> None:
        """Asks for runs of an array that begins at `offset`, into `memory`."""
        if len(runs.source) > 1:
            source, target = (runs.source + offset).astype(np.uint64), runs.target.astype(np.uint64)
            self._many.append((memory, source, target, runs.length))
            return
        start, place = int(runs.source[0]) + offset, int(runs.target[0])
        part = memory[place : place + runs.length]
        if runs.length >= _LARGE:
            self._reads.append((start, start + runs.length, [part]))
        else:
            self._short.append((start, part))

    def ready(self) -> None:
        """Nothing is added any more. Short runs that follow each other become one operation, with the gaps between them."""
        gap = np.empty(_GAP, np.uint8)
        stop, buffers = -_GAP, list[NDArray[np.uint8]]()
        for start, part in sorted(self._short, key=lambda run: run[0]):
            if not 0 <= start - stop < _GAP or len(buffers) >= _MOST_BUFFERS:
                buffers = []
                self._reads.append((start, start, buffers))
            elif start > stop:
                buffers.append(gap[: start - stop])
            buffers.append(part)
            stop = start + len(part)
            self._reads[-1] = (self._reads[-1][0], stop, buffers)
        self._short = []

    def start(self, endpoint: Endpoint, handle: int, buffer: int) -> Iterable[Operation]:
        """Starts the operations."""
        whole, parts = self._of(buffer)
        for (_, _, buffers), part in zip(self._reads, parts, strict=True):
            yield endpoint.read(buffers if len(buffers) > 1 else buffers[0], handle, part)
        for memory, source, target, length in self._many:
            yield endpoint.read_many(handle, whole, memory, source, target, length)

    def _of(self, buffer: int) -> tuple[RemoteRegion, list[RemoteRegion]]:
        if buffer not in self._remote:
            region, layout = self._card.region, self._card.layout
            first = layout.start(buffer)
            parts = [region.bytes(first + start, first + stop) for start, stop, _ in self._reads]
            self._remote[buffer] = region.bytes(first, first + layout.size), parts
        return self._remote[buffer]


class Plan:
    """Says which bytes go where when a state is pulled. Made by `Reader.plan`, for certain arrays; it keeps them alive.

    It is computed once, and again when a publisher is lost or late.
    """

    def __init__(
        self, cards: Sequence[Card], offers: Mapping[str, Offer], into: Any, convert: bool, turn: int
    ) -> None:
        self.into = into
        self._cards, self._turn = cards, turn
        self._known: dict[frozenset[int], dict[int, Vector] | None] = {}
        self._targets = []
        for leaf in leaves_of(into).values():
            if leaf.name not in offers:
                names = ", ".join(map(repr, list(offers)[:8])) + (", ..." if len(offers) > 8 else "")
                raise InvalidArgumentError(f"tensor {leaf.name!r} is published by nobody; there are {names}")
            self._targets.append(_Target(leaf, offers[leaf.name], convert))
        everybody = frozenset(range(len(cards)))
        if self._vectors(everybody) is None:
            raise InvalidArgumentError(self._missing(everybody))

    @property
    def nbytes(self) -> int:
        """How many bytes one pull reads."""
        return sum(target.memory.nbytes for target in self._targets)

    def _vectors(self, peers: frozenset[int]) -> dict[int, Vector] | None:
        """What to ask each of these publishers for; None if they do not have it all."""
        if peers not in self._known:
            self._known[peers] = self._computed(peers)
        return self._known[peers]

    def _missing(self, peers: frozenset[int]) -> str:
        """The first tensor that these publishers have not wholly, and what is missing of it."""
        for target in self._targets:
            boxes = [box for box, copies in target.offer.boxes.items() if _among(copies, peers)]
            _, missing = cover(target.leaf.box, boxes)
            if missing:
                where = ", ".join(f"{start}:{stop}" for start, stop in missing[0])
                return f"tensor {target.leaf.name!r}: nobody has [{where}] of shape {target.offer.kind.shape}"
        return "nothing is missing"

    def _computed(self, peers: frozenset[int]) -> dict[int, Vector] | None:
        load = dict.fromkeys(sorted(peers), 0)
        vectors = {peer: Vector(self._cards[peer]) for peer in load}

        def busy(copy: Copy) -> tuple[int, int]:
            return load[copy.peer], (copy.peer - self._turn) % len(
                self._cards
            )  # each reader begins elsewhere

        for target in self._targets:
            offered = [(box, _among(copies, peers)) for box, copies in target.offer.boxes.items()]
            offered = [(box, copies) for box, copies in offered if copies]
            pieces, missing = cover(target.leaf.box, [box for box, _ in offered])
            if missing:
                return None
            size = target.offer.kind.itemsize
            for piece, number in pieces:
                box, copies = offered[number]
                parts = split(piece, len(copies)) if elements(piece) * size >= _SHARED_OUT else [piece]
                for part in parts:
                    copy = min(copies, key=busy)
                    load[copy.peer] += elements(part) * size
                    runs = Runs(part, box, target.leaf.box, size)
                    vectors[copy.peer].add(runs, copy.held.offset, target.memory)
        for vector in vectors.values():
            vector.ready()
        return {peer: vector for peer, vector in vectors.items() if load[peer]}

    def _check(self, vectors: Mapping[int, Vector], version: int) -> None:
        """Compares checksums of all arrays that were read whole. FabricError names the first that differs."""
        for target in self._targets:
            for box, copies in target.offer.boxes.items():
                asked = [copy for copy in copies if copy.peer in vectors and len(vectors[copy.peer].sums)]
                if not asked or shared(box, target.leaf.box) != box:
                    continue
                found = zlib.crc32(target.part(box).data)
                for copy in asked:
                    told = int(vectors[copy.peer].sums[copy.number])
                    if told != found:
                        raise FabricError(
                            f"tensor {target.leaf.name!r} of version {version}: what came has the CRC-32 {found:08x}, and"
                            f" {self._cards[copy.peer].who} published {told:08x}; it was damaged on the way, or publishers that"
                            " should hold the same do not"
                        )

    def _settle(self) -> None:
        """Copies what could not be read in place into the arrays."""
        for target in self._targets:
            if not target.direct and target.memory.nbytes:
                target.leaf.take(target.memory, target.dtype)

    def __repr__(self) -> str:
        return f"Plan({len(self._targets)} tensors, {self.nbytes} bytes)"


def _among(copies: Sequence[Copy], peers: frozenset[int]) -> list[Copy]:
    return [copy for copy in copies if copy.peer in peers]
