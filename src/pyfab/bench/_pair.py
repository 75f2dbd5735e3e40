"""The two sides of a measurement: a target that serves its memory, and the session that an initiator has with it.

They talk over a `Channel` before and between measurements. The target's Python takes part only where messages are measured.

    {"op": "open", "links", "capacity", "address", "run", "core"}   → {"address", "remotes": {name: region}, "facts"}
    {"op": "answer", "operation", "size", "turns"}                  → {"ready": true}, and when done {"done": true}

Addresses and regions are in base64. A request that cannot be fulfilled is answered by {"error": "..."}. A target serves the
sessions of one run at a time, because two measurements would disturb each other.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from pyfab.bench._facts import machine_facts
from pyfab.bench._operations import MESSAGES, Operations, answer
from pyfab.bench._timing import Statement, choose_cores, pinned, private_memory, run_statement
from pyfab.core.deadline import Deadline
from pyfab.core.domain import Domain
from pyfab.core.enums import Access
from pyfab.core.errors import InvalidArgumentError
from pyfab.core.region import RemoteRegion
from pyfab.launch.child import LEAVE_CTRL_C
from pyfab.meeting import tokens
from pyfab.meeting.acceptor import Acceptor
from pyfab.meeting.addresses import join_address, listen, open_to
from pyfab.meeting.channel import Channel
from pyfab.meeting.frames import Header

MEMORY = ("mapped", "other")
"""What the target's memory can be: made by the library (`Domain.alloc`), or an ordinary array."""

LARGEST = 256 << 20
"""The most bytes that one operation may have."""

SERVICE = "pyfab bench"
"""What initiators prove the token for."""

_ANSWER = 30.0  # seconds that the other side has for an answer
_IDLE = 600.0  # seconds after which a target gives up an initiator that asks nothing


class Opening(NamedTuple):
    """What a session asks of its target. `run` tells a listener whose session it is; `core` is -1 where the target chooses."""

    links: str
    capacity: int  # bytes of the largest operation
    run: str
    core: int


class Session:
    """The initiator's side over one link spec, made by `local` or `remote`. One thread uses it, on one core.

    `link` says which of the links leads to the target, `facts` what machine the target is on. host: the address under which a
    target on another machine finds this one. What both sides of the channel have proven is what their domains ask for, too.
    """

    def __init__(self, channel: Channel, opening: Opening, host: str = "") -> None:
        self._channel = channel
        self._stamp = 0x1000  # every request stamps its buffer with a number that no earlier one used
        with contextlib.ExitStack() as undo:
            undo.callback(channel.close)
            undo.push(self._hang_up)
            domain = undo.enter_context(_open(opening.links, host, channel.token))
            self._endpoint = undo.enter_context(domain.endpoint())
            told = self._ask({"op": "open", "address": _text(self._endpoint.address), **opening._asdict()})
            try:
                address = _bytes(told["address"])
                remotes = {name: RemoteRegion.from_bytes(_bytes(told["remotes"][name])) for name in MEMORY}
                self.facts: dict[str, Any] = dict(told["facts"])
            except (KeyError, TypeError, ValueError):
                raise ConnectionError("what answers there is no target of this version of pyfab") from None
            peer = self._endpoint.av.insert(address)
            self.operations = Operations(self._endpoint, peer, remotes, opening.capacity)
            self.link, *_ = self._endpoint.report(peer)
            self._undo = undo.pop_all()

    def run(self, operation: str, memory: str, size: int, batch: int, samples: int) -> list[float]:
        """Nanoseconds per operation of each sample. FabricError FI_EIO if the bytes did not arrive."""
        self._stamp += 1
        if operation not in MESSAGES:
            if time.monotonic() - self._asked >= _IDLE / 2:  # the target hears nothing of what is one-sided
                self._ask({"op": "keep"})
            statement = self.operations.one_sided(operation, memory, size)
            return run_statement(statement, batch, samples, self._stamp)
        statement = self.operations.message(operation, size)
        return self._with_answers(statement, operation, size, batch, samples)

    def operations_of(self, operation: str, size: int) -> int:
        """How many operations one execution of the statement is."""
        if operation in MESSAGES:
            return self.operations.message(operation, size).operations
        return self.operations.one_sided(operation, MEMORY[0], size).operations

    def _with_answers(
        self, statement: Statement, operation: str, size: int, batch: int, samples: int
    ) -> list[float]:
        self._ask({"op": "answer", "operation": operation, "size": size, "turns": batch * samples})
        taken = run_statement(statement, batch, samples, self._stamp)
        self._hear()
        return taken

    def close(self) -> None:
        """Ends the session, and with it the target's side, so that a listener is free for the next run."""
        self._undo.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.__exit__(kind, error, trace)

    def _hang_up(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # after an error, the target may wait for a message that never comes
            self._channel.hang_up(Deadline(_ANSWER))

    def _ask(self, request: Header) -> Header:
        self._asked = time.monotonic()
        self._channel.send(request, deadline=Deadline(_ANSWER))
        return self._hear()

    def _hear(self) -> Header:
        told, _ = self._channel.receive(Deadline(_ANSWER))
        if "error" in told:
            raise ConnectionError(f"the other side refuses: {told['error']}")
        return told


@contextlib.contextmanager
def local(links: str, capacity: int, core: int) -> Iterator[Session]:
    """A session with a target in a process of its own on that core of this machine."""
    mine, theirs = socket.socketpair()
    program = LEAVE_CTRL_C + (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        "from pyfab.bench._pair import serve_descriptor; serve_descriptor(int(sys.argv[2]))"
    )
    with mine, theirs:
        arguments = [json.dumps(sys.path), str(theirs.fileno())]
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        try:
            with Session(Channel(mine), Opening(links, capacity, "", core)) as session:
                yield session
        except BaseException:
            process.kill()  # the target may be waiting for messages that never come
            raise
        finally:
            mine.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def remote(links: str, capacity: int, address: str, token: str | None, run: str) -> Session:
    """A session with a `Listener` at ``host:port``. ConnectionError if it cannot be reached or the token is wrong."""
    start = f"pyfab bench --listen {address}"
    channel = Channel.call(address, SERVICE, token, Deadline(_ANSWER), start)
    return Session(channel, Opening(links, capacity, run, -1), channel.local_host)


def serve_descriptor(descriptor: int) -> None:
    """The body of a local target's process: one session over an inherited socket."""
    with socket.socket(fileno=descriptor) as connection, contextlib.suppress(ConnectionError):
        _Target(Channel(connection), "", None).serve()


class Listener:
    """Targets for whoever connects and knows the token, until it is closed; the work is done by threads.

    token: None for $PYFAB_TOKEN, or else a random one, which this user's processes on this host find by themselves.
    address: ``host:port``, port 0 for any. links: used in place of those that initiators ask for, where devices have other names.
    tell: called with a line of text when a client comes or goes. OSError for an address that cannot be listened on.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        token: str | None = None,
        links: str | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        tokens.stated(token)  # an empty one is refused before anything is opened
        listener = listen(address)
        self.host, port = listener.getsockname()[:2]
        self.address = join_address(self.host, port)
        self._links, self._tell = links, tell
        try:
            self.token = tokens.for_server(token)
        except BaseException:
            listener.close()
            raise
        self._lock = threading.Lock()  # guards the next two
        self._run, self._sessions = "", 0  # the run that is served, and how many of its sessions are open
        self._acceptor = Acceptor(
            listener, self.token, SERVICE, self._talk, refused=lambda who: tell(f"{who} has another token")
        )
        self._acceptor.start()

    @property
    def open_to(self) -> str:
        """Who may connect, in words."""
        return open_to(self.host, self.token)

    def close(self) -> None:
        """Takes nobody new; sessions that are open end with their initiators."""
        self._acceptor.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def admit(self, run: str) -> bool:
        """Whether a session of that run may begin; it then counts as open until `leave`."""
        with self._lock:
            if self._sessions and run != self._run:
                return False
            self._run = run
            self._sessions += 1
            return True

    def leave(self) -> None:
        """Counts an admitted session as ended."""
        with self._lock:
            self._sessions -= 1

    def _talk(self, channel: Channel) -> None:
        """Serves one client."""
        who = channel.peer
        self._tell(f"{who} has come")
        try:
            why = _Target(channel, self.host, self, self._links).serve()
            self._tell(f"{who} was refused: {why}")
        except ConnectionError:
            self._tell(f"{who} has gone")


class _Target:
    """The target of one session. `listener` counts the session; a local target has none."""

    def __init__(
        self, channel: Channel, host: str, listener: Listener | None, links: str | None = None
    ) -> None:
        self._channel, self._host = channel, host
        self._listener, self._links = listener, links

    def serve(self) -> str:
        """Serves until the initiator ends the connection, which raises ConnectionError.

        Returns only if the initiator was refused, with the reason that it was told.
        """
        request, _ = self._channel.receive(Deadline(_IDLE))
        admitted, why = False, ""
        try:
            links, capacity = str(request["links"]), int(request["capacity"])
            address, core = _bytes(request["address"]), int(request["core"])
            if not 0 < capacity <= LARGEST:
                raise InvalidArgumentError(f"{capacity} bytes: at most {LARGEST}")
            admitted = self._listener is None or self._listener.admit(str(request["run"]))
            if not admitted:
                raise InvalidArgumentError("it is measuring with somebody else; try again later")
            core = core if core >= 0 else choose_cores()[1]
            with pinned(core), _open(self._links or links, self._host, self._channel.token) as domain:
                self._serve(domain, address, capacity, machine_facts(core))
        except ConnectionError:
            raise
        except Exception as error:  # whatever the request was, the initiator is told
            why = f"{type(error).__name__}: {error}"
            self._reply({"error": why})
        finally:
            if admitted and self._listener is not None:
                self._listener.leave()
        return why

    def _serve(self, domain: Domain, address: bytes, capacity: int, facts: Header) -> None:
        arrays = {
            "mapped": domain.alloc(capacity // 8, np.int64),
            "other": private_memory(capacity).view(np.int64),
        }
        access = Access.REMOTE_READ | Access.REMOTE_WRITE
        regions = {name: domain.register(array, access) for name, array in arrays.items()}
        with domain.endpoint() as endpoint:
            peer = endpoint.av.insert(address)
            self._reply(
                {
                    "address": _text(endpoint.address),
                    "remotes": {name: _text(region.remote.to_bytes()) for name, region in regions.items()},
                    "facts": facts,
                }
            )
            while True:
                request, _ = self._channel.receive(Deadline(_IDLE))
                if request.get("op") == "keep":
                    self._reply({})
                    continue
                operation, size = request["operation"], int(request["size"])
                if operation not in MESSAGES or not 8 <= size <= capacity:
                    raise InvalidArgumentError(f"it cannot answer {operation!r} of {size} bytes")
                run = answer(endpoint, peer, operation, size, int(request["turns"]))
                self._reply({"ready": True})
                run()
                self._reply({"done": True})

    def _reply(self, header: Header) -> None:
        self._channel.send(header, deadline=Deadline(_ANSWER))


def new_run() -> str:
    """A name for a run, so that a listener knows its sessions from those of others."""
    return secrets.token_hex(8)


def _open(links: str, host: str, token: str) -> Domain:
    """A domain that peers elsewhere reach at `host`, the address where they find this side's channel."""
    settings: dict[str, Any] = {"tcp_listen": host} if host and "tcp" in re.split(r"[+|]", links) else {}
    return Domain(links, auth_key=tokens.data_key(token), **settings)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)
