"""A dictionary in the memory of a group."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyfab.checkpoint._placement import holders
from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import (
    ClosedError,
    FabricError,
    InvalidArgumentError,
    OperationTimeout,
    PeerLostError,
)
from pyfab.core.region import RemoteRegion
from pyfab.group.cells import Cells
from pyfab.group.control import GONE
from pyfab.group.group import Group
from pyfab.store._copies import Copies, Copy, OwnCopy
from pyfab.store._layout import Layout, Place, place_of
from pyfab.store._looking import Held, fetch, find, is_at, key_in
from pyfab.store._values import flatten, restore
from pyfab.store._writing import Write

_CALL = "store.Store()"
_TAKE_PART = f"take part in {_CALL}"
_LOCK, _LOST, _CELLS = 0, 1, 2  # cells of a rank: the lock of its shard; 1 + a rank that is lost
_LOOK = 1.0  # seconds of waiting for a lock between looks whether this rank was told of a loss; `acquire` asks the holder itself
_TELL = 0.2  # seconds that a rank may take to hear that another one is lost
_ANSWER = 1.0  # seconds that the last look of a wait may take beyond its deadline
_DEFAULT: Any = object()


class Entry(NamedTuple):
    """A value and its version. If the key is not there: None and 0."""

    value: Any
    version: int


class Swap(NamedTuple):
    """The result of `compare_and_set`: whether the value was set, and the version that the key has now."""

    done: bool
    version: int


class View(NamedTuple):
    """A value in the memory of its rank, without a copy. Its arrays are not writable."""

    value: Any
    version: int
    is_current: Callable[[], bool]
    """Whether the key still has this version. Once it has not, other bytes may take the place of the value's at any time."""


class Store:
    """A dictionary of values by name, in the memory of all ranks. Collective: all ranks of the group make it together.

    A value is a NumPy array, a number, a text, bytes, None, or dicts, lists and tuples of these. Each key belongs to a shard.
    Each rank has a shard, and `replicas` other ranks hold copies of it. Any rank reads and writes any key without help of other
    programs. Each call takes effect at one moment between its begin and its end (it is linearizable). Gets never wait for puts.

    capacity: bytes of all values together, without copies; each rank gives 1 + `replicas` times its share. A new value is written
    beside the old one, and a shard may get more than its share. So set `capacity` to twice the size of your values, or more if
    you have only a few large ones. keys: how many keys there is room for; double it in the same way. timeout: seconds that a call
    waits at most for a lock or an answer.

    After the death of a rank all ranks get PeerLostError, until the remaining ones have called `Group.shrink` and `recover`. If a
    put, delete or compare_and_set raised PeerLostError or OperationTimeout, it may have taken effect or not.

    Safe from any thread, except `close` and `recover`.
    """

    def __init__(
        self,
        group: Group,
        *,
        capacity: int = 64 << 20,
        keys: int = 4096,
        replicas: int = 1,
        timeout: float | None = 30,
    ) -> None:
        if capacity < 1 or keys < 1:
            raise InvalidArgumentError(f"capacity={capacity}, keys={keys}: both are 1 or more")
        group._check()
        layout = Layout.of(-(-capacity // group.size), -(-keys // group.size))
        self._open(group, (capacity, keys, replicas), layout, timeout)

    @classmethod
    def _recovered(
        cls, group: Group, terms: tuple[int, int, int], layout: Layout, timeout: float | None, version: int
    ) -> Store:
        """An empty one, whose versions come after `version`. Collective."""
        store = object.__new__(cls)
        store._open(group, terms, layout, timeout, version)
        store._filled = False
        return store

    def _open(
        self,
        group: Group,
        terms: tuple[int, int, int],
        layout: Layout,
        timeout: float | None,
        version: int = 0,
    ) -> None:
        self._group, self._terms, self._layout, self.timeout = group, terms, layout, timeout
        self.rank, self.size, self.replicas = group.rank, group.size, terms[2]
        self._writing = threading.Lock()
        self._closed = self._frozen = False
        self._filled = True  # `recover` fills it
        self._next: Store | None = None  # what an unfinished `recover` has made of this one
        self._own: dict[int, OwnCopy] = {}
        with contextlib.ExitStack() as undo:

            def begin() -> tuple[None, Any]:
                self._placed = [
                    [shard, *ranks] for shard, ranks in enumerate(holders(group._hosts, terms[2]))
                ]
                key = group._keys.regions
                self._cells = Cells(group.domain, group.endpoint, group._handles, group.rank, _CELLS, key)
                undo.callback(self._cells.close)
                for shard, ranks in enumerate(self._placed):
                    if self.rank in ranks:
                        self._own[shard] = OwnCopy(group, layout, version)
                        undo.callback(self._own[shard].close)
                cards = {shard: own.card for shard, own in self._own.items()}
                return None, [list(terms), os.urandom(16), self._cells.remote, cards]

            _, told = group._make_together(begin, group.timeout, _CALL, _TAKE_PART)
            for rank, (others, *_) in enumerate(told):
                if tuple(others) != terms:
                    raise InvalidArgumentError(
                        f"capacity, keys and replicas are {list(terms)} here, and {others} on rank {rank}: all ranks give the"
                        " same"
                    )
            self._resources = undo.pop_all()
        self._job: bytes = told[0][1]
        self._cells.connect([RemoteRegion.from_bytes(cells) for _, _, cells, _ in told])
        self._copies = Copies(
            group,
            layout,
            [
                [
                    Copy(rank, group._handles[rank], RemoteRegion.from_bytes(card), file)
                    for rank in ranks
                    for card, file in [told[rank][3][shard]]
                ]
                for shard, ranks in enumerate(self._placed)
            ],
        )

    # --- reading

    def get(self, key: str, default: Any = None, *, timeout: float | None = _DEFAULT) -> Any:
        """Returns a copy of the value of a key; `default` if the key is not there."""
        (entry,) = self.read([key], timeout)
        return entry.value if entry.version else default

    def read(self, keys: Iterable[str], timeout: float | None = _DEFAULT) -> list[Entry]:
        """Returns value and version of each of these keys, with one vector of gets for each rank that has some of them.

        Each is from some moment of the call, but not all from the same moment. You may change the arrays.
        """
        places = [place_of(key) for key in keys]
        with self._asking():
            looks = [(self._shard(place), fetch(self._layout, place, _entry)) for place in places]
            found = self._copies.run(looks, self._deadline(timeout))
        return [Entry(None, 0) if entry is None else entry for entry in found]

    def version(self, key: str, timeout: float | None = _DEFAULT) -> int:
        """The version of a key; 0 if it is not there. It grows with each new value of the key, maybe by more than 1."""
        place = place_of(key)
        with self._asking():
            look = self._shard(place), find(self._layout, place)
            return self._copies.run([look], self._deadline(timeout))[0].version

    def view(self, key: str, timeout: float | None = _DEFAULT) -> View | None:
        """Returns the value of a key without a copy, in memory of a rank on this node. None if the key is not there.

        The bytes belong to this version as long as `is_current` says so: look at them first, then ask. The memory stays mapped as
        long as the arrays exist. NotSupportedError if the key is on another node: use `get`.
        """
        place = place_of(key)
        shard = self._shard(place)

        def make(held: Held) -> View:
            slot, location = held.found.slot, held.found.location
            assert slot is not None

            def is_current() -> bool:
                self._group._memory_barrier()
                there = not (self._frozen or self._closed)
                return there and self._copies.run_mapped(shard, is_at(slot, location), Deadline(None))

            return View(*_entry(held), is_current)

        with self._asking():
            return self._copies.run_mapped(shard, fetch(self._layout, place, make), self._deadline(timeout))

    def watch(self, key: str, version: int = 0, timeout: float | None = _DEFAULT) -> Entry:
        """Waits until a key has another version than `version`, or is gone. Returns what it has then.

        It does not see values that came and went in between. OperationTimeout if it takes longer than `timeout` seconds.
        """
        deadline = self._deadline(timeout)
        looks = Looks(deadline)
        while True:
            if self.version(key, _answer(deadline)) != version:
                (entry,) = self.read([key], _answer(deadline))
                if entry.version != version:
                    return entry
            if deadline.over:
                raise OperationTimeout(f"key {key!r} still has version {version} after {deadline}")
            looks.pause()

    def keys(self, timeout: float | None = _DEFAULT) -> list[str]:
        """Returns the keys that are there, sorted.

        Each was there at some moment of the call. No key is missing that was there all the time.
        """
        with self._asking():
            slots = range(self._layout.slots)
            looks = [(shard, key_in(self._layout, slot)) for shard in range(self.size) for slot in slots]
            found = self._copies.run(looks, self._deadline(timeout))
        return sorted({key.decode() for key in found if key is not None})

    def __contains__(self, key: str) -> bool:
        return self.version(key) > 0

    def __getitem__(self, key: str) -> Any:
        (entry,) = self.read([key])
        if not entry.version:
            raise KeyError(key)
        return entry.value

    # --- writing

    def put(self, key: str, value: Any, timeout: float | None = _DEFAULT) -> int:
        """Sets the value of a key. Returns its version when all copies have it.

        InvalidArgumentError names what cannot be stored. TooSmallError if there is no room. OperationTimeout if another rank
        holds the lock of the shard for too long, because it is stopped. When this rank has the lock, it waits for the holders of
        copies as long as they live.
        """
        return self._set(key, value, None, timeout).version

    def compare_and_set(self, key: str, version: int, value: Any, timeout: float | None = _DEFAULT) -> Swap:
        """Sets the value of a key if the key has this version; 0 means that it is not there. Returns a Swap.

        If several ranks expect the same version, at most one succeeds. Errors are those of `put`.
        """
        return self._set(key, value, version, timeout)

    def delete(self, key: str, version: int | None = None, timeout: float | None = _DEFAULT) -> bool:
        """Removes a key; with `version`, only if it has that version. Returns whether it was removed."""
        place = place_of(key)
        with self._alone(place, timeout) as write:
            found = write.find(place)
            if found.slot is None or not found.version or version not in (None, found.version):
                return False
            write.take(found.slot)
            return True

    def __setitem__(self, key: str, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: str) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def _set(self, key: str, value: Any, expected: int | None, timeout: float | None) -> Swap:
        place, flat = place_of(key), flatten(value)
        with self._alone(place, timeout) as write:
            found = write.find(place)
            if expected not in (None, found.version):
                return Swap(False, found.version)
            return Swap(True, write.put(place, found, flat))

    def _restore(self, place: Place, version: int, record: NDArray[np.uint8]) -> None:
        """Takes a record of a former store over, with its version."""
        with self._alone(place, None) as write:
            write.write(place, write.find(place), record.nbytes, lambda _: record, version)

    # --- what all calls have in common

    def _shard(self, place: Place) -> int:
        return place.number % self.size

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self.timeout if timeout is _DEFAULT else timeout)

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed")
        if self._frozen:
            raise ClosedError("the store was given to recover(): use the one that it returned")
        if teller := int(self._cells.words[_LOST]):
            raise PeerLostError(
                f"rank {teller - 1} of {self.size} has found that a rank is lost, or ended in the middle of a write; all that are"
                " left call Group.shrink() and store.recover()"
            )

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Tells all ranks if one turns out to be lost."""
        self._check()
        try:
            yield
        except GONE as error:
            self._tell()
            raise PeerLostError(
                f"{error.strerror}; all that are left call Group.shrink() and store.recover()"
            ) from error

    def _tell(self) -> None:
        """Ends the use of the store at all ranks that can be reached, so that none waits for what nobody will do."""
        for rank in (self.rank, *self._group.peers):
            with contextlib.suppress(FabricError):
                self._cells.store(rank, _LOST, 1 + self.rank, Deadline(_TELL))

    @contextlib.contextmanager
    def _alone(self, place: Place, timeout: float | None) -> Iterator[Write]:
        """Has the lock of a key's shard. It stays with a write that did not come to its end, as nobody knows what there is."""
        deadline = self._deadline(timeout)
        shard = self._shard(place)
        with self._asking():
            left = deadline.remaining()
            if not self._writing.acquire(timeout=-1 if left is None else left):
                raise OperationTimeout(f"another thread has been writing for {deadline}")
            try:
                self._acquire(shard, deadline)
                write = Write(self._copies, self._layout, shard, deadline)
                try:
                    yield write
                except BaseException:
                    if write.begun:
                        self._tell()
                    else:
                        self._cells.release(shard, _LOCK, False, Deadline(None))
                    raise
                self._cells.release(shard, _LOCK, False, Deadline(None))
            finally:
                self._writing.release()

    def _acquire(self, shard: int, deadline: Deadline) -> None:
        while True:
            self._check()
            try:
                self._cells.acquire(shard, _LOCK, False, Deadline(deadline.remaining(_LOOK)))
                return
            except OperationTimeout:
                if deadline.over:
                    raise

    # --- the end

    def _freeze(self) -> None:
        """Ends all use of this rank's memory, which stays as it is. Local."""
        with self._writing:
            if not self._frozen:
                self._frozen = True
                for own in self._own.values():
                    own.close()

    def close(self, timeout: float | None = -1) -> None:
        """Waits until all ranks have called it, then closes the store. Collective. Closing twice is harmless."""
        if self._closed:
            return
        try:
            if not self._frozen:
                self._group._barrier(timeout, "store.Store.close()")
        finally:
            self._release()

    def _release(self) -> None:
        if not self._closed:
            self._closed = True
            self._resources.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes; after an exception without waiting for the others."""
        if kind is None:
            self.close()
        self._release()

    def __repr__(self) -> str:
        if self._closed:
            return f"Store(rank {self.rank} of {self.size}, closed)"
        room = f"{self._layout.units * self._layout.unit} bytes and {self._layout.slots} keys a rank"
        return f"Store(rank {self.rank} of {self.size}, {self.replicas} replicas, {room})"


def _entry(held: Held) -> Entry:
    record = held.record
    return Entry(restore(record.described(held.content), held.content[record.content :]), record.version)


def _answer(deadline: Deadline) -> float | None:
    """What is left, or a while: an answer may come a little after the deadline of a wait."""
    left = deadline.remaining()
    return None if left is None else max(left, _ANSWER)
