"""Objects and arrays that the ranks of a group exchange in one call, by what the group itself is made of.

A rank shows what it gives, and the others read it from its memory when all have come; see `control`. Parts for single ranks lie
one behind the other in a region, of which each rank reads its own; what is shown has their lengths and digests. Small parts are
shown as they are. A region is closed when all have entered a later barrier, because they have read by then.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.enums import Access
from pyfab.core.errors import AccessDeniedError, InvalidArgumentError
from pyfab.core.region import MemoryRegion, RemoteRegion
from pyfab.group import objects
from pyfab.group.cells import open_region
from pyfab.group.communicator import Communicator
from pyfab.meeting.ranks import ranks_text

if TYPE_CHECKING:
    from pyfab.core.endpoint import Operation

Op = Callable[[Any, Any], Any]

_SMALL = 2048  # bytes of all parts that are shown as they are
_SHARED_OUT = 1 << 16  # bytes from which on each rank reduces a part of the arrays


class _Lent(NamedTuple):
    """Parts that others read after a barrier."""

    number: int  # of the barrier
    parts: list[bytes]
    region: MemoryRegion
    card: bytes


class Collectives(Communicator):
    """The collective calls of a group that exchange objects and arrays.

    Use them for small and rare exchanges, such as sums of losses and tables of places; put large data into windows. All of them
    wait until all ranks have called them. `allgather` tells how objects travel. PeerLostError names a rank that has ended; the
    other ranks call `shrink`, and then repeat the call in the new group. OperationTimeout names the ranks that did not come.
    After it, repeat the call with equal objects, or call `barrier`, which completes it without a result.
    """

    _lent: tuple[_Lent, ...] = ()

    def gather(self, obj: Any, root: int = 0, timeout: float | None = -1) -> list[Any] | None:
        """Every rank's `obj`, by rank, at rank `root`; None at the others, which do not wait for `root` to read. Collective."""
        self._check()
        sources = range(self.size) if self._root(root) == self.rank else range(0)
        told = self._control.collect(
            objects.encode(obj), sources, self._timeout(timeout), f"gather(root={root})"
        )
        return [objects.decode(data) for data in told] if root == self.rank else None

    def scatter(self, objs: Sequence[Any] | None = None, root: int = 0, timeout: float | None = -1) -> Any:
        """Returns item i of the `objs` of rank `root` at rank i. What the other ranks pass is ignored. Collective.

        objs: `size` objects, or an array whose first axis has that length. InvalidArgumentError at `root` for any other number.
        """
        self._check()
        given = self._one_for_each(objs) if self._root(root) == self.rank else None
        return self._exchange(given, [root], Deadline(self._timeout(timeout)), f"scatter(root={root})")[0]

    def alltoall(self, objs: Sequence[Any], timeout: float | None = -1) -> list[Any]:
        """Item i of `objs` is for rank i. Returns the items that the ranks have passed for this one, by rank. Collective.

        objs: as in `scatter`.
        """
        self._check()
        deadline = Deadline(self._timeout(timeout))
        return self._exchange(self._one_for_each(objs), range(self.size), deadline, "alltoall()")

    def reduce(self, values: ArrayLike, op: Op = np.add, root: int = 0, timeout: float | None = -1) -> Any:
        """Combines the arrays, or numbers, of all ranks by `op`: a new array at rank `root`, None at the others. Collective.

        op: a function of two arrays that works element by element, such as numpy.maximum. It is applied in the order of the
        ranks, so the result is the same in each run. InvalidArgumentError, at `root`, if shapes or dtypes differ.
        """
        arrays = self.gather(np.asarray(values), root, timeout)
        return None if arrays is None else _combined(arrays, op)

    def allreduce(self, values: ArrayLike, op: Op = np.add, timeout: float | None = -1) -> Any:
        """Like `reduce`, but all ranks get the result: the same bits on all of them. Collective.

        Large arrays are combined in parts, one by each rank. InvalidArgumentError, at all ranks, if shapes or dtypes differ.
        If `op` raises for one of the parts, its rank gets the error, and the others InvalidArgumentError, which tells of it.
        """
        self._check()
        array = np.asarray(values)
        deadline = Deadline(self._timeout(timeout))
        if self.size < 3 or array.nbytes < _SHARED_OUT:
            arrays = self._allgather(array, deadline.remaining(), "allreduce()")
            return _combined(arrays, op)
        kind = (array.shape, array.dtype.str)
        mine = [(kind, part) for part in np.array_split(array.ravel(), self.size)]
        told = self._exchange(mine, range(self.size), deadline, "allreduce() of much")
        _same([kind for kind, _ in told])

        def combine() -> tuple[None, Any]:
            return None, functools.reduce(op, [part for _, part in told])

        _, parts = self._make_together(combine, deadline.remaining(), "allreduce()", "combine its part")
        return np.concatenate(parts).reshape(array.shape)

    def _root(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise InvalidArgumentError(f"root={root}: ranks are 0 to {self.size - 1}")
        return root

    def _one_for_each(self, objs: Sequence[Any] | None) -> Sequence[Any]:
        if objs is None or isinstance(objs, (str, bytes)) or len(objs) != self.size:
            found = "None" if objs is None else f"{type(objs).__name__} with {len(objs)} items"
            raise InvalidArgumentError(f"{found}: give {self.size} objects, one for each rank")
        return objs

    def _exchange(
        self, given: Sequence[Any] | None, sources: Iterable[int], deadline: Deadline, call: str
    ) -> list[Any]:
        """This rank's part of what each of `sources` gives. `given` has a part for each rank; None: this rank gives nothing."""
        self._take_back(self._control.coming - 1)
        parts = None if given is None else [objects.encode(obj) for obj in given]
        card = None if parts is None else self._card_of(parts)
        told = self._control.collect(card, sources, deadline.remaining(), call)
        cards = dict(zip(sources, map(objects.decode, told), strict=True))
        return [objects.decode(data) for data in self._read(cards, parts or [], deadline)]

    def _card_of(self, parts: list[bytes]) -> bytes:
        """What tells the others of this rank's parts."""
        if sum(map(len, parts)) <= _SMALL:
            return objects.encode((parts, b""))
        number = self._control.coming
        for lent in self._lent:  # the call is repeated
            if lent.number == number and lent.parts == parts:
                return lent.card
        memory = np.frombuffer(b"".join(parts), np.uint8)
        region = open_region(self.domain, memory, Access.REMOTE_READ, auth_key=self._keys.regions)
        table = [(len(part), hashlib.sha256(part).digest()) for part in parts]
        card = objects.encode((table, region.remote.to_bytes()))
        self._lent += (_Lent(number, parts, region, card),)
        return card

    def _take_back(self, number: int | None = None) -> None:
        """Closes what was lent for barriers before `number`, or everything."""
        kept = []
        for lent in self._lent:
            if number is not None and lent.number >= number:
                kept.append(lent)
            else:
                lent.region._end()
        self._lent = tuple(kept)

    def _read(self, cards: dict[int, Any], own: list[bytes], deadline: Deadline) -> list[bytes]:
        """This rank's part of what each source has told."""
        found: dict[int, bytes] = {}
        started: list[tuple[int, NDArray[np.uint8], bytes, Operation]] = []
        for rank, (table, remote) in cards.items():
            if rank == self.rank:
                found[rank] = own[rank]
            elif not remote:
                found[rank] = table[self.rank]
            else:
                found[rank] = b""
                length, digest = table[self.rank]
                start = sum(length for length, _ in table[: self.rank])
                here = np.empty(length, np.uint8)
                there = RemoteRegion.from_bytes(remote).bytes(start, start + length)
                started.append((rank, here, digest, self._control.start_read(rank, here, there)))
        for rank, here, digest, operation in started:
            self._control.settle(rank, operation, deadline)
            found[rank] = here.tobytes()
            if not hmac.compare_digest(hashlib.sha256(found[rank]).digest(), digest):
                raise AccessDeniedError(
                    f"what rank {rank} of {self.size} gave was changed on its way, or in its memory before all had read it"
                )
        return list(found.values())


def _same(kinds: list[Any]) -> None:
    """InvalidArgumentError, naming ranks, if shapes and dtypes differ."""
    different = {kind: [rank for rank, each in enumerate(kinds) if each == kind] for kind in kinds}
    if len(different) > 1:
        told = "; ".join(
            f"{ranks_text(ranks, len(kinds))}: shape {shape}, dtype {np.dtype(dtype)}"
            for (shape, dtype), ranks in itertools.islice(different.items(), 4)
        )
        raise InvalidArgumentError(f"arrays that are combined have one shape and one dtype. {told}")


def _combined(arrays: list[Any], op: Op) -> Any:
    _same([(array.shape, array.dtype.str) for array in arrays])
    return functools.reduce(op, arrays)
