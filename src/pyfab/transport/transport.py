"""Put, get, atomics and small messages with callbacks: what runtimes and languages are built on."""

from __future__ import annotations

import enum
import itertools
import operator
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from pyfab._core import Context, Operation
from pyfab.core.buffers import bytes_of
from pyfab.core.deadline import Deadline
from pyfab.core.dmabuf import DmaBuf
from pyfab.core.domain import Domain
from pyfab.core.enums import Access, AtomicOp, MRMode
from pyfab.core.errors import (
    BusyError,
    ClosedError,
    FabricError,
    InvalidArgumentError,
    NotSupportedError,
    OperationTimeout,
    PeerLostError,
    UnreachableError,
)
from pyfab.core.region import MemoryRegion
from pyfab.group.path_choice import measure, moves_itself, rank
from pyfab.transport.ordering import Ordering, Turn
from pyfab.transport.settings import (
    REFUSED_MODES,
    Candidate,
    Limits,
    Tunables,
    candidates,
    contexts_for,
    slice_of,
)

if TYPE_CHECKING:
    from pyfab.core.info import Info

__all__ = ["Outcome", "Registration", "RemoteHandle", "Transport", "TransportPeer"]

_AGAIN = 11
_A_TURN = 0.01  # seconds
_MODULES = 8  # keys that a handle has room for
_HANDLE = struct.Struct(f"<4sIQQQ{_MODULES}Q")  # magic, rights, length, address, local descriptor, keys
_MAGIC = b"PFH1"
_CARD = b"PFT2"
_HEADER = struct.Struct("<BxxxI")  # of a message: tag, length
HANDLE_SIZE = _HANDLE.size

Callback = Callable[["FabricError | None", Any, Any], object]
Handler = Callable[["TransportPeer | None", bytes], object]
Start = Callable[
    [Context, int, tuple[int, int]], Operation
]  # of what counts it, the peer and the place there
Then = tuple[Callback | None, Any, Any]  # what follows the end, with both values of the user


class Outcome(enum.Enum):
    """What became of a call that starts an operation."""

    QUEUED = "queued"  # the callback will tell
    DONE = "done"  # complete; no callback follows
    TRY_AGAIN = "try again"  # the way is full; nothing was started
    NOT_POSSIBLE = "not possible"  # larger than the limit, or misaligned; nothing was started


class RemoteHandle:
    """A peer's registration, as it came in `Registration.to_bytes`."""

    def __init__(self, data: bytes) -> None:
        if len(data) != HANDLE_SIZE or data[:4] != _MAGIC:
            raise InvalidArgumentError(
                f"a handle has {HANDLE_SIZE} bytes, as Registration.to_bytes() makes them"
            )
        _, access, self.nbytes, self.address, _, *self._keys = _HANDLE.unpack(data)
        self.access = Access(access & int(Access.ALL))

    def _place(self, module: _Module, number: int, address: int) -> tuple[int, int]:
        """(address, key) for the core, of an address that the user gave; `number`: of the peer's module."""
        return address - (0 if module.virtual else self.address), self._keys[number % _MODULES]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.nbytes} bytes at {self.address:#x}>"


class Registration(RemoteHandle):
    """Registered memory: a local handle, and, as bytes, a remote one for peers. Made by `Transport.register`.

    `address` is what operations on it name the first byte by: in MRMode.VIRT_ADDR its virtual address, else a number that says
    nothing of this process; programs that add offsets to it are the same in both.
    """

    def __init__(self, transport: Transport, regions: list[MemoryRegion], address: int) -> None:
        self._transport, self._regions = transport, regions
        self._uses = 0  # outstanding operations that read or write the memory here
        keys = [int(region.key) if region.access & Access.REMOTE else 0 for region in regions]
        # The descriptor means nothing to a peer, so it is blank.
        self._data = _HANDLE.pack(
            _MAGIC,
            int(regions[0].access),
            regions[0].nbytes,
            address,
            0,
            *(keys + [0] * _MODULES)[:_MODULES],
        )
        super().__init__(self._data)

    def to_bytes(self) -> bytes:
        """HANDLE_SIZE bytes, to be sent to peers as they are."""
        return self._data

    @property
    def descriptor(self) -> int:
        """What the memory is named by locally."""
        return self._regions[0].desc


class TransportPeer:
    """Another transport. `reachable` says whether operations can be started, `why` why not."""

    def __init__(self, transport: Transport, name: bytes) -> None:
        self.name = name
        self.why = ""
        self.data: Any = None  # the user's
        # Seconds of a small get, by module; measured where several lead to the peer.
        self.latency: dict[int, float] = {}
        self._transport = transport
        self._handles: list[int | None] = []  # by module
        self._modules = 1  # that it has itself
        self._chosen: _Module | None = None  # which operations take; None: to be chosen anew
        # (module, context, whether it waits for room) → what counts its operations
        self._scopes: dict[tuple[int, int, bool], Context] = {}
        self._ordering = Ordering(self._full)
        self._unstarted: FabricError | None = None  # what failed in its turn, for the next flush
        self._lock = threading.Lock()

    @property
    def reachable(self) -> bool:
        """Whether one of the modules leads there."""
        return any(handle is not None for handle in self._handles)

    @property
    def link(self) -> str:
        """The link that operations take: through memory on this node, else the fastest; "" where none leads there."""
        return self._transport._usable(self).domain.info.spec if self.reachable else ""

    @property
    def outstanding(self) -> int:
        """Operations that have not ended."""
        return self._ordering.waiting + sum(scope._outstanding for scope in list(self._scopes.values()))

    def _scope(self, module: _Module, number: int, wait: bool = False) -> Context:
        key = module.number, number, wait
        found = self._scopes.get(key)
        if found is None:
            with self._lock:
                found = self._scopes.setdefault(key, module.endpoint.context(number)._scope(no_wait=not wait))
        return found

    def _full(self, order: int) -> None:
        """An ordered operation whose turn has come found no room.

        Under manual progress the next call tries again. Otherwise a thread waits for room, because whoever was told of an end
        may be the one that moves things.
        """
        if not self._transport._manual:
            waiting = threading.Thread(
                target=self._ordering.advance,
                args=(order,),
                kwargs={"wait": True},
                name="pyfab-ordered",
                daemon=True,
            )
            try:
                waiting.start()
            except RuntimeError:  # there is no other thread to be had
                pass
            else:
                return
        self._transport._stalled[self, order] = None

    def __repr__(self) -> str:
        return f"<TransportPeer {'reachable' if self.reachable else 'unreachable: ' + self.why}>"


class _Module:
    """One device: a domain with an endpoint, whose contexts are given to threads."""

    def __init__(self, number: int, domain: Domain, contexts: int, tunables: Tunables) -> None:
        self.number, self.domain = number, domain
        self.endpoint = domain.endpoint(contexts=contexts)
        self.virtual = bool(domain.info.mr_mode & (MRMode.VIRT_ADDR | MRMode.BASIC))
        self.shared = domain.info.links == ("shm",)
        self.direct = all(map(moves_itself, domain.info.links))
        self.limits = Limits.of(domain.info, tunables)
        self.events = [deque[Callable[[], None]]() for _ in range(contexts)]  # by context: ends to be told
        self.told = [0] * contexts  # of them, since progress() asked
        self._next = itertools.count()
        self._mine = threading.local()

    def context(self) -> int:
        """The number of the calling thread's context, which it keeps."""
        number: int | None = getattr(self._mine, "number", None)
        if number is None:
            number = self._mine.number = next(self._next) % self.endpoint.contexts
        return number


class _Here(threading.local):
    """What holds for the calling thread."""

    telling = False  # it is inside a callback or a handler


class Transport:
    """One-sided operations, atomics and small messages to peers, over every usable device of this process.

    spec: a link for one module, a list of links, or None for all that are found, of which the processes of a node (`local_rank`
    of `local_size`) share the devices out. Tunables are keywords or variables of the environment, see `Tunables`; `candidates`
    tells what was looked at. Peers are made of the `name` of another transport. on_error(peer, error) is called when a peer turns
    out to be lost; others are not concerned.

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
        self.on_error = on_error
        self._closed = False
        self._peers: dict[bytes, TransportPeer] = {}
        self._by_handle: dict[tuple[int, int], TransportPeer] = {}
        self._handlers: dict[int, Handler] = {}
        self._receives = 0
        self._stalled: dict[tuple[TransportPeer, int], None] = {}  # orders that wait for room
        self._lock = threading.Lock()
        self._here = _Here()
        self._addresses = itertools.count(1)  # of registrations, where they are not virtual
        self.candidates: list[Candidate] = []
        self._modules: list[_Module] = []
        options = {"mr_mode": mr_mode, "mr_cache": "auto", **(domain or {})}
        if self.tunables.progress != "unspecified":
            options["progress"] = self.tunables.progress
        self._manual = options.get("progress") == "manual"
        with ExitStack() as undo:
            domains = [
                undo.enter_context(Domain(link, **options))
                for link in self._links(spec, mr_mode, local_rank, local_size)
            ]
            contexts = contexts_for(self.tunables, [opened.info.max_contexts for opened in domains])
            for number, opened in enumerate(domains):
                module = _Module(number, opened, contexts, self.tunables)
                undo.callback(module.endpoint.close)
                self._modules.append(module)
            if self.tunables.mode != "one_sided":
                self._post_receives()
            self._beacon = self.register(
                np.zeros(8, np.uint8), Access.REMOTE_READ
            )  # whose reading peers time
            self._resources = undo.pop_all()

    def _links(
        self, spec: str | Sequence[str] | None, mr_mode: MRMode, local_rank: int, local_size: int
    ) -> Sequence[str | Info]:
        if isinstance(spec, str):
            spec = [spec]
        if spec is not None:
            if not spec or len(spec) > _MODULES:
                raise InvalidArgumentError(f"{len(spec)} links: a transport has 1 to {_MODULES} modules")
            if mr_mode & REFUSED_MODES:
                raise FabricError(
                    61,
                    f"mr_mode={mr_mode!r} demands {mr_mode & REFUSED_MODES!r}, which a transport does not meet",
                )
            return spec
        found, self.candidates = candidates(self.tunables, mr_mode)
        if not found:
            looked = "; ".join(f"{link}: {reason}" for link, _, reason in self.candidates) or "none was found"
            raise FabricError(61, f"no link can carry a transport ({looked})")
        return slice_of(found, local_rank, local_size)[:_MODULES]

    # --- what there is

    @property
    def modules(self) -> list[Info]:
        """The devices in use."""
        return [module.domain.info for module in self._modules]

    @property
    def limits(self) -> list[Limits]:
        """Of each module."""
        return [module.limits for module in self._modules]

    @property
    def posted_receives(self) -> int:
        """Receives that wait for messages."""
        return self._receives

    @property
    def atomic_operations(self) -> dict[AtomicOp, tuple[str, ...]]:
        """The types that each operation takes, as NumPy writes them; others are refused with NotSupportedError."""
        integers = tuple(kind + size for size in "1248" for kind in "iu")
        bitwise = (AtomicOp.BOR, AtomicOp.BAND, AtomicOp.BXOR, AtomicOp.MSWAP)
        return {op: integers if op in bitwise else (*integers, "f4", "f8") for op in AtomicOp}

    @property
    def global_atomics(self) -> bool:
        """Whether atomics are atomic also with atomic instructions of the processor on the same memory."""
        return all(link.partition(":")[0] in ("shm", "tcp") for info in self.modules for link in info.links)

    @property
    def name(self) -> bytes:
        """What peers make a `TransportPeer` of."""
        self._check()
        names = [module.endpoint.address for module in self._modules]
        return (
            _CARD
            + self._beacon.to_bytes()
            + struct.pack("<H", len(names))
            + b"".join(struct.pack("<I", len(n)) + n for n in names)
        )

    # --- peers

    def peer(self, name: bytes) -> TransportPeer:
        """The peer of that name, always the same object. Module i leads to module i modulo the number of the peer's.

        A name that cannot be read, or that no link leads to, makes an unreachable peer; others are not concerned.
        """
        self._check()
        with self._lock:
            if name in self._peers:
                return self._peers[name]
            peer = self._peers[name] = TransportPeer(self, name)
            names, beacon = _names_in(name)
            if not names:
                peer.why = "its name is damaged, or names no module"
            for module in self._modules:
                handle = None
                try:
                    if names:
                        handle = module.endpoint.av.insert(names[module.number % len(names)])
                        self._by_handle[module.number, handle] = peer
                except (FabricError, ValueError) as error:
                    peer.why = str(error)
                peer._handles.append(handle)
            peer._modules = len(names) or 1
            self._choose_anew(peer)
        several = [m for m, handle in zip(self._modules, peer._handles, strict=True) if handle is not None]
        if beacon and len(several) > 1:
            for module in several:
                self._time(peer, module, beacon)
        return peer

    def _choose_anew(self, peer: TransportPeer) -> None:
        """Also for the others: a link that does not lead to all counts for less."""
        for known in (peer, *self._peers.values()):
            known._chosen = None

    def _time(self, peer: TransportPeer, module: _Module, beacon: RemoteHandle) -> None:
        def told(seconds: float) -> None:
            peer.latency[module.number] = seconds
            peer._chosen = None

        handle = peer._handles[module.number]
        assert handle is not None
        place = beacon._place(module, module.number % peer._modules, beacon.address)
        measure(module.endpoint.context(0), handle, place, told)

    def remove(self, peer: TransportPeer, timeout: float | None = None) -> list[FabricError]:
        """Waits until nothing is outstanding towards the peer and forgets it. What went wrong is returned, not raised."""
        errors: list[FabricError] = []
        try:
            self.flush(peer, timeout)
        except FabricError as error:
            errors.append(error)
        with self._lock:
            self._peers.pop(peer.name, None)
            for module, handle in zip(self._modules, peer._handles, strict=False):
                if handle is not None:
                    self._by_handle.pop((module.number, handle), None)
                    try:
                        module.endpoint.av.remove(handle)
                    except FabricError as error:
                        errors.append(error)
            peer._handles = [None] * len(self._modules)
            self._choose_anew(peer)
            peer.why = "it was removed"
        return errors

    # --- memory

    def register(self, buffer: Any, access: Access) -> Registration:
        """Registers memory with every module. `access` says what peers, and local operations, may do with it.

        The same memory again is found in the registration cache. Memory of a device, as a DmaBuf, is registered with the device.
        """
        self._check()
        if isinstance(buffer, DmaBuf) and not self.tunables.device_memory:
            raise NotSupportedError(
                "memory of devices is off: the transport was made with device_memory=False"
            )
        with ExitStack() as undo:
            regions = []
            for module in self._modules:
                region = module.domain.register(buffer, access)
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
        if not isinstance(handle, Registration) or handle._transport is not self:
            raise InvalidArgumentError(
                "only what this transport registered can be deregistered, not a peer's handle"
            )
        with self._lock:
            if handle._uses:
                raise BusyError(f"{handle._uses} operations use the memory; flush() first")
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
        order: int = 0,
        callback: Callback | None = None,
        context: Any = None,
        data: Any = None,
    ) -> Outcome:
        """Moves `local` to `address`; complete when it is visible there. Its buffer is the library's until then.

        One of no bytes moves nothing and is QUEUED like others, so that its callback is called once.

        order: puts and gets to one peer with the same number, if not 0, happen one after the other. One that cannot be started
        when its turn comes ends with the error that the call would have raised, and the next one follows.
        """
        return self._move(
            "write", peer, local, address, handle, local_handle, order, (callback, context, data)
        )

    def get(
        self,
        peer: TransportPeer,
        local: Any,
        address: int,
        handle: RemoteHandle,
        *,
        local_handle: Registration | None = None,
        order: int = 0,
        callback: Callback | None = None,
        context: Any = None,
        data: Any = None,
    ) -> Outcome:
        """Fills `local` from `address`. Otherwise like `put`."""
        return self._move(
            "read", peer, local, address, handle, local_handle, order, (callback, context, data)
        )

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
        """Updates the number at `address`, of 64 bits unless `dtype` says otherwise. `result`: gets what was there before.

        Operand and comparand are taken when called: they need no registration and may change at once.
        """
        number = np.dtype(dtype)
        operands = np.array(operand, number)

        def start(scope: Context, to: int, place: tuple[int, int]) -> Operation:
            if compare is not None:
                into = np.empty_like(operands) if result is None else result
                return scope.compare_atomic(op, operands, np.array(compare, number), into, to, place)
            if result is not None:
                return scope.fetch_atomic(op, operands, result, to, place)
            return scope.atomic(op, operands, to, place)

        if address % number.itemsize and not self._modules[0].virtual:
            return Outcome.NOT_POSSIBLE
        return self._start(peer, start, address, handle, None, (callback, context, data))

    def wait(
        self, call: Callable[..., Outcome], *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Repeats a call of this transport until it is not TRY_AGAIN, and waits for its end. Raises what it failed with.

        In a callback or a handler it is for manual progress alone: otherwise the end would be told only after they had returned
        (BusyError). There give the call a callback of its own, or `flush`.
        """
        if self._here.telling and not self._manual:
            raise BusyError(
                "wait() inside a callback or a handler would wait for itself; give the call a callback, or flush()"
            )
        deadline = Deadline(timeout)
        ended = threading.Event()
        failed: list[FabricError | None] = []

        def finish(error: FabricError | None, _: Any, __: Any) -> None:
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
        if failed and failed[0] is not None:
            raise failed[0]

    def _move(
        self,
        how: str,
        peer: TransportPeer,
        local: Any,
        address: int,
        handle: RemoteHandle,
        local_handle: Registration | None,
        order: int,
        then: Then,
    ) -> Outcome:
        nbytes = memoryview(local).nbytes
        limits = self._usable(peer).limits
        if nbytes > (limits.max_put if how == "write" else limits.max_get):
            return Outcome.NOT_POSSIBLE

        def start(scope: Context, to: int, place: tuple[int, int]) -> Operation:
            return getattr(scope, how)(local, to, place)  # type: ignore[no-any-return]

        if order:
            return self._in_turn(peer, operator.index(order), start, address, handle, local_handle, then)
        # One of no bytes always tells its end by the callback, even where the call itself has seen it.
        return self._start(peer, start, address, handle, local_handle, then, told=nbytes == 0)

    def _in_turn(
        self,
        peer: TransportPeer,
        order: int,
        start: Start,
        address: int,
        handle: RemoteHandle,
        local_handle: Registration | None,
        then: Then,
    ) -> Outcome:
        """Starts an operation when those before it with the same order have ended."""
        module = self._usable(peer)
        number = module.context()

        def begin(accepted: bool, wait: bool) -> Operation | None:
            return self._begin(peer, start, address, handle, module, number, accepted=accepted, wait=wait)

        def follow(operation: Operation) -> None:
            self._follow(operation, module, number, peer, local_handle, then, order)

        def fail(error: BaseException) -> None:
            why = error
            if not isinstance(why, FabricError):
                why = InvalidArgumentError(
                    f"the operation could not be started: {type(error).__name__}: {error}"
                )
                why.__cause__ = error
            if peer._unstarted is None:
                peer._unstarted = why
            module.events[number].append(lambda: self._finish(peer, local_handle, why, then))
            if not self._manual:
                self._tell(module, number, sys.maxsize)

        self._use(local_handle, 1)
        taken = False
        try:
            taken = peer._ordering.enter(order, Turn(begin, follow, fail), self.tunables.queue_depth)
        finally:
            if not taken:
                self._use(local_handle, -1)
        return Outcome.QUEUED if taken else Outcome.TRY_AGAIN

    def _start(
        self,
        peer: TransportPeer,
        start: Start,
        address: int,
        handle: RemoteHandle,
        local_handle: Registration | None,
        then: Then,
        *,
        told: bool = False,
    ) -> Outcome:
        """told: the callback tells the end, also of what is complete at once."""
        module = self._usable(peer)
        number = module.context()
        operation = self._begin(peer, start, address, handle, module, number)
        if operation is None:
            return Outcome.TRY_AGAIN
        if operation.done() and operation._failure is None and not told:
            return Outcome.DONE
        self._use(local_handle, 1)
        self._follow(operation, module, number, peer, local_handle, then)
        return Outcome.QUEUED

    def _begin(
        self,
        peer: TransportPeer,
        start: Start,
        address: int,
        handle: RemoteHandle,
        module: _Module,
        number: int,
        *,
        accepted: bool = False,
        wait: bool = False,
    ) -> Operation | None:
        """Posts an operation through context `number` of a module. None: the way is full; wait: it waits for room.

        accepted: the user was told that it is QUEUED, so `queue_depth` does not refuse it any more.
        """
        if self.tunables.mode == "two_sided":
            raise NotSupportedError(
                'put, get and atomics are off: the transport was made with mode="two_sided"'
            )
        scope = peer._scope(module, number, wait)
        if not accepted:
            if scope._outstanding >= self.tunables.progress_threshold:
                self.progress()
            if scope._outstanding >= self.tunables.queue_depth:
                return None
        to = peer._handles[module.number]
        if to is None:  # removed meanwhile
            raise UnreachableError(f"the peer cannot be reached: {peer.why}")
        try:
            return start(scope, to, handle._place(module, module.number % peer._modules, address))
        except FabricError as error:
            if error.errno == _AGAIN and not wait:
                return None
            if isinstance(error, UnreachableError | PeerLostError):
                self._lost(peer, error)
            raise

    def _follow(
        self,
        operation: Operation,
        module: _Module,
        number: int,
        peer: TransportPeer,
        local_handle: Registration | None,
        then: Then,
        order: int = 0,
    ) -> None:
        """Sees to it that the user is told of the end, and that those behind it in its order go on."""

        def ended(ended: Operation) -> None:
            error = ended._failure
            if order:
                peer._ordering.followed(order, ended)
            module.events[number].append(lambda: self._finish(peer, local_handle, error, then, order))
            if not self._manual:
                self._tell(module, number, sys.maxsize)

        operation.add_done_callback(ended)

    def _use(self, handle: Registration | None, difference: int) -> None:
        if handle is not None:
            with self._lock:
                handle._uses += difference

    def _finish(
        self,
        peer: TransportPeer,
        local_handle: Registration | None,
        error: Any,
        then: Then,
        order: int = 0,
    ) -> None:
        self._use(local_handle, -1)
        try:
            if isinstance(error, PeerLostError | UnreachableError):
                self._lost(peer, error)
            callback, context, data = then
            if callback is not None:
                callback(error, context, data)
        finally:
            if order:
                peer._ordering.advance(order)

    def _lost(self, peer: TransportPeer, error: FabricError) -> None:
        if self.on_error is not None:
            try:
                self.on_error(peer, error)
            except Exception as raised:
                _report(raised, self.on_error)

    def _usable(self, peer: TransportPeer) -> _Module:
        self._check()
        if peer._transport is not self:
            raise InvalidArgumentError("the peer belongs to another transport")
        chosen = peer._chosen  # which others may reset meanwhile
        if chosen is None:
            chosen = peer._chosen = self._choose(peer)
        return chosen

    def _choose(self, peer: TransportPeer) -> _Module:
        """Through memory on this node; else a device that moves bytes itself, to all; else messages. Of equals the fastest."""
        leading = [m for m, handle in zip(self._modules, peer._handles, strict=False) if handle is not None]
        if not leading:
            raise UnreachableError(f"the peer cannot be reached: {peer.why}")
        if len(leading) == 1:
            return leading[0]
        far = [
            other._handles
            for other in list(self._peers.values())
            if other.reachable
            and len(other._handles) == len(self._modules)  # or another thread is inserting it
            and not any(self._modules[i].shared and h is not None for i, h in enumerate(other._handles))
        ]
        timed = all(module.number in peer.latency for module in leading)

        def place(module: _Module) -> tuple[bool, bool, float]:
            to_all = module.direct and all(handles[module.number] is not None for handles in far)
            return rank(module.shared, to_all, peer.latency[module.number] if timed else module.number)

        return min(leading, key=place)

    # --- completion

    def progress(self) -> int:
        """Moves what can be moved without waiting; how many operations have ended.

        At most `completions_per_read` of the thread's own context in each module; if there are none, the other contexts get their
        turn, once around.
        """
        self._check()
        for peer, order in list(self._stalled):
            self._stalled.pop((peer, order), None)
            peer._ordering.advance(order)
        return sum(self._progress(module) for module in self._modules)

    def _progress(self, module: _Module) -> int:
        own = module.context()
        for step in range(module.endpoint.contexts):
            number = (own + step) % module.endpoint.contexts
            if self._manual:
                module.endpoint.context(number).progress()
                self._tell(module, number, self.tunables.completions_per_read)
            with self._lock:
                ended = min(module.told[number], self.tunables.completions_per_read)
                module.told[number] -= ended
            if ended:
                return ended
        return 0

    def _tell(self, module: _Module, number: int, at_most: int) -> None:
        """Runs what follows the ends of operations. An exception there is reported and hides no other end."""
        former, self._here.telling = self._here.telling, True
        try:
            for _ in range(min(at_most, len(module.events[number]))):
                try:
                    event = module.events[number].popleft()
                except IndexError:  # another thread was faster
                    return
                with self._lock:
                    module.told[number] += 1
                try:
                    event()
                except Exception as error:
                    _report(error, event)
        finally:
            self._here.telling = former

    def flush(
        self, peer: TransportPeer | None = None, timeout: float | None = None, *, callbacks: bool = False
    ) -> None:
        """Waits until all that was started towards the peer, or all, before the call has ended.

        Raises the error of the first of them that failed, once, whether or not a callback is told. callbacks: waits also until
        the callbacks have returned; not to be asked for in one (BusyError). Ends under endless posting, and in callbacks too.
        """
        self._check()
        deadline = Deadline(timeout)
        failed: list[FabricError] = []
        for target in [peer] if peer is not None else list(self._peers.values()):
            self._flush_ordered(target, deadline, failed)
            for scope in list(target._scopes.values()):
                _flush(scope, deadline.remaining(), callbacks, failed)
            unstarted, target._unstarted = target._unstarted, None
            if unstarted is not None:
                failed.append(unstarted)
        if self._manual:
            for module in self._modules:
                for number in range(module.endpoint.contexts):
                    self._tell(module, number, sys.maxsize)
        if failed:
            raise failed[0]

    def _flush_ordered(self, peer: TransportPeer, deadline: Deadline, failed: list[FabricError]) -> None:
        """Waits until the ordered operations that were accepted have ended: they start one after the other."""
        ordering = peer._ordering
        goals = ordering.goals()
        while not ordering.reached(goals, 0):
            if deadline.over:
                raise OperationTimeout(f"ordered operations are still outstanding after {deadline}")
            busy = [scope for scope in list(peer._scopes.values()) if scope._outstanding]
            for scope in busy:
                with suppress(OperationTimeout):
                    _flush(scope, _A_TURN, False, failed)
            # In a callback nobody else starts the next ones: they follow the callbacks of those before them.
            ordering.advance_all()
            if not busy:
                ordering.reached(goals, _A_TURN)

    # --- messages

    def handle(self, tag: int, handler: Handler | None) -> None:
        """From now on ``handler(peer, message)`` is called for messages with `tag`, 0 to 255; None: for none.

        `peer` is None for a sender that is no peer of this transport. A large message may come after smaller ones that were sent
        later.
        """
        if not 0 <= tag <= 255:
            raise InvalidArgumentError(f"tag={tag}: it is an int from 0 to 255")
        if handler is None:
            self._handlers.pop(tag, None)
        else:
            self._handlers[tag] = handler

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
        if self.tunables.mode == "one_sided":
            raise NotSupportedError('messages are off: the transport was made with mode="one_sided"')
        if not 0 <= tag <= 255:
            raise InvalidArgumentError(f"tag={tag}: it is an int from 0 to 255")
        body = bytes_of("message", message)
        if len(body) > self.tunables.message_size:
            return Outcome.NOT_POSSIBLE
        module = self._usable(peer)
        number = module.context()
        scope = peer._scope(module, number)
        if scope._outstanding >= self.tunables.queue_depth:
            return Outcome.TRY_AGAIN
        framed = _HEADER.pack(tag, len(body)) + body
        to = peer._handles[module.number]
        assert to is not None
        if self.tunables.inject and len(framed) <= module.limits.inject_size:
            try:
                scope.inject(framed, to)
            except FabricError as error:
                if error.errno != _AGAIN:
                    raise
            else:
                return Outcome.DONE
        try:
            operation = scope.send(framed, to)
        except FabricError as error:
            if error.errno == _AGAIN:
                return Outcome.TRY_AGAIN
            raise

        self._follow(operation, module, number, peer, None, (callback, context, data))
        return Outcome.QUEUED

    def _post_receives(self) -> None:
        size = self.tunables.message_size + _HEADER.size
        for module in self._modules:
            for number in range(module.endpoint.contexts):
                for _ in range(self.tunables.posted_receives):
                    self._post_receive(module, number, np.empty(size, np.uint8))
                    self._receives += 1

    def _post_receive(self, module: _Module, number: int, buffer: NDArray[np.uint8]) -> None:
        # A receive that waits is no reason to keep a transport that nobody has.
        receiver = weakref.WeakMethod(self._received)
        which = module.number

        def arrived(operation: Operation) -> None:
            received = receiver()
            if received is not None:
                received(operation, which, number, buffer)

        module.endpoint.context(number).recv(buffer).add_done_callback(arrived)

    def _received(self, operation: Operation, which: int, number: int, buffer: NDArray[np.uint8]) -> None:
        module = self._modules[which]
        error = operation.exception(0)
        if self._closed or (error is not None and error.errno in (9, 125)):
            return
        message = b"" if error is not None else buffer[: operation.result(0).nbytes].tobytes()
        source = -1 if error is not None else int(operation.result(0).source)
        try:
            self._post_receive(module, number, buffer)
        except ClosedError:
            return
        if len(message) >= _HEADER.size:
            module.events[number].append(lambda: self._deliver(module, source, message))
            if not self._manual:
                self._tell(module, number, sys.maxsize)

    def _deliver(self, module: _Module, source: int, message: bytes) -> None:
        tag, length = _HEADER.unpack_from(message)
        handler = self._handlers.get(tag)
        if handler is not None and length == len(message) - _HEADER.size:
            handler(self._by_handle.get((module.number, source)), message[_HEADER.size :])

    # --- the end

    def close(self) -> None:
        """Ends endpoints, then their queues and peers, then domains. What is outstanding fails; closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        contexts = [
            (module, number) for module in self._modules for number in range(module.endpoint.contexts)
        ]
        self._resources.close()
        # What has not been told, or not been started, is told of the end.
        for module, number in contexts:
            self._tell(module, number, sys.maxsize)
        for peer in list(self._peers.values()):
            peer._ordering.advance_all()
        for module, number in contexts:
            self._tell(module, number, sys.maxsize)

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "<Transport closed>"
        return f"<Transport {' + '.join(info.spec for info in self.modules)} peers={len(self._peers)}>"

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the transport is closed")


def _report(error: Exception, where: object) -> None:
    what: Any = SimpleNamespace(
        exc_type=type(error),
        exc_value=error,
        exc_traceback=error.__traceback__,
        err_msg="Exception ignored in a callback of a transport",
        object=where,
    )
    sys.unraisablehook(what)


def _flush(scope: Context, timeout: float | None, callbacks: bool, failed: list[FabricError]) -> None:
    """Waits for the operations of a scope and adds what the first of them failed with; raises what is wrong with the wait."""
    try:
        scope._flush_scope(timeout, callbacks)
    except (BusyError, ClosedError, OperationTimeout):
        raise
    except FabricError as error:
        failed.append(error)


def _names_in(name: bytes) -> tuple[list[bytes], RemoteHandle | None]:
    """The endpoint names in a transport's name, and its beacon; none if it is damaged."""
    nothing: tuple[list[bytes], None] = [], None
    at = len(_CARD) + HANDLE_SIZE
    if len(name) < at + 2 or name[:4] != _CARD:
        return nothing
    try:
        beacon = RemoteHandle(name[len(_CARD) : at])
    except InvalidArgumentError:
        return nothing
    (count,) = struct.unpack_from("<H", name, at)
    names, at = [], at + 2
    for _ in range(count):
        if at + 4 > len(name):
            return nothing
        (length,) = struct.unpack_from("<I", name, at)
        at += 4
        if length > len(name) - at:
            return nothing
        names.append(name[at : at + length])
        at += length
    return (names, beacon) if at == len(name) and names else nothing
