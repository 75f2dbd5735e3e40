"""Helpers for tests of programs that use pyfab: the other side of a test, in a thread or in a process of its own.

with Peer("shm+tcp") as peer, pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint:
    handle = endpoint.av.insert(peer.address)
    exposed = peer.expose(np.zeros(100))
    endpoint.write(np.ones(10), handle, exposed.remote[20:30]).result(timeout=10)
    assert exposed.content()[20:30].all()
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import pyfab
from numpy.typing import NDArray

__all__ = ["Exposed", "Exposure", "Peer", "Target"]

P = ParamSpec("P")
T = TypeVar("T")

MARGIN = 64  # bytes on each side of an exposed array that no peer may touch
_MARGIN_BYTE = 0xC5


class Target:
    """What a peer owns: its domain, its endpoint, and in `kept` whatever has to outlive one call."""

    def __init__(self, domain: pyfab.Domain, endpoint: pyfab.Endpoint) -> None:
        self.domain = domain
        self.endpoint = endpoint
        self.kept: dict[Any, Any] = {}

    def memory(self, nbytes: int, *, alloc: bool) -> NDArray[np.uint8]:
        """New zeroed bytes: from `Domain.alloc`, or ordinary memory of this process."""
        if alloc:
            return self.domain.alloc((nbytes,), np.uint8)
        return np.zeros(nbytes, np.uint8)


@dataclass
class Exposure:
    """What the peer keeps of an exposed array, as `target.kept[exposed.name]`."""

    array: NDArray[Any]
    region: pyfab.MemoryRegion
    memory: NDArray[np.uint8]  # the array's bytes and the margins around them


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
        return self._peer.run(_content, self.name)

    def store(self, values: Any) -> None:
        """Assigns `values` to the array by the peer's own stores."""
        self._peer.run(_store, self.name, values)

    def close(self) -> None:
        """Closes the region and lets go of the memory. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._peer.run(_withdraw, self.name)


class Peer:
    """One side of a test: a domain and an endpoint that serve in a thread, or in a child process (the default).

    `settings` go to `pyfab.Domain`. Functions given to `run` are called there with the `Target` first; they and their arguments
    and results are pickled, in a thread too, so that nothing is shared by accident. Not safe for use by several threads at once.
    launcher: a command to put before that of the process, for instance to run it in a container.
    """

    def __init__(
        self,
        spec: str = "shm+tcp",
        *,
        where: Literal["thread", "process"] = "process",
        contexts: int = 1,
        launcher: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self._connection, theirs = Pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._killed = False
        if where == "process":
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; from pyfab.testing import _serve_process; "
                f"_serve_process({theirs.fileno()})"
            )
            self._process = subprocess.Popen(
                [*launcher, sys.executable, "-c", code], pass_fds=[theirs.fileno()]
            )
            theirs.close()
        else:
            self._thread = threading.Thread(target=_serve, args=(theirs,), name="pyfab peer", daemon=True)
            self._thread.start()
        self._connection.send((spec, contexts, settings))
        try:
            self.address: bytes = self.finish()
        except BaseException:
            self.kill() if self._process else self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process that the peer runs in."""
        return self._process.pid if self._process else os.getpid()

    def run(self, function: Callable[Concatenate[Target, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `function(target, ...)` in the peer, waits at most a minute, and returns or raises what it did."""
        self.start(function, *args, **kwargs)
        result: T = self.finish()
        return result

    def start(
        self, function: Callable[Concatenate[Target, P], Any], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Begins such a call without waiting for it; `finish` gives its result."""
        self._connection.send((function, args, kwargs))

    def finish(self, timeout: float = 60) -> Any:
        """The result of the oldest call that was begun; TimeoutError if it is not there in time."""
        if not self._connection.poll(timeout):
            raise TimeoutError(f"peer {self.pid} did not answer within {timeout} s")
        try:
            error, value = pickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError) as lost:
            raise ConnectionError(f"peer {self.pid} ended: return code {self._end()}") from lost
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
        return Exposed(self, *self.run(_expose, np.ascontiguousarray(content), access, key, alloc))

    def suspend(self) -> None:
        """Stops the process (SIGSTOP); it has stopped on return."""
        os.kill(self._own_process().pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Lets a stopped process go on."""
        self._own_process().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process by SIGKILL; it is gone on return."""
        self._killed = True
        self._own_process().kill()
        self._end()
        self._connection.close()

    def close(self) -> None:
        """Lets the peer close its endpoint and domain, and waits for it. RuntimeError if it did not end well."""
        self._connection.close()
        if self._thread:
            self._thread.join(timeout=60)
            if self._thread.is_alive():
                raise RuntimeError("the peer's thread did not end within 60 s")
        elif not self._killed:
            code = self._end()
            if code != 0:
                raise RuntimeError(f"peer {self.pid} ended with return code {code}")

    def _own_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ValueError("this peer is a thread of the calling process")
        return self._process

    def _end(self) -> int:
        process = self._own_process()
        try:
            return process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve_process(fd: int) -> None:
    _serve(Connection(fd))


def _serve(connection: Connection) -> None:
    """Opens what the first message asks for, then answers calls until the other end closes."""
    with connection:
        spec, contexts, settings = connection.recv()
        try:
            domain = pyfab.Domain(spec, **settings)
        except Exception as error:
            _reply(connection, True, _portable(error))
            return
        with domain, domain.endpoint(contexts=contexts) as endpoint:
            target = Target(domain, endpoint)
            _reply(connection, False, endpoint.address)
            while True:
                try:
                    request = connection.recv_bytes()
                except (EOFError, ConnectionError):
                    return
                _synchronise(domain.sync_rdma_write)
                try:
                    function, args, kwargs = pickle.loads(request)
                    value = pickle.dumps((False, function(target, *args, **kwargs)))
                except Exception as error:
                    value = pickle.dumps((True, _portable(error)))
                _synchronise(domain.sync_rdma_read)
                try:
                    connection.send_bytes(value)
                except ConnectionError:
                    return


def _synchronise(call: Callable[[list[Any]], None]) -> None:
    """Orders memory with a message between the two sides, as programs have to; of no segment, so only on coherent domains."""
    with suppress(pyfab.ClosedError):
        call([])


def _reply(connection: Connection, error: bool, value: Any) -> None:
    connection.send_bytes(pickle.dumps((error, value)))


def _portable(error: Exception) -> tuple[Exception, str]:
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}"), text
    return error, text


_names = itertools.count()


def _expose(
    target: Target, content: NDArray[Any], access: pyfab.Access, key: int | None, alloc: bool
) -> tuple[int, pyfab.RemoteRegion | None, int, int]:
    memory = target.memory(content.nbytes + 2 * MARGIN, alloc=alloc)
    memory[:MARGIN] = memory[MARGIN + content.nbytes :] = _MARGIN_BYTE
    array = memory[MARGIN : MARGIN + content.nbytes].view(content.dtype).reshape(content.shape)
    array[...] = content
    region = target.domain.register(array, access, key=key)
    name = next(_names)
    target.kept[name] = Exposure(array, region, memory)
    remote = region.remote if access & pyfab.Access.REMOTE else None
    return name, remote, region.key, array.ctypes.data


def _content(target: Target, name: int) -> NDArray[Any]:
    exposure: Exposure = target.kept[name]
    memory, array = exposure.memory, exposure.array
    margins = np.concatenate([memory[:MARGIN], memory[MARGIN + array.nbytes :]])
    assert (margins == _MARGIN_BYTE).all(), "bytes beside the region were changed"
    if not exposure.region.closed:
        target.domain.sync_rdma_write([exposure.region])
    return array.copy()


def _store(target: Target, name: int, values: Any) -> None:
    exposure = target.kept[name]
    exposure.array[...] = values
    target.domain.sync_rdma_read([exposure.region])


def _withdraw(target: Target, name: int) -> None:
    with target.kept.pop(name).region:  # also where an endpoint is bound to it that goes on
        pass
