"""A meeting over tcp: rank 0 listens until the end of the meeting; the others connect, retrying until their timeout, and stay.

A rank sends {"rank", "size", "timeout"} with its value. It gets {"arrived": [ranks], "sizes": [bytes]} with all values one
after the other, or with none if its timeout came first. If it is refused, it gets {"refused": why}. Each further exchange of the
same meeting is the same again over the same connection, so nobody can come between two of them. Only who has the token takes
part, and nobody else can read or change what is said (`frames`).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import (
    AccessDeniedError,
    InvalidArgumentError,
    OperationTimeout,
    PeerLostError,
    words_of,
)
from pyfab.meeting import tokens
from pyfab.meeting.acceptor import Acceptor
from pyfab.meeting.addresses import BACKLOG, join_address
from pyfab.meeting.channel import Channel
from pyfab.meeting.frames import shown
from pyfab.meeting.ranks import Exchange, Member, incomplete
from pyfab.meeting.tokens import NoToken, WrongToken

_MAX_VALUE = 1 << 20  # bytes per rank
PATIENCE = (
    5.0  # seconds for which a token that cannot be found is taken for that of a meeting that has just ended
)


class Place(NamedTuple):
    """Where ranks meet. The name tells meetings with one token from each other; it may be empty."""

    host: str
    port: int
    name: str = ""

    @property
    def service(self) -> str:
        """What the ranks prove the token for."""
        return f"meeting {self.name}" if self.name else "meeting"

    def __str__(self) -> str:
        return f"tcp://{join_address(self.host, self.port)}{self.name and '/'}{self.name}"


class _Meeting:
    """What rank 0 knows: the ranks that came, and the values of each exchange. Every method may be called from any thread."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.over = False
        self._exchanges: list[dict[int, bytes]] = []  # the values by rank
        self._lines: dict[int, Channel] = {}  # to the ranks that are here
        self._talking = 0
        self._changed = threading.Condition()

    def enter(self, rank: Any, size: Any, channel: Channel) -> str | None:
        """Lets a rank in and returns None, or returns why not. ``again``: the meeting is over, its port will soon be free."""
        with self._changed:
            if self.over or len(self._lines) == self.size - 1:
                return "again"
            if size != self.size:
                return f"rank {shown(rank)} counts {shown(size)} ranks, rank 0 counts {self.size}"
            if type(rank) is not int or not 0 <= rank < self.size:
                return f"rank {shown(rank)} is none of 0 to {self.size - 1}"
            if rank == 0 or rank in self._lines:
                return f"two processes call themselves rank {rank}"
            self._lines[rank] = channel
            return None

    def bring(self, turn: int, rank: int, value: bytes) -> None:
        """Takes the value of a rank for one of the exchanges, which have numbers from 0 on."""
        with self._changed:
            self._of(turn)[rank] = value
            self._changed.notify_all()

    def wait(self, turn: int, timeout: float | None) -> dict[int, bytes]:
        """The values of an exchange, once all are there, or those that came."""
        with self._changed:
            values = self._of(turn)
            self._changed.wait_for(lambda: len(values) == self.size or self.over, timeout)
            return dict(values)

    def _of(self, turn: int) -> dict[int, bytes]:
        while len(self._exchanges) <= turn:
            self._exchanges.append({})
        return self._exchanges[turn]

    @contextlib.contextmanager
    def talk(self) -> Iterator[None]:
        """While a rank waits for its answer."""
        with self._changed:
            self._talking += 1
        try:
            yield
        finally:
            with self._changed:
                self._talking -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Ends the waiting of all, waits a moment until they have been answered, and ends their connections."""
        with self._changed:
            self.over = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._talking == 0, 2.0)
            for channel in self._lines.values():
                channel.end()


@contextlib.contextmanager
def serve(place: Place, who: Member, deadline: Deadline) -> Iterator[Exchange]:
    """Rank 0's side: gathers the values and gives all of them to everybody."""
    meeting = _Meeting(who.size)
    try:
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        listener = socket.create_server((place.host, place.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InvalidArgumentError(
            f"rank 0 cannot listen on {place}: {error.strerror or error}. Choose a free port and an address of the machine"
            " that runs rank 0, with rendezvous= or PYFAB_RENDEZVOUS"
        ) from error
    try:
        token = tokens.for_server(None)
    except BaseException:
        listener.close()
        raise
    turns = iter(range(1 << 30))

    def exchange(value: bytes) -> list[bytes]:
        turn = next(turns)
        meeting.bring(turn, 0, value)
        values = meeting.wait(turn, deadline.remaining())
        if len(values) < who.size:
            hint = f". Only processes of this user on this host can come; for others, {tokens.WHAT_TO_SET}"
            raise incomplete(values, who.size, deadline, str(place), hint if token.name else "")
        return [values[rank] for rank in range(who.size)]

    acceptor = Acceptor(
        listener, token, place.service, lambda channel: _answer(channel, meeting), expected=who.size
    )
    acceptor.start()
    try:
        yield exchange
    finally:
        meeting.end()
        acceptor.close()


def _answer(channel: Channel, meeting: _Meeting) -> None:
    """Answers one rank as often as it comes, on rank 0's side of the connection."""
    header, value = channel.receive(Deadline(10), _MAX_VALUE)
    rank = header.get("rank")
    refused = meeting.enter(rank, header.get("size"), channel)
    if refused:
        channel.send({"refused": refused}, deadline=Deadline(10))
        return
    assert isinstance(rank, int)
    turn = 0
    while True:
        with meeting.talk():
            meeting.bring(turn, rank, value)
            patience = header.get("timeout")
            bounded = isinstance(patience, (int, float)) and 0 <= patience < 1e9
            came = meeting.wait(turn, patience if bounded else None)
            if meeting.over and 0 not in came:
                return  # rank 0 has ended before it came to this exchange
            values = [came[r] for r in range(meeting.size)] if len(came) == meeting.size else []
            answer = {"arrived": sorted(came), "sizes": [len(value) for value in values]}
            channel.send(answer, b"".join(values), deadline=Deadline(10))
        header, value = channel.receive(Deadline(None), _MAX_VALUE)
        turn += 1


@contextlib.contextmanager
def call(place: Place, who: Member, deadline: Deadline) -> Iterator[Exchange]:
    """The others' side: brings values and waits for all of them."""
    lines: list[Channel] = []  # the connection, once rank 0 has let this rank in

    def exchange(value: bytes) -> list[bytes]:
        if not lines:
            channel, answer, values = _enter(place, who, value, deadline)
            lines.append(channel)
        else:
            try:
                answer, values = _ask(lines[0], who, value, deadline)
            except TimeoutError:
                raise OperationTimeout(
                    f"rank 0 of {who.size} did not answer at {place} within {deadline}"
                ) from None
            except ConnectionError as error:
                raise PeerLostError(
                    f"rank 0 of {who.size} ended the meeting at {place} before all ranks had met: {words_of(error)}"
                ) from error
        return _unpack(answer, values, who.size, deadline, str(place))

    try:
        yield exchange
    finally:
        for channel in lines:
            channel.close()


def _ask(channel: Channel, who: Member, value: bytes, deadline: Deadline) -> tuple[dict[str, Any], bytes]:
    header = {"rank": who.rank, "size": who.size, "timeout": deadline.remaining()}
    channel.send(header, value, deadline=deadline)
    return channel.receive(_after(deadline), max_body=_MAX_VALUE * who.size)


def _enter(
    place: Place, who: Member, value: bytes, deadline: Deadline
) -> tuple[Channel, dict[str, Any], bytes]:
    """Comes to the meeting with a first value: the connection, and rank 0's answer."""
    problem, unknown = "no time to try", 0.0
    looks = Looks(deadline)
    while not deadline.over:
        try:
            channel = Channel.connect(place.host, place.port, place.service, None, deadline)
            with contextlib.ExitStack() as undo:
                undo.callback(channel.close)
                answer, values = _ask(channel, who, value, deadline)
                refused = answer.get("refused")
                if refused and refused != "again":
                    raise InvalidArgumentError(f"{place}: {refused}")
                if not refused:
                    undo.pop_all()
                    return channel, answer, values
            problem = "its former meeting goes on"
        except NoToken as error:
            # The listener may be that of a meeting which has just ended here, and whose token is gone.
            unknown = unknown or time.monotonic() + PATIENCE
            if time.monotonic() > unknown:
                raise AccessDeniedError(str(error)) from None
            problem = str(error)
        except WrongToken as error:
            raise AccessDeniedError(str(error)) from None
        except (AccessDeniedError, InvalidArgumentError, OperationTimeout):
            raise
        except OSError as error:
            problem = error.strerror or str(error)
        looks.pause()
    raise OperationTimeout(f"rank 0 of {who.size} did not answer at {place} within {deadline}: {problem}")


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
