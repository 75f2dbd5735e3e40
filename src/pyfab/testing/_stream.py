"""The stream to a peer: messages of bytes, which over a network are sealed, because they hold pickles."""

from __future__ import annotations

from multiprocessing.connection import Connection
from types import TracebackType
from typing import Protocol

from pyfab.meeting.sealing import directions


class Stream(Protocol):
    """What a peer and its other side use of `multiprocessing.connection.Connection`."""

    def send_bytes(self, buf: bytes, /) -> None:
        """Sends one message."""

    def recv_bytes(self) -> bytes:
        """The next message; EOFError or ConnectionError if there is none."""

    def poll(self, timeout: float | None = 0.0, /) -> bool:
        """Whether a message has come, or comes in time."""

    def close(self) -> None:
        """Ends the stream."""

    def __enter__(self) -> Stream: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class SealedConnection:
    """A connection whose messages nobody between the two sides can read, change, repeat or make up.

    A message that somebody did that to raises `Tampered`, a ConnectionError, before anything is made of it.
    """

    def __init__(self, connection: Connection, key: bytes, *, client: bool) -> None:
        self._connection = connection
        self._closes, self._opens = directions(key, client=client)

    def send_bytes(self, buf: bytes, /) -> None:
        """Sends one message."""
        self._connection.send_bytes(self._closes.close(b"", buf))

    def recv_bytes(self) -> bytes:
        """The next message."""
        return self._opens.open(b"", self._connection.recv_bytes())

    def poll(self, timeout: float | None = 0.0, /) -> bool:
        """Whether a message has come, or comes in time."""
        return self._connection.poll(timeout)

    def close(self) -> None:
        """Ends the stream."""
        self._connection.close()

    def __enter__(self) -> SealedConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()
