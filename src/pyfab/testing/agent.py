"""``pyfab agent``: runs peers of tests for other hosts.

Every connection begins with both sides proving that they know the token (`pyfab.meeting.handshake`). Then comes one request:

    {"op": "facts"}                          → {"facts": ...}: what this machine is
    {"op": "hold"}                           → {}; an agent that was started for somebody ends with this connection
    {"op": "peer", "version": of pyfab}      → {"ticket": ...}, and once the ticket was used {"pid": ...}; then as often as wanted
        {"op": "suspend" | "resume" | "kill"} → {}, and {"op": "end"} → {"code": the exit status}
    {"op": "join", "ticket": ...}            → {}; from here on the connection belongs to the peer's process

A peer's process ends with the connection that asked for it. It runs what it is sent, as this user; the token guards that.
Nothing that needs trust, above all no pickle, is read before both sides have proven the token; and all that comes after is
sealed under it, on the connection that becomes the peer's, too (`_stream`).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType

import pyfab
from pyfab.core.deadline import Deadline
from pyfab.meeting import tokens
from pyfab.meeting.acceptor import Acceptor
from pyfab.meeting.addresses import join_address, listen
from pyfab.meeting.channel import Channel
from pyfab.meeting.frames import Header, shown
from pyfab.meeting.interruption import told_to_stop
from pyfab.testing._facts import facts
from pyfab.testing._sides import ENDING, SERVICE, start_process, suspend

DEFAULT_PORT = 29480
_PATIENCE = 10.0  # seconds that a client has for each step
_UNUSED = 60.0  # seconds that an agent which was started for somebody waits for it

_BIND_TO_AGENT = "from pyfab.launch.child import bind_to; bind_to({parent}); "


class Agent:
    """Listens at once, and answers inside of its `with` block; every connection has a thread, every peer a process.

    `address` is ``host:port``, port 0 for any. Callers have to prove the token: without one $PYFAB_TOKEN, or else a random one,
    which this user's processes on this host find by themselves. tell: called, from any thread, with a line of text when a peer
    has begun or ended, and when somebody was refused. InvalidArgumentError for an empty token.
    """

    def __init__(
        self,
        address: str = f"127.0.0.1:{DEFAULT_PORT}",
        token: str | None = None,
        *,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        # The connections of peers, each with the key of its stream, by ticket.
        self._tickets: dict[str, queue.SimpleQueue[tuple[socket.socket, bytes]]] = {}
        self._processes: set[subprocess.Popen[bytes]] = set()
        # Set when a connection with {"op": "hold"} has come, and when it has gone.
        self._held, self._left = threading.Event(), threading.Event()
        tokens.stated(token)  # an empty one is refused before anything is opened
        listener = listen(address)
        host, port = listener.getsockname()[:2]
        self.address = join_address(host, port)
        try:
            self._acceptor = Acceptor(
                listener,
                tokens.for_server(token),
                SERVICE,
                self._talk,
                refused=lambda who: tell(f"{who} was refused: it has another token"),
            )
        except BaseException:
            listener.close()
            raise

    @property
    def token(self) -> str:
        """What callers have to prove. It may be set before the `with` block, in which they are answered."""
        return self._acceptor.token.secret

    @token.setter
    def token(self, token: str) -> None:
        self._acceptor.token.withdraw()
        self._acceptor.token = tokens.Token(token)

    @property
    def made_its_token(self) -> bool:
        """Whether nobody else has said what the token is."""
        return bool(self._acceptor.token.name)

    def close(self) -> None:
        """Stops listening and kills the peers."""
        self._acceptor.close()
        for process in list(self._processes):
            process.kill()

    def wait_until_left(self, then: threading.Event | None = None) -> None:
        """Returns, and sets `then`, when whoever held the agent has gone, or if nobody has come within a minute."""
        if self._held.wait(_UNUSED):
            self._left.wait()
        if then is not None:
            then.set()

    def __enter__(self) -> Agent:
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _talk(self, channel: Channel) -> None:
        """Serves one client."""
        request, _ = channel.receive(Deadline(_PATIENCE))
        operation = request.get("op")
        if operation == "join":
            self._join(channel, request)
        elif operation == "peer":
            self._peer(channel, request)
        elif operation == "hold":
            self._hold(channel)
        else:
            known = operation == "facts"
            answer = {"facts": facts()} if known else {"error": f"unknown request {shown(operation)}"}
            channel.send(answer, deadline=Deadline(_PATIENCE))

    def _hold(self, channel: Channel) -> None:
        self._held.set()
        channel.send({}, deadline=Deadline(_PATIENCE))
        try:
            channel.receive(Deadline(None))
        finally:
            self._left.set()

    def _join(self, channel: Channel, request: Header) -> None:
        ticket = request.get("ticket")
        waiting = self._tickets.pop(ticket, None) if isinstance(ticket, str) else None
        if waiting is not None:
            channel.send({}, deadline=Deadline(_PATIENCE))
            waiting.put((channel.detach().dup(), channel.key(b"peer")))

    def _peer(self, channel: Channel, request: Header) -> None:
        who = channel.peer
        if request.get("version") != pyfab.__version__:
            error = f"it runs pyfab {pyfab.__version__}, this side {shown(request.get('version'))}"
            self._tell(
                f"{who} was refused: this side runs pyfab {pyfab.__version__}, that one another version"
            )
            channel.send({"error": f"{error}; install the same on both"}, deadline=Deadline(_PATIENCE))
            return
        ticket = secrets.token_hex(16)
        self._tickets[ticket] = waiting = queue.SimpleQueue[tuple[socket.socket, bytes]]()
        channel.send({"ticket": ticket}, deadline=Deadline(_PATIENCE))
        try:
            connection, key = waiting.get(timeout=_PATIENCE)
        except queue.Empty:
            self._tickets.pop(ticket, None)
            return
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            process = start_process(
                connection.fileno(),
                before=_BIND_TO_AGENT.format(parent=os.getpid()),
                stdout=sys.stderr.fileno(),
                key=key,
            )
        self._processes.add(process)
        try:
            self._tell(f"{who} has come: peer {process.pid} runs for it")
            channel.send({"pid": process.pid}, deadline=Deadline(_PATIENCE))
            while True:
                request, _ = channel.receive(Deadline(None))
                channel.send(_obey(process, request.get("op")), deadline=Deadline(_PATIENCE))
        finally:
            status = process.poll()
            process.kill()
            process.wait()
            self._processes.discard(process)
            self._tell(f"{who} has gone: peer {process.pid} {_end(status)}")


def _end(status: int | None) -> str:
    """How a process has ended, by its return code; None if it had not when its connection did."""
    if status is None:
        return "was killed, as its connection had gone"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _obey(process: subprocess.Popen[bytes], operation: object) -> Header:
    if operation == "suspend":
        suspend(process)
    elif operation == "resume":
        process.send_signal(signal.SIGCONT)
    elif operation == "kill":
        process.kill()
    elif operation == "end":
        try:
            return {"code": process.wait(timeout=ENDING)}
        except subprocess.TimeoutExpired:
            return {"error": f"peer {process.pid} did not end within {ENDING} s"}
    else:
        return {"error": f"unknown request {shown(operation)}"}
    return {}


def serve(address: str, token: str | None, *, attached: bool = False, as_json: bool = False) -> None:
    """Runs an agent until SIGINT or SIGTERM or, if `attached`, until whoever started it has gone. Prints where it listens.

    It prints the token, too, if it has made that itself; and on stderr who has come and gone, unless `attached`.
    """

    def tell(line: str) -> None:
        if not attached:
            with contextlib.suppress(OSError):  # nobody reads it any more
                print(line, file=sys.stderr, flush=True)

    with told_to_stop() as stop, Agent(address, token, tell=tell) as agent:
        made = {"token": agent.token} if agent.made_its_token else {}
        if as_json:
            print(json.dumps({"serving": agent.address, **made}), flush=True)
        else:
            if made:
                print(tokens.announced(agent.token))
            print(f"serving on {agent.address}", flush=True)
        if attached:
            threading.Thread(target=agent.wait_until_left, args=(stop,), daemon=True).start()
        stop.wait()
