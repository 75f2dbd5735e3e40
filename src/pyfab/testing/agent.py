"""``pyfab agent``: runs peers of tests for other hosts.

Every connection begins with both sides proving that they know the token (`pyfab.meeting.frames`). Then comes one request:

    {"op": "facts"}                          → {"facts": ...}: what this machine is
    {"op": "hold"}                           → {}; an agent that was started for somebody ends with this connection
    {"op": "peer", "version": of pyfab}      → {"ticket": ...}, and once the ticket was used {"pid": ...}; then as often as wanted
        {"op": "suspend" | "resume" | "kill"} → {}, and {"op": "end"} → {"code": the exit status}
    {"op": "join", "ticket": ...}            → {}; from here on the connection belongs to the peer's process

A peer's process ends with the connection that asked for it. It runs what it is sent, as this user; the token guards that. Nothing
that needs trust, above all no pickle, is read before the token was proven. The stream itself is not encrypted.
"""

from __future__ import annotations

import ipaddress
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
from types import TracebackType

import pyfab
from pyfab.core.deadline import Deadline
from pyfab.meeting.acceptor import Acceptor
from pyfab.meeting.frames import Channel, Header, join_address, listen, shown
from pyfab.testing._facts import facts
from pyfab.testing._sides import ENDING, start_process, suspend

DEFAULT_PORT = 29480
_PATIENCE = 10.0  # seconds that a client has for each step
_UNUSED = 60.0  # seconds that an agent which was started for somebody waits for it

_BIND_TO_AGENT = "from pyfab.launch.child import bind_to; bind_to({parent}); "


class Agent:
    """Listens at once, and answers inside of its `with` block; every connection has a thread, every peer a process.

    `address` is ``host:port``, port 0 for any. ValueError for an address that others can reach without a token.
    """

    def __init__(self, address: str = f"127.0.0.1:{DEFAULT_PORT}", token: str = "") -> None:
        self._tickets: dict[str, queue.SimpleQueue[socket.socket]] = {}
        self._processes: set[subprocess.Popen[bytes]] = set()
        # Set when a connection with {"op": "hold"} has come, and when it has gone.
        self._held, self._left = threading.Event(), threading.Event()
        listener = listen(address)
        host, port = listener.getsockname()[:2]
        self.address = join_address(host, port)
        if not token and not ipaddress.ip_address(host).is_loopback:
            listener.close()
            raise ValueError(
                f"{address}: others can reach this address and would have programs run here;"
                " give --token or PYFAB_TOKEN, or listen on 127.0.0.1"
            )
        self._acceptor = Acceptor(listener, token, self._talk)

    @property
    def token(self) -> str:
        """What callers have to prove. It may be set before the `with` block, in which they are answered."""
        return self._acceptor.token

    @token.setter
    def token(self, token: str) -> None:
        self._acceptor.token = token

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
            waiting.put(channel.detach().dup())

    def _peer(self, channel: Channel, request: Header) -> None:
        if request.get("version") != pyfab.__version__:
            error = f"it runs pyfab {pyfab.__version__}, this side {shown(request.get('version'))}"
            channel.send({"error": f"{error}; install the same on both"}, deadline=Deadline(_PATIENCE))
            return
        ticket = secrets.token_hex(16)
        self._tickets[ticket] = waiting = queue.SimpleQueue[socket.socket]()
        channel.send({"ticket": ticket}, deadline=Deadline(_PATIENCE))
        try:
            connection = waiting.get(timeout=_PATIENCE)
        except queue.Empty:
            self._tickets.pop(ticket, None)
            return
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            joined = Channel(connection)
            joined.send({}, deadline=Deadline(_PATIENCE))
            joined.detach()
            process = start_process(
                connection.fileno(),
                before=_BIND_TO_AGENT.format(parent=os.getpid()),
                stdout=sys.stderr.fileno(),
            )
        self._processes.add(process)
        try:
            channel.send({"pid": process.pid}, deadline=Deadline(_PATIENCE))
            while True:
                request, _ = channel.receive(Deadline(None))
                channel.send(_obey(process, request.get("op")), deadline=Deadline(_PATIENCE))
        finally:
            process.kill()
            process.wait()
            self._processes.discard(process)


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


def serve(address: str, token: str, *, attached: bool = False, as_json: bool = False) -> None:
    """Runs an agent until SIGINT or SIGTERM or, if `attached`, until whoever started it has gone. Prints where it listens."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with Agent(address, token) as agent:
        told = json.dumps({"serving": agent.address}) if as_json else f"serving on {agent.address}"
        print(told, flush=True)
        if attached:
            threading.Thread(target=agent.wait_until_left, args=(stop,), daemon=True).start()
        stop.wait()
