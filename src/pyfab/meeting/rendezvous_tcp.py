"""A meeting over tcp: rank 0 listens until every rank has its answer; the others connect and retry until their timeout.

A rank sends {"rank", "size", "timeout"} with its value. It gets {"arrived": [ranks], "sizes": [bytes]} with all values one
after the other, or with none if its timeout came first. If it is refused, it gets {"refused": why}. Only who has the token
takes part, and nobody else can read or change what is said (`frames`).
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import AccessDeniedError, InvalidArgumentError, OperationTimeout
from pyfab.meeting import tokens
from pyfab.meeting.acceptor import Acceptor
from pyfab.meeting.frames import BACKLOG, Channel, WrongToken, join_address, shown
from pyfab.meeting.ranks import incomplete

_MAX_VALUE = 1 << 20  # bytes per rank
PATIENCE = 5.0  # seconds for which a token that does not fit is taken for one that is about to be replaced


class _Meeting:
    """What rank 0 knows: the ranks that came, and their values. Every method may be called from any thread."""

    def __init__(self, size: int, where: str) -> None:
        self.size, self.where = size, where
        self.values: dict[int, bytes] = {}
        self.over = False
        self._talking = 0
        self._changed = threading.Condition()

    def arrive(self, rank: Any, size: Any, value: bytes) -> str | None:
        """Lets a rank in and returns None, or returns why not. ``again``: the meeting is over, its port will soon be free."""
        with self._changed:
            if self.over or self.complete:
                return "again"
            if size != self.size:
                return f"rank {shown(rank)} counts {shown(size)} ranks, rank 0 counts {self.size}"
            if type(rank) is not int or not 0 <= rank < self.size:
                return f"rank {shown(rank)} is none of 0 to {self.size - 1}"
            if rank in self.values:
                return f"two processes call themselves rank {rank}"
            self.values[rank] = value
            self._changed.notify_all()
            return None

    @property
    def complete(self) -> bool:
        return len(self.values) == self.size

    def wait(self, timeout: float | None) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self.complete or self.over, timeout)
            return self.complete

    def talk(self, change: int) -> None:
        with self._changed:
            self._talking += change
            self._changed.notify_all()

    def end(self) -> None:
        """Ends the waiting of all, and waits a moment until they have been answered."""
        with self._changed:
            self.over = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._talking == 0, 2.0)


def serve(host: str, port: int, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    """Rank 0's side: gathers the values and gives all of them to everybody."""
    where = f"tcp://{join_address(host, port)}"
    meeting = _Meeting(size, where)
    meeting.arrive(rank, size, value)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InvalidArgumentError(
            f"rank 0 cannot listen on {where}: {error.strerror or error}. Choose a free port and an address of the machine"
            " that runs rank 0, with rendezvous= or PYFAB_RENDEZVOUS"
        ) from error
    try:
        token = tokens.for_server(None)
    except BaseException:
        listener.close()
        raise
    acceptor = Acceptor(listener, token, lambda channel: _answer(channel, meeting), expected=size)
    acceptor.start()
    try:
        meeting.wait(deadline.remaining())
    finally:
        meeting.end()
        acceptor.close()
    if not meeting.complete:
        hint = f". Only processes of this user on this host can come; for others, {tokens.WHAT_TO_SET}"
        raise incomplete(meeting.values, size, deadline, where, hint if token.name else "")
    return [meeting.values[r] for r in range(size)]


def _answer(channel: Channel, meeting: _Meeting) -> None:
    """Answers one rank, on rank 0's side of the connection."""
    header, value = channel.receive(Deadline(10), _MAX_VALUE)
    meeting.talk(+1)
    try:
        refused = meeting.arrive(header.get("rank"), header.get("size"), value)
        if refused:
            channel.send({"refused": refused}, deadline=Deadline(10))
            return
        patience = header.get("timeout")
        bounded = isinstance(patience, (int, float)) and 0 <= patience < 1e9
        complete = meeting.wait(patience if bounded else None)
        values = [meeting.values[r] for r in range(meeting.size)] if complete else []
        answer = {"arrived": sorted(meeting.values), "sizes": [len(value) for value in values]}
        channel.send(answer, b"".join(values), deadline=Deadline(10))
    finally:
        meeting.talk(-1)


def call(host: str, port: int, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    """The others' side: brings a value and waits for all of them."""
    where = f"tcp://{join_address(host, port)}"
    problem, wrong = "no time to try", 0.0
    looks = Looks(deadline)
    while not deadline.over:
        try:
            channel = Channel.connect(host, port, None, deadline)
            try:
                channel.send(
                    {"rank": rank, "size": size, "timeout": deadline.remaining()}, value, deadline=deadline
                )
                answer, values = channel.receive(_after(deadline), max_body=_MAX_VALUE * size)
            finally:
                channel.close()
            refused = answer.get("refused")
            if refused and refused != "again":
                raise InvalidArgumentError(f"{where}: {refused}")
            if not refused:
                return _unpack(answer, values, size, deadline, where)
            problem = "its former meeting goes on"
        except WrongToken as error:
            # Between two meetings of a group the listener is another one, with another token. Its file may be gone
            # since its name was read, and somebody else may have the port for a moment.
            wrong = wrong or time.monotonic() + PATIENCE
            if time.monotonic() > wrong or tokens.stated(None):
                raise AccessDeniedError(str(error)) from None
            problem = str(error)
        except (AccessDeniedError, InvalidArgumentError, OperationTimeout):
            raise
        except OSError as error:
            problem = error.strerror or str(error)
        looks.pause()
    raise OperationTimeout(f"rank 0 of {size} did not answer at {where} within {deadline}: {problem}")


def _after(deadline: Deadline) -> Deadline:
    """A slightly later deadline, so that rank 0's list of who arrived comes before this side gives up."""
    left = deadline.remaining()
    return Deadline(None if left is None else left + 2)


def _unpack(answer: dict[str, Any], body: bytes, size: int, deadline: Deadline, where: str) -> list[bytes]:
    sizes, arrived = answer.get("sizes"), answer.get("arrived")
    if sizes == [] and isinstance(arrived, list):
        raise incomplete([r for r in arrived if type(r) is int], size, deadline, where)
    counts = sizes if isinstance(sizes, list) and all(type(n) is int and n >= 0 for n in sizes) else []
    if len(counts) != size or sum(counts) != len(body):
        raise ConnectionError("rank 0's answer does not hold one value for each rank")
    values, start = [], 0
    for length in counts:
        values.append(body[start : start + length])
        start += length
    return values
