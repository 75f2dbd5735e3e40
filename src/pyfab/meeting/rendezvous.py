"""How the members of a group find each other: an exchange of a few bytes per rank, or several, before any fabric exists.

``tcp://host:port``  Rank 0 listens there until the end of the meeting; the others connect and retry until their timeout. A name
                     behind it, ``tcp://host:port/name``, keeps apart meetings with the same token.
``file:///folder``   Files in a folder that all ranks see, made if it is missing and removed by the last rank. Who
                     waits is woken, and looks from time to time where other hosts may share the file system.
``torch``            The TCPStore of torch.distributed at MASTER_ADDR:MASTER_PORT, or that of its default process group.
A store              Anything with ``set``, ``get`` and ``wait``, as the stores of torch.distributed have them.
A communicator       Anything with mpi4py's ``allgather``.

Who is no rank learns and changes nothing. Over tcp and in a store, all prove a token and what they say is sealed under it; in a
folder, only files of this user count, which nobody else can read. A communicator is as private as whoever made it has made it.
A meeting has its place to itself from the first exchange to the last, so nobody gets in between two of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyfab.core.buffers import bytes_of
from pyfab.core.deadline import Deadline
from pyfab.core.errors import InvalidArgumentError, words_of
from pyfab.meeting import rendezvous_tcp
from pyfab.meeting.addresses import split_address
from pyfab.meeting.ranks import Exchange, Member
from pyfab.meeting.rendezvous_folder import through_folder
from pyfab.meeting.rendezvous_store import through_store, through_torch


def exchange(rendezvous: Any, rank: int, size: int, value: bytes, timeout: float | None) -> list[bytes]:
    """A `meeting` for one exchange: gives `value` to all ranks and returns everyone's, by rank."""
    with meeting(rendezvous, rank, size, timeout) as exchange_once:
        return exchange_once(value)


@contextlib.contextmanager
def meeting(rendezvous: Any, rank: int, size: int, timeout: float | None) -> Iterator[Exchange]:
    """The ranks meet for as many exchanges as they like, all of them within the timeout.

    Entering and the exchanges raise OperationTimeout naming the ranks that did not come, InvalidArgumentError for a malformed
    rendezvous or for two ranks with one number, AccessDeniedError if PYFAB_TOKEN differs between the ranks, or is needed and not
    set, or others can change the folder, and PeerLostError if rank 0 has left before all had met.
    """
    with _opened(rendezvous, Member(rank, size), Deadline(timeout)) as exchange_next:
        yield exchange_next


def _opened(rendezvous: Any, who: Member, deadline: Deadline) -> contextlib.AbstractContextManager[Exchange]:
    if hasattr(rendezvous, "allgather"):
        return contextlib.nullcontext(lambda value: _through_communicator(rendezvous, who, value))
    if all(hasattr(rendezvous, name) for name in ("set", "get", "wait")):
        return through_store(rendezvous, who, deadline)
    if not isinstance(rendezvous, str):
        raise InvalidArgumentError(
            f"rendezvous={rendezvous!r}: give a string, a store with set, get and wait, or an mpi4py communicator"
        )
    if rendezvous == "torch":
        return through_torch(who, deadline)
    url = urlsplit(rendezvous)
    if url.scheme == "tcp":
        try:
            place = rendezvous_tcp.Place(*split_address(url.netloc), url.path.strip("/"))
        except ValueError as error:
            raise InvalidArgumentError(f"rendezvous={rendezvous!r}: {words_of(error)}") from None
        if who.size == 1:
            return contextlib.nullcontext(lambda value: [value])
        return (rendezvous_tcp.call if who.rank else rendezvous_tcp.serve)(place, who, deadline)
    if url.scheme == "file" and not url.netloc and url.path.startswith("/"):
        return through_folder(Path(unquote(url.path)), who, deadline)
    raise InvalidArgumentError(
        f"rendezvous={rendezvous!r}: write tcp://host:port, file:///folder or torch, or give an mpi4py communicator"
    )


def _through_communicator(communicator: Any, who: Member, value: bytes) -> list[bytes]:
    if (communicator.Get_rank(), communicator.Get_size()) != (who.rank, who.size):
        raise InvalidArgumentError(
            f"rank {who.rank} of {who.size}, but the communicator says {communicator.Get_rank()} of {communicator.Get_size()}"
        )
    return [bytes_of("allgather()", part) for part in communicator.allgather(value)]
