"""Small messages over a socket: a JSON header and some bytes, both length-checked.

They are used where no fabric exists yet: to exchange names at the start of a group, and to ask a server for its arrays. Nothing
received is trusted: a frame of another format or size raises ConnectionError, and no pickle is ever read.

A connection begins with a handshake, in which both sides prove that they know the same token, which itself does not travel:

    server to client   {"nonce": ..., "token": the name of its token, if it made it itself}
    client to server   {"nonce": ..., "to": whom it calls, "proof": HMAC-SHA-256 of "client", "to", both nonces, under the token}
    server to client   {"proof": the same of "server"}, {"refused": "token"}, or {"refused": "place", "here": what "to" should be}

What counts as the token is what it gives when it is stretched (`tokens.stretched`). "to" is the service and the address that the
client has called, as in "meeting at 10.0.0.5:29400". The server compares it with its own service and the address at which the
call has arrived. So who listens elsewhere cannot hand the call on to another server that has the same token, and no proof of
either side counts for another service.

All further frames are sealed (`sealing`) under a key made of the token, "to" and both nonces, each with its number in its
direction. So who stands between the two can end the connection, and sees how long frames are; it can neither read, change,
repeat nor make up any.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import ipaddress
import json
import os
import reprlib
import secrets
import socket
import struct
from typing import Any, NamedTuple

from pyfab import versions
from pyfab.core.deadline import Deadline
from pyfab.core.errors import FabricError
from pyfab.meeting import tokens
from pyfab.meeting.sealing import TAG_BYTES, derive, directions
from pyfab.meeting.tokens import NoToken, Token, WrongPlace, WrongToken

__all__ = [
    "BACKLOG",
    "MOST_UNPROVEN_BYTES",
    "Channel",
    "Handshake",
    "Header",
    "NoToken",
    "WrongPlace",
    "WrongToken",
    "join_address",
    "listen",
    "open_to",
    "shown",
    "split_address",
]

_PREFIX = struct.Struct("<4sII")  # magic, bytes of the header, bytes of the body
_MAGIC = b"pyf%d" % versions.MEETING
_MAX_HEADER = 1 << 20
_CHUNK = 1 << 18  # bytes that are taken from a socket at once
_NONCE_HEX = 64

MOST_UNPROVEN_BYTES = 4096
"""The most bytes of the header with a client's proof; nothing longer is taken before the proof."""

BACKLOG = 1024
"""Connections that may wait to be accepted. With fewer, a burst makes the kernel turn others away for seconds."""

Header = dict[str, Any]

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 100


def shown(value: object) -> str:
    """What the other side has sent, short enough for a message, however long or deeply nested it is."""
    return _short.repr(value)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``[v6]:port`` or ``:port``, which means loopback. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is no address: write host:port with a port from 0 to 65535")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r} is no address: write an IPv6 host in brackets, as in [::1]:29400")
    return host.strip("[]") or "127.0.0.1", int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def open_to(host: str, token: Token) -> str:
    """Who may connect to a server on that address, in words."""
    if not token.open:
        return "those who have the token"
    return "this machine" if ipaddress.ip_address(host).is_loopback else "everyone who can reach it"


def listen(address: str) -> socket.socket:
    """A socket that listens on ``host:port``, port 0 for any. ValueError for what is no address, OSError naming the address."""
    host, port = split_address(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:  # its own text has the address as a tuple, or not at all
        resolved = not isinstance(error, socket.gaierror)
        reason = os.strerror(error.errno) if resolved and error.errno else error.strerror or str(error)
        raise OSError(error.errno, f"cannot listen on {address}: {reason}") from None


class Handshake:
    """The server's side of a new connection, which takes the client's proof as its bytes come.

    `here` is what the client has to have called: `called` makes it.
    """

    def __init__(self, token: Token, here: str) -> None:
        self.token, self._here, self._nonce = token.secret, here, secrets.token_hex(_NONCE_HEX // 2)
        self._data = bytearray()
        self._size: int | None = None  # size of the header, once the prefix is here
        self.greeting = _encoded({"nonce": self._nonce, "token": token.name})
        self.refusal = _encoded({"refused": "token"})
        self.proof = b""  # for the client, once it has proven the token
        self.session = b""  # the key of all further frames, then

    @property
    def lacks(self) -> int:
        """How many bytes the part that is coming still lacks; not one more may be read."""
        return (_PREFIX.size if self._size is None else self._size) - len(self._data)

    def take(self, data: bytes) -> bool:
        """Takes bytes of the proof; True once it is complete. ConnectionError if it is no proof.

        WrongToken if it is wrong, WrongPlace if the client meant somebody else: then `refusal` is for the client.
        """
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the client ended the connection")
        self._data += data
        if self._size is None and self.lacks == 0:
            self._size, _ = _sizes(self._data, MOST_UNPROVEN_BYTES, 0)
            self._data.clear()
        if self._size is None or self.lacks > 0:
            return False
        header = _decoded(self._data)
        secret = _Secret(self.token, self._here, self._nonce, _nonce(header))
        if header.get("to") != self._here:
            self.refusal = _encoded({"refused": "place", "here": self._here})
            raise WrongPlace(f"the call was for {shown(header.get('to'))}, and this is {self._here}")
        if not secret.proves(header, "client"):
            raise WrongToken("the client's token differs")
        self.proof = _encoded({"proof": secret.proof("server")})
        self.session = secret.session()
        return True


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
        connection = socket.create_connection((host, port), deadline.remaining(at_most=5.0))
        try:
            plain, to = cls(connection), called(service, connection.getpeername())
            header, _ = plain.receive(deadline)
            server, mine = _nonce(header), secrets.token_hex(_NONCE_HEX // 2)
            name = header.get("token")
            # The name comes with the greeting, which is sent when the file is there: so it is that of this very server.
            known = tokens.for_client(token, name if isinstance(name, str) else "", where)
            secret = _Secret(known, to, server, mine)
            plain.send({"nonce": mine, "to": to, "proof": secret.proof("client")}, deadline=deadline)
            header, _ = plain.receive(deadline)
            if header.get("refused") == "place":
                raise WrongPlace(
                    f"this call was for {to}, and who answers there says that it is {shown(header.get('here'))}."
                    " Where addresses are translated on the way, call the server by its own address"
                )
            if not secret.proves(header, "server"):
                raise WrongToken(f"{where} has another token; set the same PYFAB_TOKEN on both sides")
        except BaseException:
            connection.close()
            raise
        return cls(connection, secret.session(), client=True, token=known)

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
        frame = _encoded(header, body)
        if self._directions:
            prefix = frame[: _PREFIX.size]
            frame = prefix + self._directions[0].close(prefix, frame[_PREFIX.size :])
        self._arm(deadline)
        self._socket.sendall(frame)

    def receive(self, deadline: Deadline, max_body: int = 0) -> tuple[Header, bytes]:
        """The next frame; ConnectionError if the stream ends or is not what it should be."""
        prefix = bytes(self._exactly(_PREFIX.size, deadline))
        head_size, body_size = _sizes(prefix, _MAX_HEADER, max_body)
        if self._directions:
            sealed = self._exactly(head_size + body_size + TAG_BYTES, deadline)
            frame = self._directions[1].open(prefix, sealed)
        else:
            frame = bytes(self._exactly(head_size + body_size, deadline))
        return _decoded(frame[:head_size]), frame[head_size:]

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


def _encoded(header: Header, body: bytes = b"") -> bytes:
    head = json.dumps(header).encode()
    if len(head) > _MAX_HEADER:
        raise ValueError(f"a frame header of {len(head)} bytes; at most {_MAX_HEADER}")
    return _PREFIX.pack(_MAGIC, len(head), len(body)) + head + body


def _sizes(prefix: bytes | bytearray, max_header: int, max_body: int) -> tuple[int, int]:
    magic, head_size, body_size = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        version = magic[3:].decode("ascii", errors="replace")
        if magic[:3] == _MAGIC[:3] and version.isdigit():
            raise ConnectionError(
                f"what answers there speaks version {version} of pyfab's protocol of meetings, this side version"
                f" {versions.MEETING}; install the same on both sides"
            )
        raise ConnectionError("what answers there does not speak pyfab's protocol")
    if head_size > max_header or body_size > max_body:
        raise ConnectionError(
            f"a frame of {head_size} + {body_size} bytes; at most {max_header} + {max_body}"
        )
    return head_size, body_size


def _decoded(head: bytes | bytearray) -> Header:
    try:
        header = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"a frame whose header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise ConnectionError("a frame whose header is no JSON object")
    return header


def _nonce(header: Header) -> str:
    nonce = header.get("nonce")
    if not isinstance(nonce, str) or len(nonce) != _NONCE_HEX or not nonce.isascii():
        raise ConnectionError("what answers there does not speak pyfab's protocol")
    return nonce


def called(service: str, address: tuple[Any, ...]) -> str:
    """Whom a client has called: a service, and the socket address of the connection, which is the same on both hosts."""
    host, port = address[:2]
    return f"{service} at {join_address(host.partition('%')[0], port)}"  # each host names its interfaces by itself


class _Secret(NamedTuple):
    """What both sides of a connection prove: a token, for one call."""

    token: str
    to: str
    server_nonce: str
    client_nonce: str

    def proof(self, side: str) -> str:
        return self._derived(b"proof " + side.encode()).hex()

    def proves(self, header: Header, side: str) -> bool:
        proof = header.get("proof")
        # They are compared as bytes: for text that is not ASCII, which the other side may send, compare_digest() raises.
        return isinstance(proof, str) and hmac.compare_digest(
            proof.encode(errors="backslashreplace"), self.proof(side).encode()
        )

    def session(self) -> bytes:
        """The key of all further frames."""
        return self._derived(b"session")

    def _derived(self, purpose: bytes) -> bytes:
        nonces = self.server_nonce.encode(), self.client_nonce.encode()
        return derive(tokens.stretched(self.token), purpose, self.to.encode(), *nonces)
