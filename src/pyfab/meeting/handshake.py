"""How both sides of a new connection prove that they know the same token, which itself does not travel.

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

import errno
import hmac
import secrets
from typing import Any, NamedTuple

from pyfab.meeting import tokens
from pyfab.meeting.addresses import join_address
from pyfab.meeting.frames import PREFIX, Header, decoded, encoded, shown, sizes
from pyfab.meeting.sealing import derive
from pyfab.meeting.tokens import Token, WrongPlace, WrongToken

MOST_UNPROVEN_BYTES = 4096
"""The most bytes of the header with a client's proof; nothing longer is taken before the proof."""

_NONCE_HEX = 64


def called(service: str, address: tuple[Any, ...]) -> str:
    """Whom a client has called: a service, and the socket address of the connection, which is the same on both hosts."""
    host, port = address[:2]
    return f"{service} at {join_address(host.partition('%')[0], port)}"  # each host names its interfaces by itself


class ServerHandshake:
    """The server's side of a new connection, which takes the client's proof as its bytes come.

    `here` is what the client has to have called: `called` makes it.
    """

    def __init__(self, token: Token, here: str) -> None:
        self.token, self._here, self._nonce = token.secret, here, secrets.token_hex(_NONCE_HEX // 2)
        self._data = bytearray()
        self._size: int | None = None  # size of the header, once the prefix is here
        self.greeting = encoded({"nonce": self._nonce, "token": token.name})
        self.refusal = encoded({"refused": "token"})
        self.proof = b""  # for the client, once it has proven the token
        self.session = b""  # the key of all further frames, then

    @property
    def lacks(self) -> int:
        """How many bytes the part that is coming still lacks; not one more may be read."""
        return (PREFIX.size if self._size is None else self._size) - len(self._data)

    def take(self, data: bytes) -> bool:
        """Takes bytes of the proof; True once it is complete. ConnectionError if it is no proof.

        WrongToken if it is wrong, WrongPlace if the client meant somebody else: then `refusal` is for the client.
        """
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the client ended the connection")
        self._data += data
        if self._size is None and self.lacks == 0:
            self._size, _ = sizes(self._data, MOST_UNPROVEN_BYTES, 0)
            self._data.clear()
        if self._size is None or self.lacks > 0:
            return False
        header = decoded(self._data)
        secret = _Secret(self.token, self._here, self._nonce, _nonce(header))
        if header.get("to") != self._here:
            self.refusal = encoded({"refused": "place", "here": self._here})
            raise WrongPlace(f"the call was for {shown(header.get('to'))}, and this is {self._here}")
        if not secret.proves(header, "client"):
            raise WrongToken("the client's token differs")
        self.proof = encoded({"proof": secret.proof("server")})
        self.session = secret.session()
        return True


class ClientHandshake:
    """The client's side: `answer` is for the server, once its greeting is here.

    `to` is whom the client calls: `called` makes it. Raises ConnectionError if the greeting is none.
    """

    def __init__(self, greeting: Header, to: str, token: str) -> None:
        mine = secrets.token_hex(_NONCE_HEX // 2)
        self._to, self._secret = to, _Secret(token, to, _nonce(greeting), mine)
        self.answer: Header = {"nonce": mine, "to": to, "proof": self._secret.proof("client")}

    def conclude(self, header: Header, where: str) -> bytes:
        """The key of all further frames, from the server's proof.

        WrongPlace if the call was for somebody else than answers there, WrongToken if `where` has not proven the token.
        """
        if header.get("refused") == "place":
            raise WrongPlace(
                f"this call was for {self._to}, and who answers there says that it is {shown(header.get('here'))}."
                " Where addresses are translated on the way, call the server by its own address"
            )
        if not self._secret.proves(header, "server"):
            raise WrongToken(f"{where} has another token; set the same PYFAB_TOKEN on both sides")
        return self._secret.session()


def _nonce(header: Header) -> str:
    nonce = header.get("nonce")
    if not isinstance(nonce, str) or len(nonce) != _NONCE_HEX or not nonce.isascii():
        raise ConnectionError("what answers there does not speak pyfab's protocol")
    return nonce


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
