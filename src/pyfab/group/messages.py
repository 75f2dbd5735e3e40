"""Objects that one rank sends another, as tagged messages of the group's endpoint.

A message is a head, and a body if the object is too long for the head.

    head    who sends it, the number of the message (each rank counts those to another one), the bytes of the object,
            a proof, and the object or its SHA-256
    tag     bit 63: of a group; bit 62: of a body; 30 bits that stand for the group, because groups that come out of each other
            share an endpoint; 32 bits: the caller's tag, or the number of a body's message

The proof is an HMAC under a key made of the group's key, of who sends what to whom; a number is taken once. So nobody between two
hosts can change a message, or bring it a second time: what is read may be a pickle, which is code.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.enums import ADDR_UNSPEC
from pyfab.core.errors import (
    AccessDeniedError,
    FabricError,
    InvalidArgumentError,
    OperationTimeout,
)
from pyfab.group import objects
from pyfab.group.communicator import Communicator
from pyfab.group.control import GONE
from pyfab.meeting.sealing import TAG_BYTES

if TYPE_CHECKING:
    from pyfab.core.endpoint import Operation

_HEAD = struct.Struct("<IQQ")  # rank, number, bytes
_LARGEST = 4096  # bytes of a head with its object
_INLINE = _LARGEST - _HEAD.size - TAG_BYTES
_TAGS = 1 << 32
_OF_GROUPS, _OF_BODIES = 1 << 63, 1 << 62
_LOOK = 0.25  # seconds between two looks at whether the other rank still lives


class _Taken:
    """The numbers that one rank's messages had. They come in another order than that of sending where tags differ."""

    def __init__(self) -> None:
        self._below, self._others = 0, set[int]()

    def take(self, number: int) -> bool:
        """Whether the number is new."""
        if number < self._below or number in self._others:
            return False
        self._others.add(number)
        while self._below in self._others:
            self._others.remove(self._below)
            self._below += 1
        return True


@dataclass
class _Late:
    """A long object whose head has come. It is kept until its body is here as well, in whichever call that is."""

    rank: int
    tag: int
    number: int
    digest: bytes
    body: NDArray[np.uint8]
    waiting: Operation | None = None  # the receive of the body


class Messages(Communicator):
    """Objects from one rank to another."""

    def __init__(self, rank: int, size: int, timeout: float | None) -> None:
        super().__init__(rank, size, timeout)
        self._sent: dict[int, int] = {}  # how many messages went to each rank
        self._taken: dict[int, _Taken] = {}  # by rank
        self._late: list[_Late] = []  # in the order of their heads

    def send(self, obj: Any, to: int, tag: int = 0, timeout: float | None = -1) -> None:
        """Sends an object to rank `to`, which calls `recv`. Objects with the same `tag` arrive in the order of sending.

        Use it for small and rare messages; put arrays into windows, or send them as messages of an endpoint. `allgather` tells
        how objects travel. When the call returns, the object will arrive even if this process ends, as long as rank `to` lives.
        An object of more than 4 KB must have been received by then. So if two ranks send such objects to each other before they
        receive, both wait in vain. tag: 0 to 2**32 - 1.

        Call it from one thread at a time, like collective methods. PeerLostError if the rank has ended. OperationTimeout after
        `timeout` seconds, by default the group's; the object may still arrive.
        """
        self._check()
        self._one_of("to", to)
        head_tag = self._tag(tag)
        deadline = Deadline(self._timeout(timeout))
        data = objects.encode(obj)
        number = self._sent.get(to, 0)
        shown = data if len(data) <= _INLINE else hashlib.sha256(data).digest()
        fixed = _HEAD.pack(self.rank, number, len(data))
        head = fixed + self._keys.proof(*self._proven(self.rank, to, tag, fixed, shown)) + shown
        parts = [(head, head_tag)]
        if shown is not data:
            parts.append((data, self._body_tag(number)))
        self._sent[to] = number + 1
        try:
            started = [
                self.endpoint.tsend(np.frombuffer(part, np.uint8), self._handles[to], part_tag)
                for part, part_tag in parts
            ]
        except GONE as error:
            raise self._control.losses(to, error) from error
        for operation in started:
            self._control.settle(to, operation, deadline)

    def recv(self, source: int | None = None, tag: int = 0, timeout: float | None = -1) -> Any:
        """Receives the next object with this `tag` from rank `source`, or with None from any rank.

        Call it from one thread at a time, like collective methods. PeerLostError if `source` has ended and no object of it waits.
        OperationTimeout after `timeout` seconds, by default the group's; nothing is lost, a later call receives what comes then.
        AccessDeniedError if a message was changed on its way, or did not come from a member.
        """
        self._check()
        if source is not None:
            self._one_of("source", source)
        deadline = Deadline(self._timeout(timeout))
        for late in self._late:
            if late.tag == tag and source in (None, late.rank):
                return objects.decode(self._body(late, deadline))
        buffer = np.empty(_LARGEST, np.uint8)
        peer = ADDR_UNSPEC if source is None else self._handles[source]
        waiting = self.endpoint.trecv(buffer, self._tag(tag), peer=peer)
        head = buffer[: self._await(waiting, source, deadline)].tobytes()
        if len(head) < _HEAD.size + TAG_BYTES:
            raise AccessDeniedError(f"a message of {len(head)} bytes did not come from a member of the group")
        fixed, rest = head[: _HEAD.size], head[_HEAD.size :]
        rank, number, length = _HEAD.unpack(fixed)
        proof, shown = rest[:TAG_BYTES], rest[TAG_BYTES:]
        if rank >= self.size or source not in (None, rank):
            raise self._forged(rank)
        if not self._keys.proves(proof, *self._proven(rank, self.rank, tag, fixed, shown)):
            raise self._forged(rank)
        if not self._taken.setdefault(rank, _Taken()).take(number):
            raise self._forged(rank)
        if length <= _INLINE:
            return objects.decode(shown)
        self._late.append(_Late(rank, tag, number, shown, np.empty(length, np.uint8)))
        return objects.decode(self._body(self._late[-1], deadline))

    def _body(self, late: _Late, deadline: Deadline) -> bytes:
        """Waits for the body of an object. Whoever waited in vain, or was interrupted, may call it again."""
        if late.waiting is None or late.waiting.cancelled():
            tag, peer = self._body_tag(late.number), self._handles[late.rank]
            late.waiting = self.endpoint.trecv(late.body, tag, peer=peer)
        try:
            nbytes = self._await(late.waiting, late.rank, deadline)
        except FabricError as error:
            if not isinstance(error, OperationTimeout):  # it will never come
                self._late.remove(late)
            raise
        self._late.remove(late)
        data = late.body[:nbytes].tobytes()
        if not hmac.compare_digest(hashlib.sha256(data).digest(), late.digest):
            raise self._forged(late.rank)
        return data

    def _await(self, waiting: Operation, source: int | None, deadline: Deadline) -> int:
        """Waits for a message; returns its length. A receive from a rank that has ended waits on, so this looks at the rank."""
        while True:
            try:
                return waiting.result(deadline.remaining(at_most=_LOOK)).nbytes
            except OperationTimeout:
                pass
            except BaseException:
                waiting.cancel()
                raise
            why: FabricError | None = None if source is None else self._control.loss_of(source)
            if why is None and deadline.over:
                who = "any rank" if source is None else f"rank {source} of {self.size}"
                why = OperationTimeout(f"nothing came from {who} within {deadline}")
            if why is not None and waiting.cancel():
                raise why
            if why is not None:  # it has met its message in the meantime
                return waiting.result(self.timeout).nbytes

    def _one_of(self, name: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise InvalidArgumentError(f"{name}={rank}: ranks are 0 to {self.size - 1}")

    def _tag(self, tag: int) -> int:
        if not 0 <= tag < _TAGS:
            raise InvalidArgumentError(f"tag={tag}: it is 0 to 2**32 - 1")
        return _OF_GROUPS | self._group_bits() | tag

    def _body_tag(self, number: int) -> int:
        return _OF_GROUPS | _OF_BODIES | self._group_bits() | number % _TAGS

    def _group_bits(self) -> int:
        return int.from_bytes(self._control.identity[:4], "little") >> 2 << 32

    def _proven(self, source: int, to: int, tag: int, fixed: bytes, shown: bytes) -> tuple[bytes, ...]:
        return b"sent", self._control.identity, b"%d %d %d" % (source, to, tag), fixed, shown

    def _forged(self, rank: int) -> AccessDeniedError:
        return AccessDeniedError(
            f"a message in the name of rank {rank} was changed on its way, came twice or is not of that rank: it does not fit the"
            " group's key"
        )
