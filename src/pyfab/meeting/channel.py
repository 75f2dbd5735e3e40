"""A connection between two processes that have proven a token to each other, and its frames."""

from __future__ import annotations

import contextlib
import socket

from pyfab.core.deadline import Deadline
from pyfab.core.errors import FabricError
from pyfab.meeting import tokens
from pyfab.meeting.addresses import join_address, split_address
from pyfab.meeting.frames import MAX_HEADER, PREFIX, Header, decoded, encoded, sizes
from pyfab.meeting.handshake import ClientHandshake, called
from pyfab.meeting.sealing import TAG_BYTES, derive, directions

_CHUNK = 1 << 18  # bytes that are taken from a socket at once
_SHORTEST = 0.001  # seconds; with 0 a socket does not wait at all, and tells nothing


class Channel:
    """One connected socket that carries frames; `connect` makes the client's, after both sides have proven the token.

    `session` is the key that the handshake gave; without one, as between two processes over a socket that nobody else has, frames
    are not sealed. `token` is what was proven.
    """

    def __init__(
        self, connection: socket.socket, session: bytes = b"", *, client: bool = False, token: str = ""
    ) -> None:
        self._socket, self._session, self.token = connection, session, token
        self._directions = directions(session, client=client) if session else None

    @classmethod
    def call(cls, address: str, service: str, token: str | None, deadline: Deadline, start: str) -> Channel:
        """`connect` for a command: if nobody answers at ``host:port``, ConnectionError names the command to `start` there."""
        try:
            return cls.connect(*split_address(address), service, token, deadline)
        except FabricError:  # of the token
            raise
        except OSError as error:
            if isinstance(error, ConnectionError) and error.errno is None:  # somebody answered
                raise
            raise ConnectionError(
                f"nobody answers at {address} ({error.strerror or error}); start there: {start}"
            ) from error

    @classmethod
    def connect(cls, host: str, port: int, service: str, token: str | None, deadline: Deadline) -> Channel:
        """Raises WrongToken if the server has another token, WrongPlace if it is another one, OSError if it cannot be reached.

        service: what the server's `Acceptor` is called. token: None for $PYFAB_TOKEN, or else what the server left for this
        user's processes on its host.
        """
        tokens.stated(token)  # what cannot be used is told before anybody is asked
        where = join_address(host, port)
        left = max(deadline.remaining(at_most=5.0) or 0, _SHORTEST)
        connection = socket.create_connection((host, port), left)
        try:
            plain, to = cls(connection), called(service, connection.getpeername())
            greeting, _ = plain.receive(deadline)
            name = greeting.get("token")
            # The name comes with the greeting, which is sent when the file is there: so it is that of this very server.
            known = tokens.for_client(token, name if isinstance(name, str) else "", where)
            handshake = ClientHandshake(greeting, to, known)
            plain.send(handshake.answer, deadline=deadline)
            session = handshake.conclude(plain.receive(deadline)[0], where)
        except BaseException:
            connection.close()
            raise
        return cls(connection, session, client=True, token=known)

    def key(self, purpose: bytes) -> bytes:
        """A key that only the two sides of this connection have."""
        return derive(self._session, b"key", purpose)

    @property
    def local_host(self) -> str:
        """This side's address, as the other one sees it."""
        return str(self._socket.getsockname()[0])

    @property
    def peer(self) -> str:
        """The other side's ``host:port``."""
        return join_address(*self._socket.getpeername()[:2])

    def send(self, header: Header, body: bytes = b"", *, deadline: Deadline) -> None:
        """Sends one frame."""
        frame = encoded(header, body)
        if self._directions:
            prefix = frame[: PREFIX.size]
            frame = prefix + self._directions[0].close(prefix, frame[PREFIX.size :])
        self._arm(deadline)
        self._socket.sendall(frame)

    def receive(self, deadline: Deadline, max_body: int = 0) -> tuple[Header, bytes]:
        """The next frame; ConnectionError if the stream ends or is not what it should be."""
        prefix = bytes(self._exactly(PREFIX.size, deadline))
        head_size, body_size = sizes(prefix, MAX_HEADER, max_body)
        if self._directions:
            sealed = self._exactly(head_size + body_size + TAG_BYTES, deadline)
            frame = self._directions[1].open(prefix, sealed)
        else:
            frame = bytes(self._exactly(head_size + body_size, deadline))
        return decoded(frame[:head_size]), frame[head_size:]

    def detach(self) -> socket.socket:
        """The socket itself, blocking, for another protocol from here on."""
        self._socket.settimeout(None)
        return self._socket

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def end(self) -> None:
        """Ends the connection, so that a `receive` of either side raises ConnectionError. Any thread may call this."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def hang_up(self, deadline: Deadline) -> None:
        """Ends the connection once the other side has ended it, too, or at the deadline. What still comes is discarded."""
        with self._socket, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._arm(deadline)
            while self._socket.recv(1 << 16):
                self._arm(deadline)

    def _exactly(self, size: int, deadline: Deadline) -> bytearray:
        data = bytearray()  # it grows with what has come, because the size is only a claim of the other side
        while len(data) < size:
            self._arm(deadline)
            part = self._socket.recv(min(size - len(data), _CHUNK))
            if not part:
                raise ConnectionError("the other side ended the connection")
            data += part
        return data

    def _arm(self, deadline: Deadline) -> None:
        left = deadline.remaining()
        if left is not None and left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
