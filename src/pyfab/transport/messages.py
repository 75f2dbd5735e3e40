"""Small messages of a transport. Each goes to the handler that the receiver has for its tag."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyfab._core import Operation
from pyfab.core.buffers import bytes_of
from pyfab.core.errors import (
    AGAIN,
    CanceledError,
    ClosedError,
    FabricError,
    InvalidArgumentError,
    NotSupportedError,
)
from pyfab.transport.module import Module
from pyfab.transport.operations import Callback, Operations, Outcome, Request
from pyfab.transport.peers import Peers, TransportPeer
from pyfab.transport.settings import Tunables

__all__ = ["Handler", "Messages"]

_HEADER = struct.Struct("<BxxxI")  # tag and length of a message
_ENDED = (ClosedError.code, CanceledError.code)

Then: TypeAlias = tuple[Callback | None, Any, Any]
"""What follows the end of a message: the callback, and the two values that come with it."""
Handler: TypeAlias = Callable[[TransportPeer | None, bytes], object]


def _bad_tag(tag: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"tag={tag}: it is an int from 0 to 255")


class Messages:
    """Sends messages, keeps receives posted in every context, and calls the handlers."""

    def __init__(self, tunables: Tunables, peers: Peers, operations: Operations) -> None:
        self._tunables, self._peers, self._operations = tunables, peers, operations
        self._handlers: dict[int, Handler] = {}
        self.receives = 0  # receives that wait for messages

    def handle(self, tag: int, handler: Handler | None) -> None:
        """Calls this handler for messages with the tag from now on. None: such messages are dropped."""
        if not 0 <= tag <= 255:
            raise _bad_tag(tag)
        if handler is None:
            self._handlers.pop(tag, None)
        else:
            self._handlers[tag] = handler

    def send(self, peer: TransportPeer, tag: int, message: Any, then: Then) -> Outcome:
        """Sends a message. One that can be injected is DONE at once; the end of any other is followed."""
        if self._tunables.mode == "one_sided":
            raise NotSupportedError('messages are off: the transport was made with mode="one_sided"')
        if not 0 <= tag <= 255:
            raise _bad_tag(tag)
        body = bytes_of("message", message)
        if len(body) > self._tunables.message_size:
            return Outcome.NOT_POSSIBLE
        module = self._peers.module_for(peer)
        number = module.context()
        scope = peer._scope(module, number)
        if scope._outstanding >= self._tunables.queue_depth:
            return Outcome.TRY_AGAIN
        framed = _HEADER.pack(tag, len(body)) + body
        to = peer._handles[module.number]
        assert to is not None
        if self._tunables.inject and len(framed) <= module.limits.inject_size:
            try:
                scope.inject(framed, to)
            except FabricError as error:
                if error.errno != AGAIN:
                    raise
            else:
                return Outcome.DONE
        try:
            operation = scope.send(framed, to)
        except FabricError as error:
            if error.errno == AGAIN:
                return Outcome.TRY_AGAIN
            raise
        self._operations.follow(operation, module, number, Request(peer, *then))
        return Outcome.QUEUED

    def post_receives(self) -> None:
        """Posts the receives of every context. A receive that a message has used is posted again."""
        size = self._tunables.message_size + _HEADER.size
        for module in self._peers.modules:
            for number in range(module.endpoint.contexts):
                for _ in range(self._tunables.posted_receives):
                    self._post_receive(module, number, np.empty(size, np.uint8))
                    self.receives += 1

    def _post_receive(self, module: Module, number: int, buffer: NDArray[np.uint8]) -> None:
        # The reference is weak, so that a receive that waits does not keep alive a transport that nobody uses.
        receiver = weakref.WeakMethod(self._received)
        which = module.number

        def arrived(operation: Operation) -> None:
            received = receiver()
            if received is not None:
                received(operation, which, number, buffer)

        module.endpoint.context(number).recv(buffer).add_done_callback(arrived)

    def _received(self, operation: Operation, which: int, number: int, buffer: NDArray[np.uint8]) -> None:
        module = self._peers.modules[which]
        error = operation.exception(0)
        if self._peers.closed or (error is not None and error.errno in _ENDED):
            return
        message = b"" if error is not None else buffer[: operation.result(0).nbytes].tobytes()
        source = -1 if error is not None else int(operation.result(0).source)
        try:
            self._post_receive(module, number, buffer)
        except ClosedError:
            return
        if len(message) >= _HEADER.size:
            module.completions.push(number, lambda: self._deliver(module, source, message))

    def _deliver(self, module: Module, source: int, message: bytes) -> None:
        tag, length = _HEADER.unpack_from(message)
        handler = self._handlers.get(tag)
        if handler is not None and length == len(message) - _HEADER.size:
            handler(self._peers.by_handle.get((module.number, source)), message[_HEADER.size :])
