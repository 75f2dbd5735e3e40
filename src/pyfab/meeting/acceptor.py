"""Accepts connections, and lets in whoever proves the token. Others hold a bounded share of this process's resources.

One thread watches the listener and all connections that have not proven the token. Each that has proven it gets its own thread.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import threading
from collections.abc import Callable

from pyfab.core.deadline import Deadline
from pyfab.logs.security import Event, tell
from pyfab.meeting.addresses import join_address
from pyfab.meeting.channel import Channel
from pyfab.meeting.handshake import ServerHandshake, called
from pyfab.meeting.sealing import Tampered
from pyfab.meeting.tokens import Token, WrongPlace, WrongToken

MOST_UNPROVEN = 256
"""The most connections that have not proven the token; beyond that, the oldest is closed for a new one."""

MOST_UNPROVEN_OF_ONE = 128
"""The most connections from one address that have not proven the token."""

MOST_PROVEN = 256
"""The most connections that have proven the token; further ones are closed."""

RESERVE = 64
"""Descriptors, at the upper end of what the process may have, that connections without proof do not take."""

PROOF_DEADLINE = 10.0
"""Seconds that a connection has for its proof."""

_SHARE = 4  # where descriptors are few, each of the three bounds above is at most this fraction of them
_ACCEPTS_PER_TURN = 16  # few, so that earlier connections are heard before many new ones push them out
_RETRY = 0.25  # seconds until accept() is tried again when descriptors or memory were short, unless something ends before

_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_CLOSED = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK}


class _Unproven:
    """A connection that has not proven the token."""

    def __init__(
        self, connection: socket.socket, address: tuple[str, int], handshake: ServerHandshake
    ) -> None:
        self.socket, self.host = connection, address[0]
        self.address = join_address(*address)
        self.handshake = handshake
        self.deadline = Deadline(PROOF_DEADLINE)


class Acceptor:
    """Calls `talk` in a thread of its own for each connection that proves the token, until it is closed. Owns listener and token.

    `service` says what it is for: callers prove the token for that alone. The connection ends when `talk` returns or raises.
    `expected` is the number of peers that belong here, for which the bounds leave room in addition to all others. `refused` is
    called with the address of a peer that has another token, or that meant another server.
    `token` may be replaced before the first connection that has to prove the new one.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: Token,
        service: str,
        talk: Callable[[Channel], None],
        *,
        expected: int = 0,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._listener, self._talk, self._refused = listener, talk, refused
        self.token, self._service = token, service
        share = most_descriptors() // _SHARE
        self._most = min(MOST_UNPROVEN, share) + expected
        self._most_of_one = min(MOST_UNPROVEN_OF_ONE, share // 2) + expected
        self._most_proven = min(MOST_PROVEN, share) + expected
        self._unproven: dict[socket.socket, _Unproven] = {}  # the oldest first
        self._proven = 0
        self._lock = threading.Lock()  # guards the number of the proven
        self._closing = False
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()

    def start(self) -> None:
        """Begins to accept."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="pyfab-acceptor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accepts nobody new, and closes connections that have not proven the token. Those that have are left to `talk`."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread is not None:
            self._thread.join()
        self._selector.close()
        self._listener.close()
        self.token.withdraw()

    def _run(self) -> None:
        listening = True
        while not self._closing:
            ready = self._selector.select(self._patience(listening))
            called = False
            for key, _ in ready:
                if key.fileobj is self._listener:
                    called = True
                elif (caller := self._unproven.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                    self._hear(caller)
            self._expire()
            if not listening:
                with contextlib.suppress(OSError):  # without memory for it, it is tried again a moment later
                    self._selector.register(self._listener, selectors.EVENT_READ)
                    listening = True
            elif called and not self._accept():
                self._selector.unregister(self._listener)  # it stays readable, so this loop would spin
                listening = False
        for caller in list(self._unproven.values()):
            self._drop(caller)

    def _patience(self, listening: bool) -> float | None:
        oldest = next(iter(self._unproven.values()), None)
        at_most = None if listening else _RETRY
        return at_most if oldest is None else oldest.deadline.remaining(at_most)

    def _expire(self) -> None:
        for caller in list(self._unproven.values()):
            if not caller.deadline.over:
                return  # the younger ones have time left, too
            self._drop(caller)
            tell(Event.DEADLINE, caller.address, f"no proof of the token within {PROOF_DEADLINE:g} s")

    def _accept(self) -> bool:
        """Takes some of the connections that wait. False if none can be taken before something else has ended."""
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if self._closing or error.errno in _CLOSED:
                    self._closing = True
                    return True
                if error.errno not in _SCARCE:
                    continue  # only this connection has failed, as with ECONNABORTED
                tell(Event.LIMIT, "all addresses", f"cannot accept: {error.strerror}")
                if not self._drop_oldest("descriptors or memory are needed"):
                    return False
                continue
            self._greet(connection, address[:2])
        return True

    def _greet(self, connection: socket.socket, address: tuple[str, int]) -> None:
        mine = [caller for caller in self._unproven.values() if caller.host == address[0]]
        if len(mine) >= self._most_of_one:
            self._drop(mine[0])
            tell(
                Event.LIMIT, mine[0].address, f"{len(mine)} connections from there have not proven the token"
            )
        elif len(self._unproven) >= self._most:
            self._drop_oldest(f"{self._most} connections have not proven the token")
        try:
            connection = self._out_of_reserve(connection)
            handshake = ServerHandshake(self.token, called(self._service, connection.getsockname()))
            caller = _Unproven(connection, address, handshake)
            connection.setblocking(False)
            connection.sendall(caller.handshake.greeting)  # a new connection has room for it
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:
            connection.close()
            return
        self._unproven[connection] = caller

    def _out_of_reserve(self, connection: socket.socket) -> socket.socket:
        """The connection, with a descriptor below the reserve. Older ones are closed for that while there are any.

        The kernel gives the lowest free number, so the numbers of the reserve stay free for the program.
        """
        limit = most_descriptors()
        while connection.fileno() >= limit - min(RESERVE, limit // _SHARE):
            if not self._drop_oldest("descriptors are left to the program"):
                break
            with connection:
                connection = connection.dup()
        return connection

    def _drop_oldest(self, why: str) -> bool:
        oldest = next(iter(self._unproven.values()), None)
        if oldest is None:
            return False
        self._drop(oldest)
        tell(Event.LIMIT, oldest.address, why)
        return True

    def _drop(self, caller: _Unproven) -> None:
        self._forget(caller)
        caller.socket.close()

    def _forget(self, caller: _Unproven) -> None:
        del self._unproven[caller.socket]
        self._selector.unregister(caller.socket)

    def _hear(self, caller: _Unproven) -> None:
        """Takes what has come of the proof, and no byte more."""
        handshake = caller.handshake
        try:
            if handshake.take(caller.socket.recv(handshake.lacks)):
                self._let_in(caller)
        except BlockingIOError:
            pass
        except WrongToken as error:
            with contextlib.suppress(OSError):
                caller.socket.send(handshake.refusal)
            self._drop(caller)
            meant = isinstance(error, WrongPlace)
            tell(
                Event.REFUSED,
                caller.address,
                str(error) if meant else "what it proved is not this side's token",
            )
            with contextlib.suppress(OSError):  # the callback may print to an output that is closed
                self._refused(caller.address)
        except OSError as error:
            self._drop(caller)
            if error.errno is None:  # the handshake's own error; one with a number tells of a lost connection
                tell(Event.PROTOCOL, caller.address, str(error))

    def _let_in(self, caller: _Unproven) -> None:
        with self._lock:
            full = self._proven >= self._most_proven
            self._proven += not full
        if full:
            self._drop(caller)
            tell(
                Event.LIMIT, caller.address, f"{self._most_proven} connections have proven the token already"
            )
            return
        self._forget(caller)
        handshake = caller.handshake
        channel = Channel(caller.socket, handshake.session, token=handshake.token)
        try:
            caller.socket.sendall(handshake.proof)
            caller.socket.setblocking(True)
            caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            threading.Thread(target=self._serve, args=(channel, caller.address), daemon=True).start()
        except (OSError, RuntimeError) as error:  # RuntimeError: no further thread can be started
            self._leave(channel)
            if isinstance(error, RuntimeError):
                tell(Event.LIMIT, caller.address, str(error))

    def _serve(self, channel: Channel, address: str) -> None:
        """Serves one peer. Whatever it does wrong ends only its own connection."""
        try:
            self._talk(channel)
        except Tampered as error:
            tell(Event.PROTOCOL, address, str(error))
        except OSError:  # the peer has gone, is silent, or does not keep to the protocol
            pass
        except Exception as error:
            tell(Event.PROTOCOL, address, f"{type(error).__name__}: {error}")
        finally:
            self._leave(channel)

    def _leave(self, channel: Channel) -> None:
        channel.close()
        with self._lock:
            self._proven -= 1


def most_descriptors() -> int:
    """How many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30
