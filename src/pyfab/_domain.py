"""Domains: an opened link, or several linked ones, with everything made from it."""

from __future__ import annotations

import atexit
import math
import operator
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike
from pyfab import _core
from pyfab._endpoint import Endpoint
from pyfab._enums import Access, AVType, Caps, MRFlag, MRMode
from pyfab._errors import BadFlagsError, BusyError, InvalidArgumentError, NotSupportedError
from pyfab._info import Info, make_info
from pyfab._queues import AddressVector, CompletionQueue, Counter, EventQueue
from pyfab._region import MemoryRegion

__all__ = ["Domain"]

_SUPPORTED_MODES = MRMode.VIRT_ADDR | MRMode.ALLOCATED | MRMode.PROV_KEY
_BASIC = MRMode.VIRT_ADDR | MRMode.ALLOCATED | MRMode.PROV_KEY
_NO_CAPS, _NO_FLAGS = Caps(0), MRFlag(0)
_DEFAULT_QUEUE = 4096  # entries of the queue that an endpoint makes for itself


class Domain:
    """Opens links for communication. Made of it: regions, memory, endpoints, address vectors, queues and counters.

    spec: one provider ("shm", "tcp", "tcp:eth0") or several joined into a linked one ("shm+tcp"), alternatives with "|"; an
    Info; None takes $FI_LNX_PROV_LINKS, else the best links found. mr_mode: the demands on registered memory that are in force.
    auth_key: bytes that peers must also have. progress: "auto" serves peers from a thread of the library, "manual" only inside
    calls. peer_deadline: seconds without a sign of life until a peer counts as lost. settings: of the providers, for
    instance tcp_listen="10.0.0.5", shm_copy="ring".

    Leaving a `with` block closes what the domain still owns. Safe from any thread; a child process of fork() gets ClosedError.
    """

    def __init__(
        self,
        spec: str | Info | None = None,
        *,
        mr_mode: MRMode = MRMode.SCALABLE,
        caps: Caps = _NO_CAPS,
        auth_key: bytes | None = None,
        strict_keys: bool = False,
        progress: Literal["auto", "manual"] = "auto",
        peer_deadline: float = 10.0,
        **settings: str | int,
    ) -> None:
        if str(progress) not in ("auto", "manual"):
            raise InvalidArgumentError(f'progress={progress!r}: it is "auto" or "manual"')
        if isinstance(spec, Info):
            spec = spec.spec
        elif spec is not None and not str(spec).strip():
            raise InvalidArgumentError(
                f"spec={spec!r}: a link is a string such as 'shm', 'tcp:eth0' or 'shm+tcp'"
            )
        try:
            deadline = float(peer_deadline)
        except (TypeError, ValueError):
            deadline = 0.0
        if not (math.isfinite(deadline) and deadline > 0):
            raise InvalidArgumentError(f"peer_deadline={peer_deadline!r}: it is a positive number of seconds")
        mode = MRMode(mr_mode)
        in_force = (mode & ~MRMode.BASIC) | _BASIC if mode & MRMode.BASIC else mode
        if in_force & ~_SUPPORTED_MODES:
            raise NotSupportedError(f"mr_mode {in_force & ~_SUPPORTED_MODES!r} is not offered by this build")
        self._core = _core.open_domain(
            str(spec or ""),
            int(in_force),
            bytes(auth_key or b""),
            strict_keys,
            progress == "manual",
            deadline,
            {name: str(value) for name, value in settings.items()},
        )
        self._info = make_info(self._core.info, mode)
        self._owned: weakref.WeakSet[Any] = weakref.WeakSet()
        if caps & self._info.caps != caps:
            self._core.close(True)
            raise NotSupportedError(
                f"{self._info.spec} offers {self._info.caps!r}, which lacks {caps & ~self._info.caps!r}"
            )

    @property
    def info(self) -> Info:
        return self._info

    @property
    def closed(self) -> bool:
        return self._core.closed

    def register(
        self,
        buffer: Any,
        access: Access,
        *,
        key: int | None = None,
        offset: int = 0,
        flags: MRFlag = _NO_FLAGS,
        context: object = None,
    ) -> MemoryRegion:
        """Registers memory without copying it, usable by peers at once.

        buffer: anything with the buffer protocol, C-contiguous; or a list of such, which becomes one region with offsets running
        through. It is kept alive until the region closes. access: what peers and local operations may do. key: any 64-bit int of
        your choice that peers may use without an exchange; None lets the library choose. offset: must be 0 (MR-4).
        flags: MRFlag.PMEM for memory mapped from a file.
        """
        self._core.check_open()
        if offset != 0:
            raise InvalidArgumentError(
                f"offset={offset}: it is reserved and must be 0; slice the buffer instead"
            )
        if int(access) & ~int(Access.ALL):
            raise InvalidArgumentError(
                f"access={access!r}: it is a combination of Access.SEND, RECV, READ, WRITE, REMOTE_READ, REMOTE_WRITE"
            )
        if key is not None and not 0 <= operator.index(key) < 2**64:
            raise InvalidArgumentError(f"key={key}: a key is an int from 0 to 2**64 - 2")
        if int(flags) & ~int(MRFlag.PMEM):
            raise BadFlagsError(f"flags={flags!r}: a region takes MRFlag.PMEM or none")
        return MemoryRegion(self, buffer, Access(access), key, flags, context)

    def alloc(
        self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = float, *, zero: bool = True
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """A new array in memory that peers on the node map directly once it is registered: the fastest path.

        C-contiguous, page-aligned, and zeroed whatever `zero` says: the kernel gives no other pages. It lives as long as the
        array, its views and its regions.
        """
        del zero
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            raise InvalidArgumentError("cannot allocate an array of Python objects for peers")
        dims = tuple(operator.index(n) for n in (shape if isinstance(shape, Sequence) else (shape,)))
        if any(n < 0 for n in dims):
            raise InvalidArgumentError(f"shape={dims}: dimensions are not negative")
        nbytes = math.prod(dims) * dtype.itemsize
        if nbytes >= 2**47:
            raise InvalidArgumentError(
                f"shape={dims}, dtype={dtype}: {nbytes} bytes are more than an address space holds"
            )
        memory = self._core.allocate(nbytes)
        return np.asarray(memoryview(memory))[:nbytes].view(dtype).reshape(dims)

    def endpoint(
        self, av: AddressVector | None = None, cq: CompletionQueue | None = None, *, contexts: int = 1
    ) -> Endpoint:
        """Opens an endpoint, enabled on return. Without `av` or `cq` it makes its own.

        Its own queue holds the latest entries and forgets older ones; one that you pass refuses operations when it is full.
        """
        self._core.check_open()
        own_av, own_cq = av is None, cq is None
        return Endpoint(
            self,
            self.address_vector() if av is None else av,
            CompletionQueue(self, _DEFAULT_QUEUE, True) if cq is None else cq,
            contexts,
            own_av,
            own_cq,
        )

    def address_vector(self, type: AVType = AVType.TABLE, *, count: int = 0) -> AddressVector:
        """A table of peers. `count`, the number expected, is a hint and never a limit; a table needs none."""
        del count
        self._core.check_open()
        return AddressVector(self, type)

    def completion_queue(self, size: int = 4096) -> CompletionQueue:
        """A queue with room for `size` entries; operations are refused with FI_EAGAIN while it is full."""
        self._core.check_open()
        return CompletionQueue(self, size, False)

    def event_queue(self) -> EventQueue:
        self._core.check_open()
        return EventQueue(self)

    def counter(self) -> Counter:
        self._core.check_open()
        return Counter(self)

    def progress(self) -> None:
        """Moves what can be moved without waiting, in every endpoint (manual progress)."""
        self._core.check_open()
        self._core.progress()

    def stats(self) -> dict[str, Any]:
        """Counts of what is open, and per endpoint and peer what moved over which link."""
        self._core.check_open()
        peers = []
        for endpoint in [item for item in self._owned if isinstance(item, Endpoint) and not item.closed]:
            for peer, _ in endpoint.av:
                counts = endpoint.counts(peer)
                if counts["posted"]:
                    peers.append({"peer": peer, "link": endpoint.report(peer)[0], **counts})
        return {"regions": self._core.regions, "peers": peers}

    def close(self) -> None:
        """Ends the domain. BusyError while endpoints or regions are open; closing twice is harmless."""
        if self.closed:
            return
        busy = [item for item in self._owned if isinstance(item, Endpoint | MemoryRegion) and not item.closed]
        if busy:
            raise BusyError(
                f"the domain still has {len(busy)} open endpoints or regions, for instance {busy[0]!r}; "
                "close them first, or use `with`"
            )
        self._end()

    def _end(self) -> None:
        # Regions first: peers are out before anything else goes.
        order = {MemoryRegion: 0, Endpoint: 1}
        for item in sorted(self._owned, key=lambda thing: order.get(type(thing), 2)):
            item._end()
        self._core.close(True)

    def __enter__(self) -> Domain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __repr__(self) -> str:
        return f"<Domain {self._info.spec}{' closed' if self.closed else ''} regions={self._core.regions}>"

    def _repr_html_(self) -> str:
        info = self._info
        rows = {
            "links": " + ".join(info.links),
            "mr_mode": repr(info.mr_mode),
            "caps": repr(info.caps),
            "regions": self._core.regions,
        }
        cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
        return f"<table><caption>Domain{' (closed)' if self.closed else ''}</caption>{cells}</table>"


# The progress threads must be gone before the interpreter is.
atexit.register(_core.close_all)
