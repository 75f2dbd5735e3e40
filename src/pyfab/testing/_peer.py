"""The other side of a test, and the arrays that it exposes."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import pyfab
from numpy.typing import NDArray
from pyfab.core.errors import words_of
from pyfab.testing import _target
from pyfab.testing._remote import RemoteAgent, RemoteSide
from pyfab.testing._sides import ProcessSide, Side, ThreadSide
from pyfab.testing._target import Target

P = ParamSpec("P")
T = TypeVar("T")


class Exposed:
    """An array in the peer's memory that is registered there, between two margins that nobody may touch.

    `remote` is what an operation needs; `content()` is a copy of the array as the peer sees it now.
    """

    def __init__(
        self, peer: Peer, name: int, remote: pyfab.RemoteRegion | None, key: int, address: int
    ) -> None:
        self._peer = peer
        self.name = name
        self._remote = remote
        self.key = key
        self.address = address
        self._closed = False

    @property
    def remote(self) -> pyfab.RemoteRegion:
        """What an operation on the array takes."""
        assert self._remote is not None, "registered without remote rights"
        return self._remote

    def content(self) -> NDArray[Any]:
        """A copy of the array; AssertionError if a byte of the margins changed."""
        return self._peer.run(_target.content, self.name)

    def store(self, values: Any) -> None:
        """Assigns `values` to the array by the peer's own stores."""
        self._peer.run(_target.store, self.name, values)

    def close(self) -> None:
        """Closes the region and lets go of the memory. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._peer.run(_target.withdraw, self.name)

    def __enter__(self) -> Exposed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Peer:
    """One side of a test: a domain and an endpoint that serve in a thread, in a child process (the default), or at an agent.

    `settings` go to `pyfab.Domain`. Functions given to `run` are called there with the `Target` first; they and their arguments
    and results are pickled, even for a thread, so nothing is shared by accident. Lambdas and local functions need
    cloudpickle. Not safe for use by several threads at once.
    launcher: a command to put before that of the process, for instance to run it in a container.
    """

    def __init__(
        self,
        spec: str | None = "shm+tcp",
        *,
        where: Literal["thread", "process"] | RemoteAgent = "process",
        contexts: int = 1,
        launcher: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self._side: Side
        if isinstance(where, RemoteAgent):
            self._side = RemoteSide(where)
        else:
            self._side = ProcessSide(launcher) if where == "process" else ThreadSide()
        self._connection = self._side.connection
        self._over = False  # killed, or known to have ended
        self._begun = 1  # calls whose last answer was not taken; the first answer is the address
        self._exposed: list[Exposed] = []
        self._handles = (-1, -1)
        try:
            self._send(pickle.dumps((spec, contexts, settings)))
            self.address: bytes = self.finish()
        except BaseException as error:
            self.abandon()
            if type(error).__init__ is not pyfab.FabricError.__init__:
                raise
            # Both sides open links, and a message of one's own would be about this one.
            place = f"the agent at {where}" if isinstance(where, RemoteAgent) else f"a {where} here"
            text = f"the peer, in {place}, cannot open {spec!r}: {words_of(error)}"
            raise type(error)(error.args[0], text) from error.__cause__

    @property
    def pid(self) -> int:
        """The number of the process that the peer runs in, on its host."""
        return self._side.pid

    @property
    def over(self) -> bool:
        """Whether it was killed or closed, or was found to have ended."""
        return self._over

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of a call, as after an interrupt; its next answer is not for the next call."""
        return self._begun > 0

    @property
    def handle(self) -> int:
        """The handle of this peer in the address vector of the endpoint that it met."""
        return self._handles[0]

    @property
    def handle_there(self) -> int:
        """The handle of the endpoint that it met, in this peer's address vector."""
        return self._handles[1]

    def meet(self, endpoint: pyfab.Endpoint) -> None:
        """Puts each into the other's address vector, as `handle` and `handle_there`."""
        self._handles = endpoint.av.insert(self.address), self.run(_target.insert, endpoint.address)

    def run(self, function: Callable[Concatenate[Target, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `function(target, ...)` in the peer, waits at most a minute, and returns or raises what it did."""
        self.start(function, *args, **kwargs)
        result: T = self.finish()
        return result

    def start(
        self, function: Callable[Concatenate[Target, P], Any], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Begins a call as `run` does, without waiting for it; `finish` gives its result."""
        self._send(self._side.dumps((function, args, kwargs)))
        self._begun += 1

    def tell(self, value: Any) -> None:
        """Sends a value to the call that is going on, which takes it by `Target.hear`."""
        self._send(pickle.dumps(value))

    def finish(self, timeout: float = 60) -> Any:
        """The result of the oldest call that was begun; TimeoutError if it is not there in time."""
        try:
            if not self._connection.poll(timeout):
                raise TimeoutError(f"peer {self.pid} did not answer within {timeout} s")
            last, (error, value) = pickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError) as lost:
            raise self._ended() from lost
        self._begun -= last
        if error:
            exception, text = value
            raise exception from RuntimeError(f"raised in peer {self.pid}:\n{text}")
        return value

    def expose(
        self,
        content: NDArray[Any],
        access: pyfab.Access = pyfab.Access.REMOTE,
        *,
        key: int | None = None,
        alloc: bool = False,
    ) -> Exposed:
        """Registers a copy of `content` there, in memory from `Domain.alloc` if so asked, with margins around it."""
        found = self.run(_target.expose, np.ascontiguousarray(content), access, key, alloc)
        self._exposed = [exposed for exposed in self._exposed if not exposed._closed]
        self._exposed.append(Exposed(self, *found))
        return self._exposed[-1]

    def tidy(self) -> None:
        """Closes all that is exposed, and empties the peer's completion queue."""
        while self._exposed:
            self._exposed.pop().close()
        self.run(_target.drain)

    def suspend(self) -> None:
        """Stops the process (SIGSTOP); it has stopped on return."""
        self._side.suspend()

    def resume(self) -> None:
        """Lets a stopped process go on."""
        self._side.resume()

    def kill(self) -> None:
        """Ends the process by SIGKILL; it is gone on return."""
        self._side.kill()
        self._over = True
        self._side.end()
        self._connection.close()

    def close(self) -> None:
        """Lets the peer close its endpoint and domain, and waits for it. RuntimeError if it did not end well."""
        self._connection.close()
        if not self._over:
            self._over = True
            code = self._side.end()
            if code != 0:
                raise RuntimeError(f"peer {self.pid} ended with return code {code}")

    def abandon(self) -> None:
        """Gives the peer up, even in the middle of a call."""
        self._over = True
        self._connection.close()
        with contextlib.suppress(OSError):  # its agent has gone, and so has the peer
            if not isinstance(self._side, ThreadSide):
                self._side.kill()
            self._side.end()

    def _send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except ConnectionError as lost:
            raise self._ended() from lost

    def _ended(self) -> ConnectionError:
        self._over = True
        try:
            return ConnectionError(f"peer {self.pid} ended: return code {self._side.end()}")
        except OSError as error:
            return ConnectionError(f"peer {self.pid} ended, and so did its agent: {error}")

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
