"""The other side of a test at an agent on another host. `pyfab.testing.agent` describes the protocol."""

from __future__ import annotations

import contextlib
import pickle
import socket
import sys
import sysconfig
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pyfab
from pyfab.core.deadline import Deadline
from pyfab.core.errors import AccessDeniedError, FabricError
from pyfab.meeting import tokens
from pyfab.meeting.addresses import join_address
from pyfab.meeting.channel import Channel
from pyfab.meeting.frames import Header
from pyfab.meeting.tokens import NoToken, WrongPlace, WrongToken
from pyfab.testing._sides import ENDING, SERVICE
from pyfab.testing._stream import SealedConnection, Stream

_PATIENCE = 20.0  # seconds that an agent has for each step


class RemoteAgent:
    """Where a ``pyfab agent`` listens, and the token that it wants: `Peer(..., where=RemoteAgent(host, port, token))`.

    Without a token it takes $PYFAB_TOKEN, or what an agent of this user on this host has left for that.
    Nothing is connected until it is used. AccessDeniedError for a wrong token, ConnectionError if no agent answers there.
    """

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        self.host, self.port, self.token = host, port, token

    def __str__(self) -> str:
        return join_address(self.host, self.port)

    def facts(self) -> dict[str, Any]:
        """The facts of the agent's machine."""
        channel = self.connect()
        try:
            found: dict[str, Any] = self.ask(channel, {"op": "facts"})["facts"]
            return found
        finally:
            channel.close()

    def data_key(self) -> bytes | None:
        """The authorization key of domains that tests use on both sides; None if there is no token."""
        if self.token is None:
            self.connect().close()
        return tokens.data_key(self.token or "")

    def hold(self) -> Channel:
        """Keeps an agent that was started for this process alive until the channel is closed."""
        channel = self.connect()
        self.ask(channel, {"op": "hold"})
        return channel

    def connect(self) -> Channel:
        """A connection on which both sides have proven the token."""
        try:
            channel = Channel.connect(self.host, self.port, SERVICE, self.token, Deadline(_PATIENCE))
            self.token = channel.token
            return channel
        except NoToken as error:
            raise AccessDeniedError(str(error)) from None
        except FabricError:  # of the token
            raise
        except WrongPlace as error:
            raise AccessDeniedError(str(error)) from None
        except WrongToken:
            raise AccessDeniedError(
                f"the agent at {self} has another token; give both sides the same, by PYFAB_TOKEN or --token-file"
            ) from None
        except OSError as error:
            raise ConnectionError(
                f"no agent answers at {self} ({error.strerror or error});"
                f" start one there, with the same token: pyfab agent --listen {self}"
            ) from error

    def ask(self, channel: Channel, request: Header, timeout: float = _PATIENCE) -> Header:
        """The answer to a request; ConnectionError with the agent's words if it refuses."""
        channel.send(request, deadline=Deadline(timeout))
        answer, _ = channel.receive(Deadline(timeout))
        if "error" in answer:
            raise ConnectionError(f"the agent at {self}: {answer['error']}")
        return answer


class RemoteSide:
    """A process that an agent started."""

    connection: Stream

    def __init__(self, agent: RemoteAgent) -> None:
        self._agent = agent
        with contextlib.ExitStack() as undo:
            self._control = agent.connect()
            undo.callback(self._control.close)
            ticket = agent.ask(self._control, {"op": "peer", "version": pyfab.__version__})["ticket"]
            data = agent.connect()
            undo.callback(data.close)
            agent.ask(data, {"op": "join", "ticket": ticket})
            self.pid = int(self._control.receive(Deadline(_PATIENCE))[0]["pid"])
            undo.pop_all()
        key, stream = data.key(b"peer"), data.detach()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = SealedConnection(Connection(stream.detach()), key, client=True)

    def dumps(self, call: tuple[Callable[..., Any], Any, Any]) -> bytes:
        """The pickle of a call. It carries functions along whose module is not installed, such as a file of tests."""
        module = sys.modules.get(getattr(call[0], "__module__", ""))
        if module is None or _is_installed(module):
            return pickle.dumps(call)
        try:
            import cloudpickle
        except ImportError:
            return pickle.dumps(call)
        cloudpickle.register_pickle_by_value(module)
        pickled: bytes = cloudpickle.dumps(call)
        return pickled

    def suspend(self) -> None:
        """Has the agent stop the process (SIGSTOP)."""
        self._agent.ask(self._control, {"op": "suspend"})

    def resume(self) -> None:
        """Has the agent let the process go on (SIGCONT)."""
        self._agent.ask(self._control, {"op": "resume"})

    def kill(self) -> None:
        """Has the agent kill the process (SIGKILL)."""
        self._agent.ask(self._control, {"op": "kill"})

    def end(self) -> int:
        """Has the agent wait for the process. ConnectionError if the agent has gone, and the process with it."""
        try:
            return int(self._agent.ask(self._control, {"op": "end"}, ENDING + _PATIENCE)["code"])
        finally:
            self._control.close()


def _is_installed(module: Any) -> bool:
    """Whether the other host is taken to have the module, too: pyfab does, and so does whatever was installed here."""
    if module.__name__.partition(".")[0] in ("pyfab", *sys.builtin_module_names):
        return True
    places = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return str(getattr(module, "__file__", "") or "").startswith(places)
