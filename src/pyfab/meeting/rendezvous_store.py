"""A meeting in a store, which does not ask who reads and writes it, so all that the ranks put there is sealed under a token.

Each rank first puts a random number there, which is new for each meeting, and rank 0 with it the name of a token that it has
made itself. The numbers of all ranks go into what is sealed after that: so what ranks of another meeting have put there, of this
job or of an earlier one, is refused, whoever puts it there again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Protocol

from pyfab.core.buffers import bytes_of
from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import AccessDeniedError, InvalidArgumentError, OperationTimeout, words_of
from pyfab.meeting import tokens
from pyfab.meeting.ranks import Exchange, Member, incomplete, ranks_text
from pyfab.meeting.sealing import Tampered, seal, unseal

_NONCE_BYTES = 16


class _Board(Protocol):
    """A part of a store, for one meeting."""

    place: str

    def put(self, what: str, rank: int, value: bytes) -> None:
        """Tells all ranks something."""

    def all(self, what: str) -> list[bytes]:
        """What all ranks have told, by rank, once it is there. OperationTimeout names ranks that did not come."""


@contextlib.contextmanager
def through_store(store: Any, who: Member, deadline: Deadline) -> Iterator[Exchange]:
    """A meeting in anything with ``set``, ``get`` and ``wait``."""
    # The n-th meeting of this process in a store is the n-th of the others, too.
    with _sealed(_Waited(store, f"pyfab/meeting/{_next_turn(store)}", who.size, deadline), who) as exchange:
        yield exchange


@contextlib.contextmanager
def through_torch(who: Member, deadline: Deadline) -> Iterator[Exchange]:
    """A meeting in the store of torch.distributed."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise InvalidArgumentError(
            'rendezvous="torch" needs the package torch; install it, or use tcp://'
        ) from error
    store = _torch_store(dist, who, deadline)
    # The n-th group of this rank meets the n-th group of the others.
    turn = store.add(f"pyfab/{who.rank}/turn", 1)
    with _sealed(_Counted(store, f"pyfab/{turn}", who.size, deadline), who) as exchange:
        yield exchange


@contextlib.contextmanager
def _sealed(board: _Board, who: Member) -> Iterator[Exchange]:
    """Exchanges over a board that everybody may read and change."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    with contextlib.ExitStack() as undo:
        hello = nonce
        if who.rank == 0:
            token = tokens.for_server(None)
            undo.callback(token.withdraw)  # when rank 0 has met the others, all have found it
            hello += token.name.encode()
        board.put("hello", who.rank, hello)
        hellos = board.all("hello")
        if hellos[who.rank] != hello:
            raise _forged(who.rank, who.size)
        secret = tokens.stretched(token.secret) if who.rank == 0 else _found(hellos[0][_NONCE_BYTES:])
        meeting = hashlib.sha256(
            b"".join(len(part).to_bytes(8, "little") + part for part in hellos)
        ).hexdigest()
        turns = iter(range(1 << 30))

        def exchange(value: bytes) -> list[bytes]:
            turn = next(turns)

            def context(rank: int) -> bytes:
                return f"{board.place} {meeting} {turn} {rank} {who.size}".encode()

            board.put(f"values {turn}", who.rank, seal(secret, context(who.rank), value))
            values = []
            for rank, sealed in enumerate(board.all(f"values {turn}")):
                try:
                    values.append(unseal(secret, context(rank), sealed))
                except Tampered:
                    raise _forged(rank, who.size) from None
            return values

        yield exchange


def _found(name: bytes) -> bytes:
    """What rank 0's token gives, whose name is that, if it is not stated."""
    try:
        text = name[:100].decode("ascii", errors="replace")
        return tokens.stretched(tokens.for_client(None, text, "the meeting in the store"))
    except tokens.WrongToken as error:
        raise AccessDeniedError(str(error)) from None


def _forged(rank: int, size: int) -> AccessDeniedError:
    return AccessDeniedError(
        f"what the store has from rank {rank} of {size} was not written for this meeting by a rank that has this one's token;"
        " set the same PYFAB_TOKEN for all ranks, and give each job a store of its own"
    )


class _Waited:
    """A board in a store that can wait for a key."""

    def __init__(self, store: Any, place: str, size: int, deadline: Deadline) -> None:
        self._store, self.place, self._size, self._deadline = store, place, size, deadline

    def put(self, what: str, rank: int, value: bytes) -> None:
        self._store.set(f"{self.place}/{what}/{rank}", value)

    def all(self, what: str) -> list[bytes]:
        return [self._one(f"{self.place}/{what}/{rank}", rank) for rank in range(self._size)]

    def _one(self, key: str, rank: int) -> bytes:
        left = self._deadline.remaining()
        try:
            self._store.wait([key], timedelta(seconds=365 * 86400 if left is None else left))
        except Exception as error:  # each kind of store has its own error for a timeout
            raise OperationTimeout(
                f"{ranks_text([rank], self._size)} did not arrive in the store within {self._deadline}: {words_of(error)}"
            ) from error
        return bytes_of("store.get()", self._store.get(key))


class _Counted:
    """A board in a store of torch: every version has add(), and in old versions wait() cannot be given up safely."""

    def __init__(self, store: Any, place: str, size: int, deadline: Deadline) -> None:
        self._store, self.place, self._size, self._deadline = store, place, size, deadline

    def put(self, what: str, rank: int, value: bytes) -> None:
        self._store.set(f"{self.place}/{what}/{rank}", value)
        self._store.add(f"{self.place}/{what}/{rank}/here", 1)
        self._store.add(f"{self.place}/{what}/here", 1)

    def all(self, what: str) -> list[bytes]:
        place, looks = f"{self.place}/{what}", Looks(self._deadline)
        while self._store.add(f"{place}/here", 0) < self._size:
            if self._deadline.over:
                arrived = [r for r in range(self._size) if self._store.add(f"{place}/{r}/here", 0)]
                raise incomplete(arrived, self._size, self._deadline, "torch's store")
            looks.pause()
        return [bytes_of("store.get()", self._store.get(f"{place}/{r}")) for r in range(self._size)]


_turns: dict[
    int, tuple[Callable[[], Any], int]
] = {}  # id of a store → the store, and the meetings of this process in it
_turns_lock = threading.Lock()


def _next_turn(store: Any) -> int:
    """How many meetings this process has had in a store, with this one. A store that is gone leaves its id to another one."""
    with _turns_lock:
        found = _turns.get(id(store))
        turn = 1 if found is None or found[0]() is not store else found[1] + 1
        _turns[id(store)] = _reference(store), turn
        return turn


def _reference(store: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(store)
    except TypeError:  # its kind knows no weak references, so it is kept
        return lambda: store


# The stores by host and port. That of rank 0 serves the others, so it stays until the process ends.
_torch_stores: dict[tuple[str, int], Any] = {}


def _torch_store(dist: Any, who: Member, deadline: Deadline) -> Any:
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as error:
        raise InvalidArgumentError(
            f'rendezvous="torch" needs the environment variable {error.args[0]}'
        ) from None
    # This is the rule of torch's env://, so that both can share the port: torchrun's agent has the store, or else rank 0.
    serves = who.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if (host, port) not in _torch_stores:
        timeout = timedelta(seconds=deadline.remaining() or 3600)
        _torch_stores[host, port] = dist.TCPStore(
            host, port, who.size, serves, timeout, wait_for_workers=False, multi_tenant=True
        )
    # The store of torchrun's agent outlives the processes, which count their meetings from the first when they are started again.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"pyfab/attempt/{attempt}", _torch_stores[host, port])
