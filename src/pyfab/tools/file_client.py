"""Reads parts of what `pyfab serve` and `pyfab.store.StoreServer` show, as bytes."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pyfab.core.deadline import Deadline, Looks
from pyfab.core.domain import Domain
from pyfab.core.endpoint import Endpoint
from pyfab.core.errors import BoundsError, OperationTimeout
from pyfab.core.region import RemoteRegion
from pyfab.meeting import tokens
from pyfab.meeting.channel import Channel
from pyfab.meeting.frames import Header, shown
from pyfab.tools.lending import FILES_OF_LOAN, MOST_AT_ONCE
from pyfab.tools.serve import SERVICE
from pyfab.tools.served import MOST_LISTING, MOST_NAME, Contents, Entry

if TYPE_CHECKING:
    from pyfab.core.endpoint import Operation
    from typing_extensions import Self

# Bytes up to which parts are read as one vector and copied; larger ones come right where they stay.
_SMALL = 1 << 16
_PIECE = 16 << 20  # bytes of one operation, for which the server has the whole timeout
_KEEP = 60.0  # seconds after which the server is told that its files are still read


# What a child of fork() has from its parent is kept: the parent's threads do not run here, so it cannot be closed.
_inherited: list[object] = []
_clients: weakref.WeakSet[FileClient] = weakref.WeakSet()


def _begin_anew() -> None:
    """In a child of fork(): locks may be held by threads that are not there."""
    for client in list(_clients):
        _inherited.append(client._data)
        client._drop()
        client._reset()


os.register_at_fork(after_in_child=_begin_anew)


class LoanLostError(ConnectionError):
    """The connection was lost, by what another thread asked, while files were read."""


class Part(NamedTuple):
    """Bytes of a file, as ``file[start:stop]``. With a version, only of a file that has that one."""

    name: str
    start: int | None = None
    stop: int | None = None
    version: str = ""


class _Data(NamedTuple):
    """What reads one-sidedly from the server that has this key and address."""

    key: bytes | None
    address: bytes
    domain: Domain
    endpoint: Endpoint
    peer: int

    def close(self) -> None:
        self.endpoint.close()
        self.domain.close()


class FileClient:
    """Reads from a server at ``host:port``. It connects at the first call, and again after the connection was lost.

    token: as of `pyfab fetch`. timeout: seconds that the server has for each answer, and for each 16 MiB. Safe from any thread;
    a child of `fork()` connects by itself. Calls raise ConnectionError if the server cannot be reached or is lost, TimeoutError
    if it does not answer.
    """

    def __init__(self, address: str, token: str | None = None, timeout: float = 10.0) -> None:
        self.address, self._token, self._timeout = address, token, timeout
        self._channel: Channel | None
        self._data: _Data | None
        self._reset()
        _clients.add(self)

    def look(self, path: str) -> Entry | Contents:
        """What is told of this name, or what is in this folder, which may be "". FileNotFoundError if there is neither."""
        _check(path)
        answer, body, _ = self.ask({"op": "look", "name": path})
        _raise(answer, path)
        if isinstance(answer.get("file"), dict):
            entry: Entry = answer["file"]
            return entry
        if "folder" not in answer:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return Contents(_names(body))

    def listing(self) -> Header:
        """What the server tells of all that it serves (`pyfab.tools.serve`), or why it does not."""
        answer, body, _ = self.ask({"op": "list"})
        return _names(body) if body else answer

    def read(self, parts: Sequence[Part]) -> list[bytes | OSError]:
        """The bytes of each part, or why they cannot be read: FileNotFoundError, or another OSError.

        Small parts of a file come as one vector of gets, larger ones by gets into the bytes that are returned.
        """
        found: dict[int, bytes | OSError] = {}
        names: dict[str, list[int]] = {}
        for place, part in enumerate(parts):
            try:
                _check(part.name)
                names.setdefault(part.name, []).append(place)
            except FileNotFoundError as error:
                found[place] = error
        order = list(names)
        for first in range(0, len(order), FILES_OF_LOAN):
            some = order[first : first + FILES_OF_LOAN]
            of_some = [[(at, parts[at]) for at in names[name]] for name in some]
            try:
                found |= self._read_from(some, of_some)
            except LoanLostError:  # the server itself may be well
                found |= self._read_from(some, of_some)
        return [found[place] for place in range(len(parts))]

    def close(self) -> None:
        """Ends the connection. A later call begins a new one."""
        with self._lock:
            self._drop()
            if self._data is not None:
                self._data.close()
                self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- loans

    @contextlib.contextmanager
    def lend(self, names: list[str]) -> Iterator[Loan]:
        """Files, at most 16, that the server keeps open for the time of the `with`; after it `Loan.changed` is known.

        LoanLostError if another thread lost the connection meanwhile.
        """
        with self._room(len(names)):
            answer, _, channel = self.ask({"op": "lend", "names": names})
            _raise(answer, ", ".join(names))
            give_back = {"op": "return", "loan": answer.get("loan")}
            try:
                loan = Loan(self, channel, _lent(answer, len(names)), self._data_of(channel, answer))
                yield loan
            except BaseException as error:
                lost = channel is not self._channel
                with contextlib.suppress(OSError):  # what has failed is told, not that the loan went with it
                    self._ask(give_back, channel)
                if lost and isinstance(error, OSError):
                    raise LoanLostError(f"{self._lost}: {error}") from error
                raise
            answer, _, _ = self._ask(give_back, channel)
            _raise(answer, ", ".join(names))
        loan.changed = _changed_of(answer, loan.lent)

    def _read_from(self, names: list[str], parts: list[list[tuple[int, Part]]]) -> dict[int, bytes | OSError]:
        """Reads parts of a few files, by their places."""
        with self.lend(names) as loan:
            found = self._gets(loan, names, parts)
        for number in loan.changed:
            places = [place for place, _ in parts[number]]
            found |= dict.fromkeys(places, changed(names[number], "while it was read"))
        return found

    @contextlib.contextmanager
    def _room(self, count: int) -> Iterator[None]:
        """Waits until the server lends so many files to this client beside those that it has."""
        entering, free = self._entering, self._free
        with contextlib.ExitStack() as taken:
            self._acquire(entering)
            try:
                for _ in range(count):
                    self._acquire(free)
                    taken.callback(free.release)
            finally:
                entering.release()
            yield

    def _acquire(self, room: threading.Lock | threading.Semaphore) -> None:
        """Waits for other threads as long as the server has bytes or answers for them."""
        began = time.monotonic()
        while not room.acquire(timeout=max(0.0, max(began, self._heard) + self._timeout - time.monotonic())):
            if time.monotonic() >= max(began, self._heard) + self._timeout:
                raise TimeoutError(f"{self.address} has not answered others within {self._timeout:g} s")

    def _gets(
        self, loan: Loan, names: list[str], parts: list[list[tuple[int, Part]]]
    ) -> dict[int, bytes | OSError]:
        found: dict[int, bytes | OSError] = {}
        reads = []
        for name, of_name, told in zip(names, parts, loan.lent, strict=True):
            if "error" in told:
                found |= {place: error_of(told, name) for place, _ in of_name}
                continue
            same = []
            for place, part in of_name:
                if part.version in ("", told["version"]):
                    same.append((place, part))
                else:
                    found[place] = changed(name, "since it was opened")
            reads.append(_Read(loan.data, told, same))
        for read in reads:
            found |= read.result(lambda operation: loan.wait(operation, self._timeout))
        return found

    def _data_of(self, channel: Channel, answer: Header) -> _Data:
        key, address = tokens.data_key(channel.token), decoded(answer, "address")
        with self._lock:
            if self._data is None or (self._data.key, self._data.address) != (key, address):
                if self._data is not None:  # of a server that is gone
                    self._data.close()
                    self._data = None
                with contextlib.ExitStack() as undo:
                    domain = undo.enter_context(Domain("shm+tcp", auth_key=key))
                    endpoint = undo.enter_context(domain.endpoint())
                    self._data = _Data(key, address, domain, endpoint, endpoint.av.insert(address))
                    undo.pop_all()
            return self._data

    # --- the connection

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._entering, self._free = threading.Lock(), threading.Semaphore(MOST_AT_ONCE)
        self._channel = None
        self._data = None
        self._heard = 0.0  # when the server has last answered, or bytes have come

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def ask(self, request: Header) -> tuple[Header, bytes, Channel]:
        """The answer, and the connection that gave it. A server that is busy is asked again."""
        deadline = Deadline(self._timeout)
        looks = Looks(deadline)
        while (found := self._ask(request))[0].get("busy"):
            if deadline.over:
                busy = f"{self.address} has as much open for others as it can, and has had for"
                raise TimeoutError(f"{busy} {self._timeout:g} s")
            looks.pause()
        return found

    def _ask(self, request: Header, channel: Channel | None = None) -> tuple[Header, bytes, Channel]:
        """The answer to one request; by this connection alone if one is given."""
        deadline = Deadline(self._timeout)
        lock = self._lock
        if not lock.acquire(timeout=self._timeout):
            raise TimeoutError(f"{self.address} has not answered others within {self._timeout:g} s")
        try:
            if channel is not None and channel is not self._channel:
                raise LoanLostError(self._lost)
            if channel is None and self._channel is not None:
                # A server ends what has been silent for a while, which is noticed only now.
                with contextlib.suppress(ConnectionError):
                    return self._exchange(request, deadline)
            return self._exchange(request, deadline)
        finally:
            lock.release()

    @property
    def _lost(self) -> str:
        return f"the connection to {self.address} was lost while files were read"

    def _exchange(self, request: Header, deadline: Deadline) -> tuple[Header, bytes, Channel]:
        try:
            used = self._channel = self._channel or self._connect(deadline)
            used.send(request, deadline=deadline)
            answer = used.receive(deadline, MOST_LISTING)
            self._heard = time.monotonic()
            return (*answer, used)
        except BaseException as error:
            self._drop()  # an answer may still come, which is none to the next request
            if type(error) is TimeoutError:
                raise TimeoutError(f"{self.address} does not answer within {self._timeout:g} s") from None
            raise

    def _connect(self, deadline: Deadline) -> Channel:
        start = f"pyfab serve FILE --listen {self.address}"
        return Channel.call(self.address, SERVICE, self._token, deadline, start)


class Loan:
    """Files that a server keeps open for a client."""

    def __init__(self, client: FileClient, channel: Channel, lent: list[Header], data: _Data) -> None:
        self.lent, self.data = lent, data
        self.changed: list[int] = []
        """Places of files that have changed meanwhile, known once all are given back."""
        self._client, self._channel = client, channel
        self._told = time.monotonic()

    def wait(self, operation: Operation, timeout: float | None) -> None:
        """`Operation.result`, while the server is told from time to time that its files are still read."""
        deadline = Deadline(timeout)
        while True:
            if time.monotonic() - self._told >= _KEEP:
                self._client._ask({"op": "keep"}, self._channel)
                self._told = time.monotonic()
            try:
                operation.result(deadline.remaining(_KEEP))
                break
            except OperationTimeout:
                if deadline.over or operation.done():
                    raise
        self._client._heard = time.monotonic()


class _Read:
    """Gets of parts of one file that are under way."""

    def __init__(self, data: _Data, lent: Header, parts: Sequence[tuple[int, Part]]) -> None:
        self._found: dict[int, bytes | OSError] = {}
        self._small: list[tuple[int, int, int]] = []  # place, start and length
        self._waiting: list[Operation] = []
        region = RemoteRegion.from_bytes(decoded(lent, "region")) if lent["size"] else None
        for place, part in parts:
            start, stop, _ = slice(part.start, part.stop).indices(lent["size"])
            if stop <= start or region is None:
                self._found[place] = b""
            elif stop - start <= _SMALL:
                self._small.append((place, start, stop - start))
            else:
                self._found[place] = whole = bytes(stop - start)
                memory = np.asarray(_Fresh(whole))
                for begin in range(0, memory.size, _PIECE):
                    piece = memory[begin : begin + _PIECE]
                    source = region.bytes(start + begin, start + begin + piece.size)
                    self._waiting.append(data.endpoint.read(piece, data.peer, source))
        if self._small and region is not None:
            _, starts, lengths = np.array(self._small, np.uint64).T
            self._ends = np.cumsum(lengths)
            self._memory = np.empty(int(self._ends[-1]), np.uint8)
            vector = data.endpoint.read_many(
                data.peer, region, self._memory, starts, self._ends - lengths, lengths
            )
            self._waiting.append(vector)

    def result(self, wait: Callable[[Operation], None]) -> dict[int, bytes | OSError]:
        """The parts by their places, once they have come."""
        try:
            for operation in self._waiting:
                wait(operation)
        except BoundsError as error:  # the file has become shorter
            return dict.fromkeys([*self._found, *(place for place, _, _ in self._small)], error)
        for number, (place, _, length) in enumerate(self._small):
            end = int(self._ends[number])
            self._found[place] = self._memory[end - length : end].tobytes()
        return self._found


class _Fresh:
    """The memory of bytes that nobody has seen yet, as an array that can be written: so they need not be copied later."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (len(data),),
            "data": (start, False),
        }


# --- what the server answers


def _names(body: bytes) -> dict[str, Any]:
    """The list that is the body of an answer."""
    try:
        return dict(json.loads(body))
    except (ValueError, TypeError, RecursionError):
        raise ConnectionError("the server's answer holds no list of names") from None


def _check(name: str) -> None:
    if len(name) > MOST_NAME:
        raise FileNotFoundError(errno.ENOENT, f"a name of {len(name)} characters", shown(name))


def error_of(answer: Header, name: str) -> OSError:
    """The error that the server tells, of the class that its number stands for."""
    number = answer.get("errno")
    return OSError(number if isinstance(number, int) else errno.EIO, str(answer["error"]), name)


def _raise(answer: Header, name: str) -> None:
    if "error" in answer:
        raise error_of(answer, name)


def changed(name: str, when: str) -> OSError:
    """What is raised for a file that has not one version."""
    return OSError(errno.ESTALE, f"the file was changed {when}; open it again", name)


def decoded(answer: Header, key: str) -> bytes:
    """The bytes that the server tells under this key."""
    try:
        return base64.b64decode(answer[key], validate=True)
    except (KeyError, TypeError, ValueError):
        raise ConnectionError(f"the server's answer has no {key}") from None


def _lent(answer: Header, count: int) -> list[Header]:
    lent = answer.get("lent")
    usable = isinstance(lent, list) and len(lent) == count
    for told in lent if usable and isinstance(lent, list) else ():
        whole = isinstance(told, dict) and isinstance(told.get("size"), int) and "version" in told
        usable = usable and isinstance(told, dict) and ("error" in told or whole)
    if not usable or not isinstance(lent, list):
        raise ConnectionError("the server's answer does not say what it lends")
    return lent


def _changed_of(answer: Header, lent: list[Header]) -> list[int]:
    """Places of what has changed. The server counts those that were opened."""
    opened = [place for place, told in enumerate(lent) if "error" not in told]
    try:
        return [opened[number] for number in answer["changed"]]
    except (KeyError, TypeError, IndexError):
        raise ConnectionError("the server's answer does not say what has changed") from None
