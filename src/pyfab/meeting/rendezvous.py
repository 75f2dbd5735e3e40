"""How the members of a group find each other: one exchange of a few bytes per rank, before any fabric exists.

``tcp://host:port``  Rank 0 listens there until every rank has its answer; the others connect and retry until their timeout.
``file:///folder``   Files in a folder that all ranks see, made if it is missing and removed by the last rank.
``torch``            The TCPStore of torch.distributed at MASTER_ADDR:MASTER_PORT, or that of its default process group.
A store              Anything with ``set``, ``get`` and ``wait``, as the stores of torch.distributed have them.
A communicator       Anything with mpi4py's ``allgather``.

Who is no rank learns and changes nothing. Over tcp and in a store, all prove a token and what they say is sealed under it; in a
folder, only files of this user count, which nobody else can read. A communicator is as private as whoever made it has made it.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyfab.core.buffers import bytes_of
from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import AccessDeniedError, InvalidArgumentError, OperationTimeout
from pyfab.meeting import rendezvous_tcp, tokens
from pyfab.meeting.frames import split_address
from pyfab.meeting.ranks import incomplete, ranks_text
from pyfab.meeting.rendezvous_folder import through_folder
from pyfab.meeting.sealing import Tampered, seal, unseal


def exchange(rendezvous: Any, rank: int, size: int, value: bytes, timeout: float | None) -> list[bytes]:
    """Gives `value` to all ranks and returns everyone's, by rank.

    Raises OperationTimeout naming the ranks that did not come, InvalidArgumentError for a malformed rendezvous or for two
    ranks with one number, AccessDeniedError if PYFAB_TOKEN differs between the ranks, or is needed and not set, or others can
    change the folder.
    """
    deadline = Deadline(timeout)
    if hasattr(rendezvous, "allgather"):
        return _through_communicator(rendezvous, rank, size, value)
    if all(hasattr(rendezvous, name) for name in ("set", "get", "wait")):
        return _through_store(rendezvous, rank, size, value, deadline)
    if not isinstance(rendezvous, str):
        raise InvalidArgumentError(
            f"rendezvous={rendezvous!r}: give a string, a store with set, get and wait, or an mpi4py communicator"
        )
    if rendezvous == "torch":
        return _through_torch(rank, size, value, deadline)
    url = urlsplit(rendezvous)
    if url.scheme == "tcp":
        try:
            host, port = split_address(url.netloc)
        except ValueError as error:
            raise InvalidArgumentError(f"rendezvous={rendezvous!r}: {error}") from None
        if size == 1:
            return [value]
        meet = rendezvous_tcp.serve if rank == 0 else rendezvous_tcp.call
        return meet(host, port, rank, size, value, deadline)
    if url.scheme == "file" and not url.netloc and url.path.startswith("/"):
        return through_folder(Path(unquote(url.path)), rank, size, value, deadline)
    raise InvalidArgumentError(
        f"rendezvous={rendezvous!r}: write tcp://host:port, file:///folder or torch, or give an mpi4py communicator"
    )


def _through_communicator(communicator: Any, rank: int, size: int, value: bytes) -> list[bytes]:
    if (communicator.Get_rank(), communicator.Get_size()) != (rank, size):
        raise InvalidArgumentError(
            f"rank {rank} of {size}, but the communicator says {communicator.Get_rank()} of {communicator.Get_size()}"
        )
    return [bytes_of("allgather()", part) for part in communicator.allgather(value)]


class _Sealed:
    """The values of one meeting in a store, which does not ask who reads and writes it: sealed under a token.

    Rank 0 tells the name of a token that it made itself, so that the others find it.
    """

    def __init__(self, place: str, size: int) -> None:
        self._place, self._size = place, size
        self._secret = b""
        self._token: tokens.Token | None = None

    def open(self) -> bytes:
        """Rank 0's side: what the others need to find the token."""
        self._token = tokens.for_server(None)
        self._secret = tokens.as_key(self._token.secret)
        return self._token.name.encode()

    def learn(self, told: bytes) -> None:
        """The others' side: takes what rank 0 has told."""
        try:
            secret = tokens.for_client(
                None, told[:100].decode("ascii", errors="replace"), "the meeting in the store"
            )
        except tokens.WrongToken as error:
            raise AccessDeniedError(str(error)) from None
        self._secret = tokens.as_key(secret)

    def close(self) -> None:
        if self._token is not None:
            self._token.withdraw()

    def seal(self, rank: int, value: bytes) -> bytes:
        return seal(self._secret, self._context(rank), value)

    def unseal(self, rank: int, sealed: bytes) -> bytes:
        try:
            return unseal(self._secret, self._context(rank), sealed)
        except Tampered:
            raise AccessDeniedError(
                f"what the store has from rank {rank} of {self._size} was not written by a rank that has this one's token;"
                " set the same PYFAB_TOKEN for all ranks"
            ) from None

    def _context(self, rank: int) -> bytes:
        return f"{self._place} {rank} {self._size}".encode()


_meetings: dict[int, int] = {}  # id of a store → meetings that this process had there


def _through_store(store: Any, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    # The n-th meeting of this process in a store is the n-th of the others, too.
    turn = _meetings[id(store)] = _meetings.get(id(store), 0) + 1
    place = f"pyfab/meeting/{turn}"
    sealed = _Sealed(place, size)

    def wait_for(key: str, other: int) -> bytes:
        left = deadline.remaining()
        try:
            store.wait([key], timedelta(seconds=365 * 86400 if left is None else left))
        except Exception as error:  # each kind of store has its own error for a timeout
            raise OperationTimeout(
                f"{ranks_text([other], size)} did not arrive in the store within {deadline}: {error}"
            ) from error
        return bytes_of("store.get()", store.get(key))

    try:
        if rank == 0:
            store.set(f"{place}/token", sealed.open())
        else:
            sealed.learn(wait_for(f"{place}/token", 0))
        store.set(f"{place}/{rank}", sealed.seal(rank, value))
        # When rank 0 takes its token back, all have found it.
        return [sealed.unseal(other, wait_for(f"{place}/{other}", other)) for other in range(size)]
    finally:
        sealed.close()


def _through_torch(rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise InvalidArgumentError(
            'rendezvous="torch" needs the package torch; install it, or use tcp://'
        ) from error
    store = _torch_store(dist, rank, size, deadline)
    # The n-th group of this rank meets the n-th group of the others.
    turn = store.add(f"pyfab/{rank}/turn", 1)
    place = f"pyfab/{turn}"
    sealed = _Sealed(place, size)
    looks = Looks(deadline)

    # Every version of torch has add(); in old versions, wait() cannot be given up safely.
    def wait_for(counter: str, count: int) -> None:
        while store.add(counter, 0) < count:
            if deadline.over:
                arrived = [r for r in range(size) if store.add(f"{place}/{r}/here", 0)]
                raise incomplete(arrived, size, deadline, "torch's store")
            looks.pause()

    store.add(f"{place}/{rank}/here", 1)
    try:
        if rank == 0:
            store.set(f"{place}/token", sealed.open())
            store.add(f"{place}/open", 1)
        else:
            wait_for(f"{place}/open", 1)
            sealed.learn(bytes_of("store.get()", store.get(f"{place}/token")))
        store.set(f"{place}/{rank}", sealed.seal(rank, value))
        store.add(f"{place}/here", 1)
        wait_for(f"{place}/here", size)
        return [sealed.unseal(r, bytes_of("store.get()", store.get(f"{place}/{r}"))) for r in range(size)]
    finally:
        sealed.close()


# The stores by host and port. That of rank 0 serves the others, so it stays until the process ends.
_torch_stores: dict[tuple[str, int], Any] = {}


def _torch_store(dist: Any, rank: int, size: int, deadline: Deadline) -> Any:
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as error:
        raise InvalidArgumentError(
            f'rendezvous="torch" needs the environment variable {error.args[0]}'
        ) from None
    # This is the rule of torch's env://, so that both can share the port: torchrun's agent has the store, or else rank 0.
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if (host, port) not in _torch_stores:
        timeout = timedelta(seconds=deadline.remaining() or 3600)
        _torch_stores[host, port] = dist.TCPStore(
            host, port, size, serves, timeout, wait_for_workers=False, multi_tenant=True
        )
    # The store of torchrun's agent outlives the processes, which count their meetings from the first when they are started again.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"pyfab/attempt/{attempt}", _torch_stores[host, port])
