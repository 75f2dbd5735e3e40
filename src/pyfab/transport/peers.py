"""The peers of a transport: which modules lead to them, and how to wait for what is outstanding."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from pyfab._core import Context
from pyfab.core.deadline import Deadline
from pyfab.core.errors import (
    BusyError,
    ClosedError,
    FabricError,
    InvalidArgumentError,
    OperationTimeout,
    UnreachableError,
)
from pyfab.group.path_choice import measure, rank
from pyfab.transport.handles import RemoteHandle
from pyfab.transport.module import Module
from pyfab.transport.names import names_in
from pyfab.transport.ordering import Ordering

__all__ = ["Peers", "TransportPeer"]

_A_TURN = 0.01  # seconds of waiting for one scope while others have work, too


class TransportPeer:
    """Another transport. `reachable` tells whether operations can be started, and `why` the reason if not."""

    def __init__(self, table: Peers, name: bytes) -> None:
        self.name = name
        self.why = ""
        self.data: Any = None  # for the program
        # Seconds that a small get takes, by module. It is measured where several modules lead to the peer.
        self.latency: dict[int, float] = {}
        self._table = table
        self._handles: list[int | None] = []  # by module
        self._modules = 1  # how many modules the peer has
        self._chosen: Module | None = None  # the module that operations take; None: it must be chosen anew
        # By module, context, and whether it waits for room: the part of the context that counts this peer's operations.
        self._scopes: dict[tuple[int, int, bool], Context] = {}
        self._ordering = Ordering(self._full)
        # The first ordered operation that could not be started when its turn came left this error, for the next flush.
        self._unstarted: FabricError | None = None
        self._lock = threading.Lock()

    @property
    def reachable(self) -> bool:
        """Whether one of the modules leads to the peer."""
        return any(handle is not None for handle in self._handles)

    @property
    def link(self) -> str:
        """The link that operations take: through memory on this node, else the fastest; "" if none leads to the peer."""
        return self._table.module_for(self).domain.info.spec if self.reachable else ""

    @property
    def outstanding(self) -> int:
        """Operations that have not ended."""
        return self._ordering.waiting + sum(scope._outstanding for scope in list(self._scopes.values()))

    def _scope(self, module: Module, number: int, wait: bool = False) -> Context:
        key = module.number, number, wait
        found = self._scopes.get(key)
        if found is None:
            with self._lock:
                found = self._scopes.setdefault(key, module.endpoint.context(number)._scope(no_wait=not wait))
        return found

    def _full(self, order: int) -> None:
        """Is called when the turn of an ordered operation has come, but there is no room for it.

        Under manual progress the next call tries again. Otherwise a thread waits for room: the calling thread may be the one
        that makes progress, and would wait for itself.
        """
        if not self._table.manual:
            waiting = threading.Thread(
                target=self._ordering.advance,
                args=(order,),
                kwargs={"wait": True},
                name="pyfab-ordered",
                daemon=True,
            )
            try:
                waiting.start()
            except RuntimeError:  # the system gives no other thread
                pass
            else:
                return
        self._table.stalled[self, order] = None

    def _flush(self, deadline: Deadline, callbacks: bool, failed: list[FabricError]) -> None:
        """Waits until all that was started towards the peer has ended, and adds the first failure of each scope."""
        self._flush_ordered(deadline, failed)
        for scope in list(self._scopes.values()):
            _flush(scope, deadline.remaining(), callbacks, failed)
        unstarted, self._unstarted = self._unstarted, None
        if unstarted is not None:
            failed.append(unstarted)

    def _flush_ordered(self, deadline: Deadline, failed: list[FabricError]) -> None:
        """Waits until the ordered operations that were accepted have ended. They start one after the other."""
        ordering = self._ordering
        goals = ordering.goals()
        while not ordering.reached(goals, 0):
            if deadline.over:
                raise OperationTimeout(f"ordered operations are still outstanding after {deadline}")
            busy = [scope for scope in list(self._scopes.values()) if scope._outstanding]
            for scope in busy:
                with suppress(OperationTimeout):
                    _flush(scope, _A_TURN, False, failed)
            # Inside a callback nobody else starts the next operations, since each follows the callback of the one before it.
            ordering.advance_all()
            if not busy:
                ordering.reached(goals, _A_TURN)

    def __repr__(self) -> str:
        return f"<TransportPeer {'reachable' if self.reachable else 'unreachable: ' + self.why}>"


class Peers:
    """The peers of a transport, and the module that leads best to each. `closed` tells whether the transport is."""

    def __init__(self, modules: list[Module], manual: bool) -> None:
        self.modules, self.manual = modules, manual
        self.closed = False
        self.by_name: dict[bytes, TransportPeer] = {}
        self.by_handle: dict[tuple[int, int], TransportPeer] = {}  # by module and handle there
        # By peer and order: ordered operations that wait for room and that no thread will start.
        self.stalled: dict[tuple[TransportPeer, int], None] = {}
        self._lock = threading.Lock()

    def check_open(self) -> None:
        """ClosedError once the transport is closed."""
        if self.closed:
            raise ClosedError("the transport is closed")

    def get(self, name: bytes) -> TransportPeer:
        """The peer of that name; see `Transport.peer`."""
        with self._lock:
            if name in self.by_name:
                return self.by_name[name]
            peer = self.by_name[name] = TransportPeer(self, name)
            names, beacon = names_in(name)
            if not names:
                peer.why = "its name is damaged, or names no module"
            for module in self.modules:
                handle = None
                try:
                    if names:
                        handle = module.endpoint.av.insert(names[module.number % len(names)])
                        self.by_handle[module.number, handle] = peer
                except (FabricError, ValueError) as error:
                    peer.why = str(error)
                peer._handles.append(handle)
            peer._modules = len(names) or 1
            self._choose_anew(peer)
        several = [m for m, handle in zip(self.modules, peer._handles, strict=True) if handle is not None]
        if beacon and len(several) > 1:
            for module in several:
                self._time(peer, module, beacon)
        return peer

    def _choose_anew(self, peer: TransportPeer) -> None:
        """Chooses again for all peers, since a link that does not lead to all of them counts for less."""
        for known in (peer, *self.by_name.values()):
            known._chosen = None

    def _time(self, peer: TransportPeer, module: Module, beacon: RemoteHandle) -> None:
        def told(seconds: float) -> None:
            peer.latency[module.number] = seconds
            peer._chosen = None

        handle = peer._handles[module.number]
        assert handle is not None
        place = beacon._place(module, module.number % peer._modules, beacon.address)
        measure(module.endpoint.context(0), handle, place, told)

    def forget(self, peer: TransportPeer, errors: list[FabricError]) -> None:
        """Takes the peer out of all modules, and adds what went wrong to `errors`."""
        if peer._table is not self:
            raise InvalidArgumentError("the peer belongs to another transport")
        with self._lock:
            if self.by_name.get(peer.name) is peer:  # else another one has its name by now
                del self.by_name[peer.name]
            for module, handle in zip(self.modules, peer._handles, strict=False):
                if handle is not None:
                    self.by_handle.pop((module.number, handle), None)
                    try:
                        module.endpoint.av.remove(handle)
                    except FabricError as error:
                        errors.append(error.with_traceback(None))
            peer._handles = [None] * len(self.modules)
            self._choose_anew(peer)
            peer.why = "it was removed"

    def module_for(self, peer: TransportPeer) -> Module:
        """The module that operations towards the peer take. UnreachableError if none leads to it."""
        if self.closed:
            raise ClosedError("the transport is closed")
        if peer._table is not self:
            raise InvalidArgumentError("the peer belongs to another transport")
        chosen = peer._chosen  # another thread may reset it meanwhile
        if chosen is None:
            chosen = peer._chosen = self._choose(peer)
        return chosen

    def progress(self) -> int:
        """Moves what can be moved without waiting; see `Transport.progress`."""
        self.check_open()
        for peer, order in list(self.stalled):
            self.stalled.pop((peer, order), None)
            peer._ordering.advance(order)
        return sum(module.progress() for module in self.modules)

    def _choose(self, peer: TransportPeer) -> Module:
        """The best module that leads to the peer. UnreachableError if none does.

        Shared memory comes first, then a device that moves bytes itself and leads to all peers, then messages. Of equals the
        fastest is taken.
        """
        leading = [m for m, handle in zip(self.modules, peer._handles, strict=False) if handle is not None]
        if not leading:
            raise UnreachableError(f"the peer cannot be reached: {peer.why}")
        if len(leading) == 1:
            return leading[0]
        far = [
            other._handles
            for other in list(self.by_name.values())
            if other.reachable
            and len(other._handles) == len(self.modules)  # else another thread is still inserting it
            and not any(self.modules[i].shared and h is not None for i, h in enumerate(other._handles))
        ]
        timed = all(module.number in peer.latency for module in leading)

        def place(module: Module) -> tuple[bool, bool, float]:
            to_all = module.direct and all(handles[module.number] is not None for handles in far)
            return rank(module.shared, to_all, peer.latency[module.number] if timed else module.number)

        return min(leading, key=place)


def _flush(scope: Context, timeout: float | None, callbacks: bool, failed: list[FabricError]) -> None:
    """Waits for the operations of a scope, and adds the error of the first that failed. An error of the wait itself is raised."""
    try:
        scope._flush_scope(timeout, callbacks)
    except (BusyError, ClosedError, OperationTimeout):
        raise
    except FabricError as error:
        failed.append(error.with_traceback(None))
