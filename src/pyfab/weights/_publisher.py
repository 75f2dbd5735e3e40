"""The side that has the weights."""

from __future__ import annotations

import os
import socket
import threading
import zlib
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from pyfab.core.buffers import whole
from pyfab.core.endpoint import Endpoint
from pyfab.core.enums import Access
from pyfab.core.errors import ClosedError, InvalidArgumentError
from pyfab.group.cells import StoreOrder, open_region
from pyfab.group.group import Group
from pyfab.weights._layout import CALL, HEADER, MOST_VERSION, TAKE_PART, Card, Layout
from pyfab.weights._tensors import Leaf, leaves_of

if TYPE_CHECKING:
    from pyfab.core.domain import Domain


class Publisher:
    """Publishes the tensors of a state. `publish` makes a version that readers can pull.

    state: a dict of NumPy arrays and torch tensors, on any device. Dicts, lists and tuples in it are followed; the name of a
    tensor is the path of keys to it, with dots in between. A `Shard` says that an array is a part of a larger tensor; a DTensor
    says so by itself. The arrays belong to you: `publish` copies them into one of `buffers` buffers. Each buffer is as large as
    the state, in memory that readers on the node can map. With two buffers a reader is disturbed only if two versions are
    published while it reads. checksums: readers compare the CRC-32 of what they pulled with that of what was published.

    With a Group this is collective: each rank makes a Publisher or a `Reader`. Publishers that have the same part of a tensor
    share the load and replace each other; the program makes sure that they publish the same values. With an Endpoint, give `card`
    to the readers in any way. Safe from any thread. The memory is freed by `close`, which does not wait for readers, or at the
    end of the group, which waits for all ranks.
    """

    def __init__(
        self, where: Group | Endpoint, state: Any, buffers: int = 2, *, checksums: bool = False
    ) -> None:
        if buffers < 1:
            raise InvalidArgumentError(f"buffers={buffers}: a publisher needs one, and better two")
        self._prepare(where if isinstance(where, Group) else None)
        if isinstance(where, Group):
            where._check()

            def begin() -> tuple[None, bytes]:
                self._begin(
                    where.endpoint, rank_name(where), where._keys.regions, state, (buffers, checksums)
                )
                return None, self.card

            where._make_together(begin, where.timeout, CALL, TAKE_PART)
            where._windows.append(self)
        else:
            who = f"process {os.getpid()} on host {socket.gethostname()}"
            self._begin(where, who, None, state, (buffers, checksums))

    @classmethod
    def _of_rank(cls, group: Group, state: Any, checksums: bool) -> Publisher:
        """One with two buffers, of which the other ranks are told by other means. Local; it does not end with the group."""
        publisher = object.__new__(cls)
        publisher._prepare(None)
        publisher._begin(group.endpoint, rank_name(group), group._keys.regions, state, (2, checksums))
        return publisher

    def _prepare(self, group: Group | None) -> None:
        self._lock = threading.Lock()
        self._in_order = StoreOrder()
        self._count = 0  # of versions, which says which buffer is the next one
        self._version: int | None = None
        self._closed = False
        self._group = group

    def _begin(
        self,
        endpoint: Endpoint,
        who: str,
        key: bytes | None,
        state: Any,
        terms: tuple[int, bool],
    ) -> None:
        self._leaves = leaves = leaves_of(state)
        layout = Layout.of(list(leaves.values()), *terms)
        self._domain = cast("Domain", endpoint._domain)
        self._memory: NDArray[np.uint8] = self._domain.alloc(layout.nbytes, np.uint8)
        self._headers = self._memory[: layout.buffers * HEADER.itemsize].view(HEADER)
        self._region = open_region(self._domain, self._memory, Access.REMOTE_READ, auth_key=key)
        self._card = Card(who, endpoint.address, self._region.remote, layout)

    @property
    def card(self) -> bytes:
        """The description that a `Reader` over an endpoint needs. It gives no access to peers that the domain refuses."""
        return self._card.to_bytes()

    @property
    def version(self) -> int | None:
        """The version that was published last; None if there is none."""
        return self._version

    @property
    def nbytes(self) -> int:
        """How many bytes all buffers take."""
        return self._card.layout.nbytes

    def publish(self, version: int | None = None, state: Any = None) -> int:
        """Copies the tensors, and offers them to readers as this version. Returns the version.

        version: a number greater than all before, by default the last one plus 1. state: other arrays with the same names, dtypes
        and places, by default those of the constructor. When it returns, readers find the version. With two buffers they also
        find the version before.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the publisher is closed")
            last = -1 if self._version is None else self._version
            number = last + 1 if version is None else whole(version)
            if number is None:
                raise InvalidArgumentError(f"version={version!r}: it is a whole number")
            if not last < number <= MOST_VERSION:
                raise InvalidArgumentError(
                    f"version {number}: it is greater than the last one, {self._version}"
                )
            leaves = self._leaves if state is None else self._same(leaves_of(state))
            buffer = self._count % self._card.layout.buffers
            header = self._headers[buffer : buffer + 1]
            # A writer that failed has left it odd already.
            header["sequence"] |= np.uint64(1)
            self._show()
            self._fill(buffer, leaves)
            header["version"] = number
            self._show()
            header["sequence"] += np.uint64(1)
            self._show()
            self._count += 1
            self._version = number
            return number

    def _same(self, leaves: dict[str, Leaf]) -> dict[str, Leaf]:
        """These arrays, in the order of the layout."""
        for held in self._card.layout.held:
            found = leaves.get(held.name)
            if found is None or (found.kind, found.box) != (held.kind, held.box):
                what = "is missing" if found is None else f"is {found.kind} at {found.box}"
                raise InvalidArgumentError(
                    f"tensor {held.name!r} {what}; the publisher was made with {held.kind} at {held.box}"
                )
        return {held.name: leaves[held.name] for held in self._card.layout.held}

    def _fill(self, buffer: int, leaves: Mapping[str, Leaf]) -> None:
        layout = self._card.layout
        start = layout.start(buffer)
        sums = self._memory[start : start + 4 * len(layout.held)].view(np.uint32)
        for number, held in enumerate(layout.held):
            memory = self._memory[start + held.offset : start + held.offset + held.nbytes]
            if held.nbytes:
                leaves[held.name].give(memory)
            if layout.checksums:
                sums[number] = zlib.crc32(memory.data)

    def _show(self) -> None:
        """Lets readers see no store that follows before all that came earlier."""
        self._in_order()
        if self._domain.info.needs_sync_rdma_read:
            self._domain._synchronise([self._region], write_side=False, deliberate=False)

    def close(self) -> None:
        """Frees the memory. Local: a reader that is about to read uses another publisher, or fails."""
        self._release()
        if self._group is not None and self in self._group._windows:
            self._group._windows.remove(self)

    def _release(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._region._end()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        layout = self._card.layout
        state = "closed" if self._closed else f"version {self._version}"
        held = f"{len(layout.held)} tensors, {layout.buffers} buffers of {layout.size} bytes"
        return f"Publisher({self._card.who}, {held}, {state})"


def rank_name(group: Group) -> str:
    """What a rank is called in errors."""
    return f"rank {group.rank} on host {group._hosts[group.rank]}"
