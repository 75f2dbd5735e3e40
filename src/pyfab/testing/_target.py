"""What runs on a peer's side: `Target`, and the loop that answers its other side."""

from __future__ import annotations

import itertools
import pickle
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyfab
from numpy.typing import NDArray
from pyfab.testing._stream import SealedConnection, Stream

MARGIN = 64  # bytes on each side of an exposed array that no peer may touch
_MARGIN_BYTE = 0xC5


class Target:
    """What a peer owns: its domain, its endpoint, and in `kept` whatever has to outlive one call."""

    def __init__(self, domain: pyfab.Domain, endpoint: pyfab.Endpoint, connection: Stream) -> None:
        self.domain = domain
        self.endpoint = endpoint
        self.kept: dict[Any, Any] = {}
        self._connection = connection

    def tell(self, value: Any) -> None:
        """Gives the other side an answer before the call's own; it takes each with a `Peer.finish`."""
        _reply(self._connection, (False, value), last=False)

    def hear(self) -> Any:
        """What the other side sends by `Peer.tell` during a call."""
        return pickle.loads(self._connection.recv_bytes())

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


def serve_process(fd: int, key: int = -1) -> None:
    """The body of a peer's process; `fd` is its end of a connection, which is sealed under what the pipe `key` holds, if any."""
    if key == -1:
        serve(Connection(fd))
        return
    with open(key, "rb") as pipe:
        serve(SealedConnection(Connection(fd), pipe.read(), client=False))


def serve(connection: Stream) -> None:
    """Opens what the first message asks for, then answers calls until the other end closes."""
    with connection:
        try:
            first = connection.recv_bytes()
        except (
            EOFError,
            ConnectionError,
        ):  # the other side has gone, or somebody between the two has changed what it said
            return
        spec, contexts, settings = pickle.loads(first)
        try:
            domain = pyfab.Domain(spec, **settings)
        except Exception as error:
            _reply(connection, (True, _portable(error)))
            return
        with domain, domain.endpoint(contexts=contexts) as endpoint:
            target = Target(domain, endpoint, connection)
            _reply(connection, (False, endpoint.address))
            while True:
                try:
                    request = connection.recv_bytes()
                except (EOFError, ConnectionError):
                    return
                _synchronise(domain.sync_rdma_write)
                try:
                    function, args, kwargs = pickle.loads(request)
                    value = pickle.dumps((True, (False, function(target, *args, **kwargs))))
                except Exception as error:
                    value = pickle.dumps((True, (True, _portable(error))))
                _synchronise(domain.sync_rdma_read)
                try:
                    connection.send_bytes(value)
                except ConnectionError:
                    return


def _synchronise(call: Callable[[list[Any]], None]) -> None:
    """Orders memory with a message between the sides, as programs have to. No region is named: enough only if all is coherent."""
    with suppress(pyfab.ClosedError):
        call([])


def _reply(connection: Stream, outcome: tuple[bool, Any], *, last: bool = True) -> None:
    """Sends an outcome: whether it is an error, and its value. `last` tells whether it is the last answer of a call."""
    connection.send_bytes(pickle.dumps((last, outcome)))


def _portable(error: Exception) -> tuple[Exception, str]:
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}"), text
    return error, text


_names = itertools.count()


def expose(
    target: Target, content: NDArray[Any], access: pyfab.Access, key: int | None, alloc: bool
) -> tuple[int, pyfab.RemoteRegion | None, int, int]:
    """Registers a copy of `content` between margins: its name, remote region, key and address."""
    memory = target.memory(content.nbytes + 2 * MARGIN, alloc=alloc)
    memory[:MARGIN] = memory[MARGIN + content.nbytes :] = _MARGIN_BYTE
    array = memory[MARGIN : MARGIN + content.nbytes].view(content.dtype).reshape(content.shape)
    array[...] = content
    region = target.domain.register(array, access, key=key)
    name = next(_names)
    target.kept[name] = Exposure(array, region, memory)
    remote = region.remote if access & pyfab.Access.REMOTE else None
    return name, remote, region.key, array.ctypes.data


def content(target: Target, name: int) -> NDArray[Any]:
    """A copy of an exposed array; AssertionError if its margins changed."""
    exposure: Exposure = target.kept[name]
    memory, array = exposure.memory, exposure.array
    margins = np.concatenate([memory[:MARGIN], memory[MARGIN + array.nbytes :]])
    assert (margins == _MARGIN_BYTE).all(), "bytes beside the region were changed"
    if not exposure.region.closed:
        target.domain.sync_rdma_write([exposure.region])
    return array.copy()


def store(target: Target, name: int, values: Any) -> None:
    """Assigns to an exposed array."""
    exposure = target.kept[name]
    exposure.array[...] = values
    target.domain.sync_rdma_read([exposure.region])


def withdraw(target: Target, name: int) -> None:
    """Closes the region of an exposed array and forgets its memory."""
    with target.kept.pop(name).region:  # `with` closes it even where an endpoint that goes on is bound to it
        pass


def drain(target: Target) -> None:
    """Reads all entries of the target's completion queue."""
    while target.endpoint.cq.read(max=1024):
        pass


def insert(target: Target, address: bytes) -> int:
    """Inserts an endpoint into the target's address vector; returns its handle."""
    return target.endpoint.av.insert(address)
