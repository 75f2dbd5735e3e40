"""How the ranks of one `spawn` meet: through the sockets to their parent, so that nothing is in the file system.

Each rank has a stream to its parent. It sends its value for the others. The parent answers when all values are there, or when the
ranks have waited for too long; that may be repeated. At its end the rank sends its outcome:

    rank to parent   "V", length (8 bytes), value, as often as they meet;  then "O", the pickled outcome, the end of the stream
    parent to rank   one byte with the descriptor of a memory file, the same for all: the pickled values, or an Absence

Waiting costs nothing, and what goes to all ranks is written once.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyfab.core.deadline import Deadline
from pyfab.meeting.ranks import incomplete

_HEAD = struct.Struct("<cQ")
_VALUE, _OUTCOME = b"V", b"O"


class Absence(NamedTuple):
    """Who had come when the others stopped waiting."""

    arrived: list[int]


def memory_file(content: bytes) -> int:
    """A descriptor of a file in memory that holds `content`, for processes that inherit or are sent it."""
    file = os.memfd_create("pyfab-spawn")
    with open(file, "wb", closefd=False) as stream:
        stream.write(content)
    return file


def read_file(file: int) -> bytes:
    """What a memory file holds. The file's position stays, because other processes share it with the descriptor."""
    return os.pread(file, os.fstat(file).st_size, 0)


class Meeting:
    """A rank's side of the meeting. It has the methods of an mpi4py communicator, so groups take it as their rendezvous."""

    def __init__(self, line: socket.socket, rank: int, size: int, timeout: float) -> None:
        self._line, self._rank, self._size, self._timeout = line, rank, size, timeout

    def Get_rank(self) -> int:
        """This rank, as mpi4py's communicators tell it."""
        return self._rank

    def Get_size(self) -> int:
        """The number of ranks, as mpi4py's communicators tell it."""
        return self._size

    def allgather(self, value: bytes) -> list[bytes]:
        """Everybody's value, by rank."""
        self._line.sendall(_HEAD.pack(_VALUE, len(value)) + value)
        _, files, _, _ = socket.recv_fds(self._line, 1, 1)
        if not files:
            raise ConnectionError("spawn ended before its ranks had met")
        try:
            told = pickle.loads(read_file(files[0]))
        finally:
            os.close(files[0])
        if isinstance(told, Absence):
            raise incomplete(told.arrived, self._size, Deadline(self._timeout), "the meeting of spawn")
        assert isinstance(told, list)
        return told


def tell_outcome(line: socket.socket, outcome: bytes) -> None:
    """Sends a rank's pickled outcome and ends its stream."""
    with line:
        line.sendall(_OUTCOME + outcome)


class Spoken:
    """What one rank has said so far, as its parent hears it."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.value: bytes | None = None  # for the others, until they have been told

    def answered(self) -> None:
        """Forgets the value, which the others have been told."""
        self.value = None
        self.add(b"")

    def add(self, data: bytes) -> None:
        """Takes the next bytes that the parent has read from the line."""
        self._bytes += data
        if self.value is None and self._bytes[:1] == _VALUE and len(self._bytes) >= _HEAD.size:
            end = _HEAD.size + _HEAD.unpack_from(self._bytes)[1]
            if len(self._bytes) >= end:
                self.value = bytes(self._bytes[_HEAD.size : end])
                del self._bytes[:end]

    @property
    def outcome(self) -> bytes | None:
        """The pickled outcome, to be asked for at the end of the stream; None if the stream ended without one."""
        return bytes(self._bytes[1:]) if self._bytes[:1] == _OUTCOME else None


def answer(lines: Mapping[int, socket.socket], told: Any) -> None:
    """Tells all these ranks the same: the values by rank, or an Absence."""
    file = memory_file(pickle.dumps(told))
    try:
        for line in lines.values():
            try:
                socket.send_fds(line, [b"x"], [file])
            except ConnectionError:  # the rank has ended, as its stream tells
                continue
    finally:
        os.close(file)
