"""Memory that the members of a group open to each other."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pyfab import _core
from pyfab.core.buffers import array_of, whole
from pyfab.core.deadline import Deadline
from pyfab.core.enums import Access
from pyfab.core.errors import (
    BusyError,
    EpochError,
    FabricError,
    InvalidArgumentError,
    NotSupportedError,
    call_all,
)
from pyfab.core.memory.mapped import shared_memory_of
from pyfab.core.region import MemoryRegion, RemoteRegion
from pyfab.group.cells import Cells, of_named_dtype, open_region
from pyfab.group.epochs import Epochs, Held, cell_count
from pyfab.group.node_memory import describe_file, map_file
from pyfab.group.parts import Directory
from pyfab.group.remote_array import CheckedRemoteArray, RemoteArray

if TYPE_CHECKING:
    from pyfab.core.domain import Domain
    from pyfab.core.queues import Counter
    from pyfab.group.communicator import Communicator

__all__ = ["Wanted", "Window"]


class Wanted(NamedTuple):
    """The memory that a rank opens to the others; see `Group.window`. `parts`: how many a dynamic window may have, else 0."""

    array: NDArray[Any] | None
    shape: int | tuple[int, ...] | None
    dtype: DTypeLike
    access: Access
    counters: int
    parts: int


class Window(_core.WindowCore):
    """One array of every rank, open to all ranks of the group. Made by `Group.window`.

    ``window[peer]`` is the peer's array (`RemoteArray`), `local` is this rank's own. What peers write appears in `local` without
    any call here, unless the domain is non-coherent (see `sync`). The program chooses how the ranks agree on the time of access:
    `fence`; `post`, `start`, `complete` and `wait`; `lock` and `unlock`; the counters of notified puts; barriers; or the data
    itself.

    A new window is, until it closes, in an epoch that needs no call of the peer. So operations and flushes work at once. With
    ``epochs=True`` there is no such epoch: operations outside of the epochs that the program opens raise EpochError.

    All ranks call collective methods in the same order. A timeout of -1 stands for the timeout of the group. Thread-safe, except
    for the collective methods, and except that one thread must not end an epoch while others use it.
    """

    local: NDArray[Any]  #: This rank's own array, open to the others until `close`.
    counters: tuple[Counter, ...]  #: This rank's counters of notified puts, as many as were asked for.

    def __init__(
        self,
        group: Communicator,
        wanted: Wanted,
        timeout: float | None,
        *,
        epochs: bool,
    ) -> None:
        self.group = group
        self._dynamic = wanted.parts > 0
        self._checked = epochs
        group._opened += 1
        self._number = group._opened
        with ExitStack() as undo:

            def begin() -> tuple[_Opened, Any]:
                opened = _Opened(group, wanted, undo)
                return opened, opened.card

            opened, cards = group._make_together(begin, timeout, "window()", "open its part of the window")
            self._cards = cards
            self._resources = undo.pop_all()
        self.local = opened.array
        self.counters = opened.counters
        self._regions = opened.regions
        self._cells, self._directory = opened.cells, opened.directory
        self._cells.connect([_decode(card["cells"]) for card in cards])
        self._epochs = Epochs(self._cells, group.rank, group.size)
        if self._directory is not None:
            self._directory.connect([_decode(card["directory"]) for card in cards])
        self._peers = [None] * group.size  # RemoteArrays, made on first use
        # By rank: what counts the operations on its memory. Parts of a window come and go, so their arrays share it.
        self._scopes: dict[int, _core.Context] = {}
        self._mapped: dict[int, NDArray[Any]] = {}
        group._windows.append(self)

    if TYPE_CHECKING:  # the core looks it up

        def __getitem__(self, peer: SupportsIndex, /) -> RemoteArray:
            """The array of a rank."""

    def _open_peer(self, peer: Any) -> RemoteArray:
        self._check()
        rank = self._rank(peer)
        if self._dynamic:
            raise InvalidArgumentError("the window is dynamic: its memory comes in parts, see parts(peer)")
        array: RemoteArray | None = self._peers[rank]
        if array is None:
            notified = [_decode(text) for text in self._cards[rank]["notified"]]
            array = self._peers[rank] = self._array(rank, self._region(rank), notified)
        return array

    def _region(self, rank: int) -> RemoteRegion:
        """The memory of a rank."""
        card = self._cards[rank]
        return of_named_dtype(_decode(card["remote"]), card["dtype"])

    def _array(self, rank: int, region: RemoteRegion, notified: list[RemoteRegion]) -> RemoteArray:
        kind = CheckedRemoteArray if self._checked else RemoteArray
        scope = self._scopes.get(rank) or self._scopes.setdefault(
            rank, self.group.endpoint.context(0)._scope()
        )
        array = kind(
            scope,
            self.group._handles[rank],
            rank,
            region,
            self.group.timeout,
        )
        array._endpoint, array._epochs, array._notified = self.group.endpoint, self._epochs, notified
        return array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of this rank's array."""
        return self.local.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of this rank's array."""
        return self.local.dtype

    # --- memory

    def shared(self, peer: int) -> NDArray[Any]:
        """Maps the array of a peer on this node into this process, for plain loads and stores. Returns `local` for this rank.

        For windows made with a shape. NotSupportedError, with the reason, if the peer's memory cannot be mapped. The array can
        still be used after the window is closed. To order accesses, both sides call `sync`: the writer before it tells the
        reader, the reader after it was told.
        """
        self._check()
        rank = self._rank(peer)
        if rank == self.group.rank:
            return self.local
        if rank not in self._mapped:
            region = self._region(rank)
            self._mapped[rank] = map_file(
                self._cards[rank]["file"], region.shape, region.dtype, f"rank {rank}"
            )
        return self._mapped[rank]

    def attach(self, array: NDArray[Any], name: str | None = None) -> str:
        """Opens another array of this rank to the others, in a dynamic window. Returns its name there. Local.

        InvalidArgumentError if the name is in use, BusyError if the window has no room for another part.
        """
        return self._parts().attach(array, name)

    def detach(self, name: str) -> None:
        """Ends the access to a part: when it returns no peer touches the memory any more. Later operations on it fail. Local.

        InvalidArgumentError if no array is attached under this name.
        """
        self._parts().detach(name)

    def parts(self, peer: int, timeout: float | None = -1) -> dict[str, RemoteArray]:
        """The arrays that a peer has attached by now, by name. They are read from the peer's memory, without a call there."""
        directory = self._parts()
        rank = self._rank(peer)
        found = directory.read(rank, Deadline(self.group._timeout(timeout)))
        return {
            name: directory.known(rank, region, lambda region=region: self._array(rank, region, []))  # type: ignore[misc]
            for name, region in found.items()
        }

    # --- completion

    def flush(self, peer: int | None = None, timeout: float | None = -1, *, callbacks: bool = False) -> None:
        """Waits until all operations of this rank on `peer` (None: on all peers), through this window, are visible there.

        It does not wait for operations that start meanwhile, or go through other windows. Raises the error of the first operation
        that failed, unless the program had seen this error before. callbacks: waits also until the callbacks of these operations
        have returned; inside a callback this raises BusyError.
        """
        self._check()
        if self._checked and not (
            self._epochs.any_passive if peer is None else self._epochs.passive(self._rank(peer))
        ):
            raise EpochError("flush() outside of a lock: operations of other epochs complete at their end")
        self._flush(
            None if peer is None else self._rank(peer), Deadline(self.group._timeout(timeout)), callbacks
        )

    flush_all = flush

    def flush_local(self, peer: int | None = None, timeout: float | None = -1) -> None:
        """The same as `flush`: when an operation is complete here, its bytes are already visible at the target."""
        self.flush(peer, timeout)

    def outstanding(self, peer: int | None = None) -> int:
        """How many operations on `peer` (None: on all peers) were started through this window and have not ended."""
        return sum(scope._outstanding for scope in self._of(peer))

    def _of(self, peer: int | None) -> list[_core.Context]:
        return [scope for rank, scope in list(self._scopes.items()) if peer in (None, rank)]

    def _flush(self, peer: int | None, deadline: Deadline, callbacks: bool = False) -> None:
        call_all(
            partial(scope._flush_scope, deadline.remaining(), callbacks)  # what is left when its turn comes
            for scope in self._of(peer)
        )

    def _meet(self, deadline: Deadline, call: str) -> list[FabricError]:
        """Completes what this rank has started, and waits for the others to do so. Returns this rank's first error, if any."""
        failed: list[FabricError] = []
        self.sync()
        for scope in self._of(None):
            try:
                scope._flush_scope(deadline.remaining())
            except TimeoutError:
                raise
            except FabricError as error:  # the others wait for this rank, so it goes on to the barrier
                failed = failed or [error.with_traceback(None)]  # which would hold `failed`
        self.group._check()
        self.group._barrier(deadline.remaining(), f"{call} of window {self._number}")
        self.sync()
        return failed

    # --- epochs

    def fence(self, timeout: float | None = -1, *, last: bool = False) -> None:
        """Separates two phases: what any rank put or stored before the fence, all ranks see after it. Collective.

        It opens an epoch for operations, unless it is the `last` one. If an operation failed and the program has not seen its
        error, the error is raised here, after all ranks have come.
        """
        self._check()
        self._epochs.check_fence()
        failed = self._meet(Deadline(self.group._timeout(timeout)), "fence()")
        self._epochs.fence(last)
        if failed:
            raise failed.pop()

    def post(self, origins: Iterable[int] | int, timeout: float | None = -1) -> Held:
        """Lets the ranks `origins` access this rank's memory, in one `start`...`complete` each. They see what was stored before.

        Then `wait`, or the end of the `with` block, waits until they have called `complete`. If some are lost or late, the others
        are let in all the same, and the first error is raised; you may repeat the call, with all or with some of them.
        """
        self.sync()
        self._epochs.post(_listed(origins), Deadline(self.group._timeout(timeout)))
        return Held(self.wait)

    def start(self, targets: Iterable[int] | int, timeout: float | None = -1) -> Held:
        """Waits for the `post` of each target. Then operations on them may start, until `complete` or the end of `with`."""
        self._check()
        self._epochs.start(_listed(targets), Deadline(self.group._timeout(timeout)))
        return Held(self.complete)

    def complete(self, timeout: float | None = -1) -> None:
        """Ends the epoch of `start`: when `wait` returns at a target, it sees what was put there.

        It ends at all targets before it raises the first error. After OperationTimeout, repeat it for those that did not answer.
        """
        self._check()
        deadline = Deadline(self.group._timeout(timeout))
        flushes = [partial(self._flush, rank, deadline) for rank in self._epochs.targets]
        # The targets must not wait for ever because an operation failed.
        call_all([*flushes, partial(self._epochs.complete, deadline)])

    def wait(self, timeout: float | None = -1) -> None:
        """Waits until all ranks of `post` have called `complete`. Then `local` shows what they put."""
        self._check()
        self._epochs.wait(Deadline(self.group._timeout(timeout)))
        self.sync()

    def test(self) -> bool:
        """Whether all ranks of `post` have called `complete`. If so, this does the same as `wait`."""
        self._check()
        if done := self._epochs.test():
            self.sync()
        return done

    def lock(self, peer: int, timeout: float | None = -1, *, shared: bool = False) -> Held:
        """Takes the lock of a peer's array, alone or `shared`, until `unlock` or the end of the `with` block.

        It excludes other locks, but not operations without a lock. OperationTimeout if the lock is not free in time,
        PeerLostError if the rank that holds it alone has died; both errors name the holder.
        """
        self._check()
        self._epochs.lock(self._rank(peer), shared, Deadline(self.group._timeout(timeout)))
        self.sync()
        return Held(lambda: self.unlock(peer))

    def unlock(self, peer: int, timeout: float | None = -1) -> None:
        """Waits until the operations on this peer are complete, and releases its lock."""
        self._check()
        rank = self._rank(peer)
        self._epochs.check_locked(rank)
        deadline = Deadline(self.group._timeout(timeout))
        self.sync()
        call_all([partial(self._flush, rank, deadline), partial(self._epochs.unlock, rank, deadline)])

    def lock_all(self, timeout: float | None = -1) -> Held:
        """Takes the locks of all ranks, shared, until `unlock_all` or the end of the `with` block. Not collective."""
        self._check()
        self._epochs.lock_all(Deadline(self.group._timeout(timeout)))
        self.sync()
        return Held(self.unlock_all)

    def unlock_all(self, timeout: float | None = -1) -> None:
        """Waits until all operations are complete, and releases all locks of `lock_all`. Then raises the first error."""
        self._check()
        self._epochs.check_locked_all()
        deadline = Deadline(self.group._timeout(timeout))
        self.sync()
        call_all([partial(self._flush, None, deadline), partial(self._epochs.unlock_all, deadline)])

    def sync(self) -> None:
        """A full memory barrier for loads and stores of `local`. Call it before you tell a peer, and after a peer told you.

        On a non-coherent domain, peers then also see what was stored in `local`, and `local` shows what they put.
        """
        self._check()
        domain = self.group.domain
        regions = self._regions + (self._directory.regions if self._directory else [])
        if domain.info.needs_sync_rdma_read:
            domain._synchronise(regions, write_side=False, deliberate=False)
        if domain.info.needs_sync_rdma_write:
            domain._synchronise(regions, write_side=True, deliberate=False)
        self.group._memory_barrier()

    # --- the end

    def close(self, timeout: float | None = -1) -> None:
        """Waits until the operations of all ranks are complete, then ends the access of peers. Collective.

        BusyError inside an epoch. If an operation failed and the program has not seen its error, the error is raised when
        everything is closed.
        """
        if self._epochs.closed:
            return
        if self._epochs.open:
            raise BusyError(f"the window is inside an epoch; {self._epochs.open}")
        failed = self._meet(Deadline(self.group._timeout(timeout)), "close()")
        self._release()
        self.group._windows.remove(self)
        if failed:
            raise failed.pop()

    def __enter__(self) -> Window:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the window. After an exception it does not wait for the others."""
        if kind is None:
            self.close()
        elif not self._epochs.closed:
            self._release()
            self.group._windows.remove(self)

    def __repr__(self) -> str:
        state = "closed" if self._epochs.closed else f"shape={self.shape}, dtype={self.dtype}"
        return f"Window(rank {self.group.rank} of {self.group.size}, {state})"

    def _rank(self, peer: Any) -> int:
        rank = whole(peer)
        if rank is None or not 0 <= rank < self.group.size:
            raise IndexError(f"peer {peer!r}: the ranks are 0 to {self.group.size - 1}")
        return rank

    def _parts(self) -> Directory:
        self._check()
        if self._directory is None:
            raise InvalidArgumentError(
                "the window is of one array: make it with dynamic=True to attach others"
            )
        return self._directory

    def _check(self) -> None:
        if self._epochs.closed:  # tested here as well, because every call passes here and a call costs time
            self._epochs.check_window()

    def _release(self) -> None:
        """Takes the memory back without waiting for the others. Local."""
        if not self._epochs.closed:
            self._epochs.closed = True
            self._resources.close()
            self._peers, self._scopes, self._mapped = [], {}, {}


class _Opened:
    """This rank's part of a window, as it is opened. `undo` closes what has been opened."""

    def __init__(
        self,
        group: Communicator,
        wanted: Wanted,
        undo: ExitStack,
    ) -> None:
        domain = group.domain
        array = _array_for(wanted, domain)
        if array.dtype.hasobject:
            raise InvalidArgumentError(f"dtype {array.dtype}: Python objects mean nothing to other processes")
        if wanted.counters and domain.info.needs_sync_rdma_write:
            raise NotSupportedError(
                "counters of notified puts are not available on a non-coherent domain; use fences or post() and wait()"
            )
        memory = array
        if not array.nbytes:
            # A region is never empty, but a window may be, on ranks without a share of the data. These bytes are never touched.
            memory = np.zeros([max(1, extent) for extent in array.shape], array.dtype)
        self.array = array
        self.regions: list[MemoryRegion] = []

        def opened(counter: Counter | None = None) -> str:
            region = open_region(domain, memory, wanted.access, counter, auth_key=group._keys.regions)
            undo.callback(region._end)
            self.regions.append(region)
            remote = region.remote
            if not array.nbytes:
                remote = remote.view(array.dtype, array.shape)
            return base64.b64encode(remote.to_bytes()).decode()

        self.card: dict[str, Any] = {"remote": opened(), "dtype": array.dtype.name}
        self.counters = tuple(domain.counter() for _ in range(wanted.counters))
        # Each counter has a region of its own over the same memory. It counts what is put through that, after the data.
        self.card["notified"] = [opened(counter) for counter in self.counters]
        for counter in self.counters:
            undo.callback(counter.close)
        cells = cell_count(group.size)
        self.cells = Cells(domain, group.endpoint, group._handles, group.rank, cells, group._keys.regions)
        undo.callback(self.cells.close)
        self.card["cells"] = base64.b64encode(self.cells.remote).decode()
        self.card["file"] = describe_file(shared_memory_of(array), array) if array.nbytes else "it is empty"
        self.directory = None
        if wanted.parts:
            self.directory = Directory(group, wanted.parts, wanted.access)
            undo.callback(self.directory.close)
            self.card["directory"] = base64.b64encode(self.directory.remote).decode()


def _array_for(wanted: Wanted, domain: Domain) -> NDArray[Any]:
    """The array that was given, or a new one."""
    array, shape = wanted.array, wanted.shape
    if wanted.parts:
        if array is not None or shape is not None:
            raise InvalidArgumentError("a dynamic window takes no array and no shape: attach() them")
        shape = 0
    if (array is None) == (shape is None):
        raise InvalidArgumentError("a window takes an array, or a shape and a dtype")
    if shape is not None:
        return domain.alloc(shape, wanted.dtype) if np.prod(shape) else np.empty(shape, wanted.dtype)
    found = array_of(array)
    if not isinstance(found, np.ndarray):
        raise TypeError(
            f"a window takes a NumPy array or a tensor, not an object of type {type(array).__name__}"
        )
    return found


def _decode(text: str) -> RemoteRegion:
    return RemoteRegion.from_bytes(base64.b64decode(text))


def _listed(ranks: Iterable[int] | int) -> list[int]:
    return list(ranks) if isinstance(ranks, Iterable) else [ranks]
