"""Puts, gets and atomics of a transport: how they start, in which order, and who is told of their end."""

from __future__ import annotations

import enum
import operator
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from pyfab._core import Context, Operation
from pyfab.core.enums import Delivery
from pyfab.core.errors import (
    AGAIN,
    BadFlagsError,
    FabricError,
    InvalidArgumentError,
    NotSupportedError,
    PeerLostError,
    UnreachableError,
)
from pyfab.transport.completions import report
from pyfab.transport.handles import Registration, RemoteHandle
from pyfab.transport.module import Module
from pyfab.transport.ordering import Turn
from pyfab.transport.peers import Peers, TransportPeer
from pyfab.transport.settings import Tunables

__all__ = ["Callback", "Operations", "Outcome", "Request", "RequestFields", "first_bytes"]


Callback: TypeAlias = Callable[[FabricError | None, Any, Any], object]
Start: TypeAlias = Callable[[Context, int, Module], Operation]
"""Starts an operation in a context, towards a handle of this module."""


class Outcome(enum.Enum):
    """What became of a call that starts an operation."""

    QUEUED = "queued"  #: the callback will tell
    DONE = "done"  #: complete; no callback follows
    TRY_AGAIN = "try again"  #: there is no room now; nothing was started
    NOT_POSSIBLE = "not possible"  #: larger than the limit, or misaligned; nothing was started


class Request(NamedTuple):
    """What is needed at the end of an operation: its peer, and whom to tell."""

    peer: TransportPeer
    callback: Callback | None
    # Context and data are the program's, and are passed to the callback.
    context: Any
    data: Any
    local_handle: Registration | None = None
    order: int = 0


RequestFields: TypeAlias = tuple[TransportPeer, Callback | None, Any, Any, "Registration | None", int]
"""The fields of a Request, in its order. The Request itself is made only if the operation outlives the call that starts it."""


def first_bytes(local: Any, size: int | None) -> Any:
    """The first `size` bytes of a buffer without a copy; all of it for None."""
    if size is None:
        return local
    whole = memoryview(local)
    if not 0 <= operator.index(size) <= whole.nbytes:
        raise InvalidArgumentError(f"size={size}: the local memory has {whole.nbytes} bytes")
    return whole.cast("B")[:size]


class Operations:
    """Starts operations and follows them to their end. Safe from any thread."""

    def __init__(self, tunables: Tunables, peers: Peers) -> None:
        self._tunables, self._peers = tunables, peers
        self.on_error: Callable[[TransportPeer, FabricError], object] | None = None
        self._lock = threading.Lock()

    def move(
        self,
        how: Literal["write", "read"],
        local: Any,
        flags: Delivery,
        handle: RemoteHandle,
        address: int,
        fields: RequestFields,
    ) -> Outcome:
        """Starts a put or a get."""
        if flags not in (Delivery.DELIVERY, Delivery.COMMIT):
            raise BadFlagsError(
                f"flags={flags!r}: a put or get takes Delivery.DELIVERY or COMMIT; below these it could fail once its end is told"
            )
        nbytes = memoryview(local).nbytes
        peer, order = fields[0], fields[5]
        module = self._peers.module_for(peer)
        limits = module.limits
        if nbytes > (limits.max_put if how == "write" else limits.max_get):
            return Outcome.NOT_POSSIBLE

        def start(scope: Context, to: int, module: Module) -> Operation:
            place = handle._place(module, module.number % peer._modules, address)
            return getattr(scope, how)(local, to, place, flags=flags)  # type: ignore[no-any-return]

        if order:
            return self._start_in_turn(start, module, Request(*fields[:5], operator.index(order)))
        # An operation of no bytes always tells its end by the callback, even if it ends within the call.
        return self.start(start, module, fields, told=nbytes == 0)

    def start(self, start: Start, module: Module, fields: RequestFields, *, told: bool = False) -> Outcome:
        """Starts an operation through a module. told: the callback is called even if the operation ends within this call."""
        number = module.context()
        operation = self._begin(start, module, number, fields[0])
        if operation is None:
            return Outcome.TRY_AGAIN
        if operation.done() and operation._failure is None and not told:
            return Outcome.DONE
        request = Request(*fields)
        self._use(request.local_handle, 1)
        self.follow(operation, module, number, request)
        return Outcome.QUEUED

    def _start_in_turn(self, start: Start, module: Module, request: Request) -> Outcome:
        """Starts an operation when those before it with the same order have ended."""
        peer, number = request.peer, module.context()

        def begin(accepted: bool, wait: bool) -> Operation | None:
            return self._begin(start, module, number, peer, accepted=accepted, wait=wait)

        def follow(operation: Operation) -> None:
            self.follow(operation, module, number, request)

        def fail(error: BaseException) -> None:
            why = error
            if not isinstance(why, FabricError):
                why = InvalidArgumentError(
                    f"the operation could not be started: {type(error).__name__}: {error}"
                )
                why.__cause__ = error
            if peer._unstarted is None:
                peer._unstarted = why
            # The caller starts the next operation of the order, so `_finish` must not.
            module.completions.push(number, lambda: self._finish(request._replace(order=0), why))

        self._use(request.local_handle, 1)
        taken = False
        try:
            turn = Turn(begin, follow, fail)
            taken = peer._ordering.enter(request.order, turn, self._tunables.queue_depth)
        finally:
            if not taken:
                self._use(request.local_handle, -1)
        return Outcome.QUEUED if taken else Outcome.TRY_AGAIN

    def _begin(
        self,
        start: Start,
        module: Module,
        number: int,
        peer: TransportPeer,
        *,
        accepted: bool = False,
        wait: bool = False,
    ) -> Operation | None:
        """Posts an operation through context `number` of a module. None: there is no room; with `wait`, it waits for room.

        accepted: the program was told that it is QUEUED, so `queue_depth` does not refuse it any more.
        """
        if self._tunables.mode == "two_sided":
            raise NotSupportedError(
                'put, get and atomics are off: the transport was made with mode="two_sided"'
            )
        scope = peer._scope(module, number, wait)
        if not accepted:
            if scope._outstanding >= self._tunables.progress_threshold:
                if not module.completions.telling:
                    self._peers.progress()
                elif module.manual:
                    scope.progress()  # tells nobody: callbacks that post would nest until the stack is full
            if scope._outstanding >= self._tunables.queue_depth:
                return None
        to = peer._handles[module.number]
        if to is None:  # the peer was removed meanwhile
            raise UnreachableError(f"the peer cannot be reached: {peer.why}")
        try:
            return start(scope, to, module)
        except FabricError as error:
            if error.errno == AGAIN and not wait:
                return None
            if isinstance(error, PeerLostError):
                self._lost(peer, error)
            raise

    def follow(self, operation: Operation, module: Module, number: int, request: Request) -> None:
        """Makes sure that the program is told of the end, and that the next operation of the same order starts."""

        def ended(ended: Operation) -> None:
            error = ended._failure
            if request.order:
                request.peer._ordering.followed(request.order, ended)
            module.completions.push(number, lambda: self._finish(request, error))

        operation.add_done_callback(ended)

    def uses_of(self, handle: Registration) -> int:
        """How many operations use the memory."""
        with self._lock:
            return handle._uses

    def _use(self, handle: Registration | None, difference: int) -> None:
        if handle is not None:
            with self._lock:
                handle._uses += difference

    def _finish(self, request: Request, error: Any) -> None:
        self._use(request.local_handle, -1)
        try:
            if isinstance(error, PeerLostError):
                self._lost(request.peer, error)
            if request.callback is not None:
                request.callback(error, request.context, request.data)
        finally:
            if request.order:
                request.peer._ordering.advance(request.order)

    def _lost(self, peer: TransportPeer, error: FabricError) -> None:
        if self.on_error is not None:
            try:
                self.on_error(peer, error)
            except Exception as raised:
                report(raised, self.on_error)
