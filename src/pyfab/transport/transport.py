"""Put, get, atomics and small messages with callbacks: what runtimes and languages are built on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from pyfab._core import Context, Operation
from pyfab.core.addressing.link_traits import traits_of
from pyfab.core.deadline import Deadline
from pyfab.core.dmabuf import DmaBuf
from pyfab.core.domain import Domain
from pyfab.core.enums import Access, AtomicOp, Delivery, MRFlag, MRMode
from pyfab.core.errors import (
    NO_DATA,
    BusyError,
    FabricError,
    InvalidArgumentError,
    NotSupportedError,
    OperationTimeout,
)
from pyfab.transport.completions import Here
from pyfab.transport.handles import Registration, RemoteHandle
from pyfab.transport.messages import Handler, Messages
from pyfab.transport.module import MOST_MODULES, Module
from pyfab.transport.names import name_of
from pyfab.transport.operations import Callback, Operations, Outcome, first_bytes
from pyfab.transport.peers import Peers, TransportPeer
from pyfab.transport.settings import (
    REFUSED_MODES,
    Candidate,
    Tunables,
    candidates,
    contexts_for,
    slice_of,
)

if TYPE_CHECKING:
    from pyfab.core.info import Info
    from pyfab.transport.settings import Limits

__all__ = ["Transport"]

_NO_FLAGS = MRFlag(0)


class Transport:
    """One-sided operations, atomics and small messages to peers, over every usable device of this process.

    spec: a link for one module, a list of links, or None for all that are found; then the processes of a node (`local_rank` of
    `local_size`) share the devices out. Tunables are keywords or variables of the environment, see `Tunables`; `candidates`
    tells which links were looked at. A peer is made of the `name` of another transport. on_error(peer, error) is called when a
    peer turns out to be lost; operations towards other peers go on.

    Operations name remote memory by a handle and an address from ``handle.address`` on. They return an `Outcome`; those that are
    QUEUED call ``callback(error, context, data)`` once, from any thread (progress="auto") or from `progress` and `flush`
    ("manual"). Safe from any thread.
    """

    def __init__(
        self,
        spec: str | Sequence[str] | None = None,
        *,
        mr_mode: MRMode = MRMode.SCALABLE,
        on_error: Callable[[TransportPeer, FabricError], object] | None = None,
        local_rank: int = 0,
        local_size: int = 1,
        domain: dict[str, Any] | None = None,
        **tunables: Any,
    ) -> None:
        self.tunables = Tunables.read(**tunables)
        self._here = Here()
        self._addresses = itertools.count(1)  # numbers registrations whose addresses are not virtual
        self.candidates: list[Candidate] = []
        self._modules: list[Module] = []
        options = {"mr_mode": mr_mode, "mr_cache": "auto", **(domain or {})}
        if self.tunables.progress != "unspecified":
            options["progress"] = self.tunables.progress
        self._manual = options.get("progress") == "manual"
        self._peers = Peers(self._modules, self._manual)
        self._operations = Operations(self.tunables, self._peers)
        self._operations.on_error = on_error
        self._messages = Messages(self.tunables, self._peers, self._operations)
        with ExitStack() as undo:
            domains = [
                undo.enter_context(Domain(link, **options))
                for link in self._links(spec, mr_mode, local_rank, local_size)
            ]
            contexts = contexts_for(self.tunables, [opened.info.max_contexts for opened in domains])
            for number, opened in enumerate(domains):
                module = Module(number, opened, contexts, self.tunables, self._here)
                undo.callback(module.close)
                self._modules.append(module)
            if self.tunables.mode != "one_sided":
                self._messages.post_receives()
            # Peers time reads of the beacon to find the fastest module.
            self._beacon = self.register(np.zeros(8, np.uint8), Access.REMOTE_READ)
            self._resources = undo.pop_all()

    def _links(
        self, spec: str | Sequence[str] | None, mr_mode: MRMode, local_rank: int, local_size: int
    ) -> Sequence[str | Info]:
        if isinstance(spec, str):
            spec = [spec]
        if spec is not None:
            if not spec or len(spec) > MOST_MODULES:
                raise InvalidArgumentError(f"{len(spec)} links: a transport has 1 to {MOST_MODULES} modules")
            if mr_mode & REFUSED_MODES:
                raise FabricError(
                    NO_DATA,
                    f"mr_mode={mr_mode!r} demands {mr_mode & REFUSED_MODES!r}, which a transport does not meet",
                )
            return spec
        found, self.candidates = candidates(self.tunables, mr_mode)
        if not found:
            looked = "; ".join(f"{link}: {reason}" for link, _, reason in self.candidates) or "none was found"
            raise FabricError(NO_DATA, f"no link can carry a transport ({looked})")
        return slice_of(found, local_rank, local_size)[:MOST_MODULES]

    # --- what there is

    @property
    def on_error(self) -> Callable[[TransportPeer, FabricError], object] | None:
        """What is called with a peer that turns out to be lost, and the error."""
        return self._operations.on_error

    @on_error.setter
    def on_error(self, function: Callable[[TransportPeer, FabricError], object] | None) -> None:
        self._operations.on_error = function

    @property
    def modules(self) -> list[Info]:
        """The devices in use."""
        return [module.domain.info for module in self._modules]

    @property
    def limits(self) -> list[Limits]:
        """The limits of each module."""
        return [module.limits for module in self._modules]

    @property
    def posted_receives(self) -> int:
        """Receives that wait for messages."""
        return self._messages.receives

    @property
    def atomic_operations(self) -> dict[AtomicOp, tuple[str, ...]]:
        """The types that each operation takes, as NumPy writes them; others are refused with NotSupportedError."""
        integers = tuple(kind + size for size in "1248" for kind in "iu")
        bitwise = (AtomicOp.BOR, AtomicOp.BAND, AtomicOp.BXOR, AtomicOp.MSWAP)
        return {op: integers if op in bitwise else (*integers, "f4", "f8") for op in AtomicOp}

    @property
    def global_atomics(self) -> bool:
        """Whether atomics are atomic also with atomic instructions of the processor on the same memory."""
        return all(traits_of(link).by_processors for info in self.modules for link in info.links)

    @property
    def name(self) -> bytes:
        """What peers make a `TransportPeer` of."""
        self._peers.check_open()
        return name_of(self._modules, self._beacon)

    # --- peers

    def peer(self, name: bytes) -> TransportPeer:
        """The peer of that name, always the same object. Module i leads to the peer's module i, modulo their number.

        A name that cannot be read, or that no link leads to, makes an unreachable peer.
        """
        self._peers.check_open()
        return self._peers.get(name)

    def remove(self, peer: TransportPeer, timeout: float | None = None) -> list[FabricError]:
        """Waits until nothing is outstanding towards the peer and forgets it. What went wrong is returned, not raised."""
        errors: list[FabricError] = []
        try:
            self.flush(peer, timeout)
        except FabricError as error:
            errors.append(error.with_traceback(None))  # which would hold `errors`
        self._peers.forget(peer, errors)
        return errors

    # --- memory

    def register(self, buffer: Any, access: Access, flags: MRFlag = _NO_FLAGS) -> Registration:
        """Registers memory with every module. `access` says what peers, and local operations, may do with it.

        flags: MRFlag.PMEM for persistent memory, which puts with Delivery.COMMIT need.

        Memory that was registered before is found in the registration cache. Memory of a device, as a DmaBuf, is registered with
        the device.
        """
        self._peers.check_open()
        if isinstance(buffer, DmaBuf) and not self.tunables.device_memory:
            raise NotSupportedError(
                "memory of devices is off: the transport was made with device_memory=False"
            )
        with ExitStack() as undo:
            regions = []
            for module in self._modules:
                region = module.domain.register(buffer, access, flags=flags)
                undo.callback(region._end)
                if module.domain.info.mr_mode & MRMode.ENDPOINT:
                    region.bind(module.endpoint)
                    region.enable()
                regions.append(region)
            virtual = self._modules[0].virtual
            address = regions[0].address if virtual else next(self._addresses) << 32
            undo.pop_all()
        return Registration(self, regions, address)

    def deregister(self, handle: RemoteHandle) -> None:
        """Takes memory back. BusyError while operations use it; InvalidArgumentError for a peer's handle."""
        if not isinstance(handle, Registration) or handle._owner is not self:
            raise InvalidArgumentError(
                "only what this transport registered can be deregistered, not a peer's handle"
            )
        if uses := self._operations.uses_of(handle):
            raise BusyError(f"{uses} operations use the memory; flush() first")
        for region in handle._regions:
            region._end()

    # --- operations

    def put(
        self,
        peer: TransportPeer,
        local: Any,
        address: int,
        handle: RemoteHandle,
        *,
        local_handle: Registration | None = None,
        size: int | None = None,
        flags: Delivery = Delivery.DELIVERY,
        order: int = 0,
        callback: Callback | None = None,
        context: Any = None,
        data: Any = None,
    ) -> Outcome:
        """Moves `local` to `address`. It is complete when the bytes are visible there; until then the library owns the buffer.

        size: how many bytes are moved, from the first of `local` on; None moves all of it. flags: with
        Delivery.COMMIT, the put is complete when the bytes survive a failure at the target; the memory there must be registered
        with MRFlag.PMEM.

        A put of no bytes moves nothing and is QUEUED like others, so that its callback is called once.

        order: puts and gets to one peer with the same number, if not 0, happen one after the other. If one cannot be started
        when its turn comes, it ends with the error that the call would have raised, and the next one follows.
        """
        fields = (peer, callback, context, data, local_handle, order)
        return self._operations.move("write", first_bytes(local, size), flags, handle, address, fields)

    def get(
        self,
        peer: TransportPeer,
        local: Any,
        address: int,
        handle: RemoteHandle,
        *,
        local_handle: Registration | None = None,
        size: int | None = None,
        flags: Delivery = Delivery.DELIVERY,
        order: int = 0,
        callback: Callback | None = None,
        context: Any = None,
        data: Any = None,
    ) -> Outcome:
        """Fills `local` from `address`. Otherwise like `put`."""
        fields = (peer, callback, context, data, local_handle, order)
        return self._operations.move("read", first_bytes(local, size), flags, handle, address, fields)

    def atomic(
        self,
        peer: TransportPeer,
        op: AtomicOp,
        operand: ArrayLike,
        address: int,
        handle: RemoteHandle,
        *,
        dtype: DTypeLike = np.int64,
        result: NDArray[Any] | None = None,
        compare: ArrayLike | None = None,
        callback: Callback | None = None,
        context: Any = None,
        data: Any = None,
    ) -> Outcome:
        """Updates the number at `address`, of 64 bits unless `dtype` says otherwise. `result` gets what was there before.

        The call copies operand and comparand: they need no registration, and may change when it returns.
        """
        number = np.dtype(dtype)
        operands = np.array(operand, number)

        def start(scope: Context, to: int, module: Module) -> Operation:
            place = handle._place(module, module.number % peer._modules, address)
            if compare is not None:
                into = np.empty_like(operands) if result is None else result
                return scope.compare_atomic(op, operands, np.array(compare, number), into, to, place)
            if result is not None:
                return scope.fetch_atomic(op, operands, result, to, place)
            return scope.atomic(op, operands, to, place)

        if address % number.itemsize and not self._modules[0].virtual:
            return Outcome.NOT_POSSIBLE
        module = self._peers.module_for(peer)
        return self._operations.start(start, module, (peer, callback, context, data, None, 0))

    def wait(
        self, call: Callable[..., Outcome], *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Repeats a call of this transport until it is not TRY_AGAIN, and waits for its end. Raises what it failed with.

        Inside a callback or a handler it works only under manual progress. Under automatic progress the end is told only after
        these have returned, so wait() raises BusyError there: give the call a callback of its own, or use `flush`.
        """
        if self._here.telling and not self._manual:
            raise BusyError(
                "wait() inside a callback or a handler would wait for itself; give the call a callback, or flush()"
            )
        deadline = Deadline(timeout)
        ended = threading.Event()
        failed: list[FabricError] = []

        def finish(error: FabricError | None, _: Any, __: Any) -> None:
            if error is not None:
                failed.append(error)
            ended.set()

        while (outcome := call(*args, callback=finish, **kwargs)) is Outcome.TRY_AGAIN:
            if deadline.over:
                raise OperationTimeout(f"the way was full for {deadline}")
            self.progress()
        if outcome is Outcome.NOT_POSSIBLE:
            raise InvalidArgumentError("larger than the limit of the module, or misaligned (see limits)")
        while outcome is Outcome.QUEUED and not ended.is_set():
            if deadline.over:
                raise OperationTimeout(f"the operation has not ended within {deadline}")
            if self._manual:
                self.progress()
            else:
                ended.wait(deadline.remaining(at_most=0.1))
        if failed:
            raise failed.pop()  # a frame that kept its own error would live until the cycle is collected

    # --- completion

    def progress(self) -> int:
        """Moves what can be moved without waiting. Returns how many operations have ended.

        In each module these are at most `completions_per_read` of the thread's own context. If it has none, each of the other
        contexts is looked at once, until one has some.
        """
        return self._peers.progress()

    def flush(
        self, peer: TransportPeer | None = None, timeout: float | None = None, *, callbacks: bool = False
    ) -> None:
        """Waits until all has ended that was started before the call, towards the peer or, without one, towards all peers.

        Raises the error of the first operation that failed, once, whether or not a callback is told. callbacks: waits also until
        the callbacks have returned; inside a callback that is a BusyError. The call ends even if other threads go on posting.
        Without `callbacks`, it may be made inside a callback.
        """
        self._peers.check_open()
        deadline = Deadline(timeout)
        failed: list[tuple[TransportPeer, list[FabricError]]] = []
        try:
            for target in [peer] if peer is not None else list(self._peers.by_name.values()):
                failed.append((target, []))
                target._flush(deadline, callbacks, failed[-1][1])
            if self._manual:
                self._tell_all()
        except BaseException:
            for target, errors in failed:  # nobody was told of these, so the next flush tells
                if errors and target._unstarted is None:
                    target._unstarted = errors.pop(0)
            raise
        for _, errors in failed:
            if errors:
                raise errors.pop(0)

    # --- messages

    def handle(self, tag: int, handler: Handler | None) -> None:
        """From now on ``handler(peer, message)`` is called for messages with `tag`, 0 to 255. None: they are dropped.

        `peer` is None for a sender that is no peer of this transport. A large message may come after smaller ones that were sent
        later.
        """
        self._messages.handle(tag, handler)

    def send(
        self,
        peer: TransportPeer,
        tag: int,
        message: Any,
        *,
        callback: Callback | None = None,
        context: Any = None,
        data: Any = None,
    ) -> Outcome:
        """Sends a message of at most `message_size` bytes to the peer's handler for `tag`. The buffer is free on return."""
        return self._messages.send(peer, tag, message, (callback, context, data))

    # --- the end

    def close(self) -> None:
        """Ends memory and its cache, endpoints, their queues and address vectors, then domains. What is outstanding fails.

        Closing twice is harmless.
        """
        if self._peers.closed:
            return
        self._peers.closed = True
        self._resources.close()
        # The program is told of all remaining ends. Operations that wait for their turn end with an error, too.
        self._tell_all()
        for peer in list(self._peers.by_name.values()):
            peer._ordering.advance_all()
        self._tell_all()

    def _tell_all(self) -> None:
        for module in self._modules:
            module.completions.tell_all()

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._peers.closed:
            return "<Transport closed>"
        return (
            f"<Transport {' + '.join(info.spec for info in self.modules)} peers={len(self._peers.by_name)}>"
        )
