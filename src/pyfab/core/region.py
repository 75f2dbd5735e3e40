"""Memory regions: what peers may reach."""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from pyfab import _core
from pyfab._core import RemoteRegion
from pyfab.core.address_vector import AddressVector
from pyfab.core.buffers import Range, array_of, bytes_of, pieces_of
from pyfab.core.dmabuf import DmaBuf, mapped_core
from pyfab.core.domain_base import DomainBase
from pyfab.core.endpoint import Endpoint
from pyfab.core.enums import KEY_NOTAVAIL, Access, Caps, MRFlag, RMAEvent, flag_names
from pyfab.core.errors import (
    BadFlagsError,
    BusyError,
    ClosedError,
    InvalidArgumentError,
    NotSupportedError,
    OperationTimeout,
    TooSmallError,
)
from pyfab.core.memory.attributes import MRAttr, RawKey
from pyfab.core.memory.grant import Grant, GrantPeers, Until, addresses_of, seconds_until
from pyfab.core.memory.mapped import shared_memory_of
from pyfab.core.queues import Counter
from pyfab.core.stats import html_table
from pyfab.display.pictures import DrawnRegion

__all__ = ["MRAttr", "MemoryRegion", "Range", "RawKey", "RegionSlice", "RemoteRegion"]

_NOT_IMPLEMENTED = 38  # ENOSYS, as fi_mr(3) has it for what a domain lacks


def _auth_keys(domain: DomainBase, given: object, by_handle: bool) -> list[bytes]:
    """The keys of a region, of which peers need one, from what register() got as auth_key. [] stands for the domain's key."""
    if by_handle:
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], AddressVector)):
            raise InvalidArgumentError(
                "MRFlag.AUTH_KEY: auth_key is (address vector, handle that insert_auth_key() gave)"
            )
        _check_vector(domain, given[0])
        return [given[0]._keys[given[1]]]
    if isinstance(given, AddressVector):
        _check_vector(domain, given)
        return [key for key, _ in given._keys.numbered()]
    if isinstance(given, list | tuple):
        if not given:
            raise InvalidArgumentError(
                "auth_key: an empty list would let nobody in; None stands for the domain's key"
            )
        return [bytes_of("auth_key", key) for key in given]
    return [] if given is None else [key for key in (bytes_of("auth_key", given),) if key]


def _check_vector(domain: DomainBase, av: AddressVector) -> None:
    av._check_open()
    if av._domain is not domain:
        raise InvalidArgumentError("auth_key: the address vector belongs to another domain")


def _memory_of(item: Any) -> Any:
    """What a region keeps of a buffer. A DmaBuf may be closed before the region, so the region keeps what is behind it."""
    if isinstance(item, Range):
        return item
    memory = item._opened() if isinstance(item, DmaBuf) else array_of(item)
    if isinstance(memory, np.ndarray) and memory.dtype.hasobject:
        raise InvalidArgumentError(
            "cannot register an array of Python objects: peers could do nothing with their addresses"
        )
    return memory


def _pieces(memories: list[Any], limit: int) -> list[Any]:
    """The contiguous pieces of a region's memory, as the core takes them."""
    pieces: list[Any] = []
    for item in memories:
        if isinstance(item, np.ndarray):
            pieces += pieces_of(item, limit)
        else:
            pieces.append((item.address, item.length) if isinstance(item, Range) else item)
    return pieces


def _described(memories: list[Any]) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Type and shape of a region's items. None for memory that is plain bytes."""
    only = memories[0] if len(memories) == 1 else None
    if isinstance(only, memoryview) and only.format not in (None, "B"):
        only = np.asarray(only)
    return (only.dtype, only.shape) if isinstance(only, np.ndarray) else None


class RegionSlice(NamedTuple):
    """A part of a region: `length` bytes from `offset`, such as `mr[8:64]`. Operations take it as a local buffer, too."""

    region: MemoryRegion
    offset: int
    length: int

    def grant(self, peers: GrantPeers | None = None, **terms: Any) -> Grant:
        """Makes a grant for these bytes; see `MemoryRegion.grant`."""
        return self.region.grant(peers, offset=self.offset, nbytes=self.length, **terms)

    def __repr__(self) -> str:
        return f"<RegionSlice [{self.offset}:{self.offset + self.length}] of {self.region!r}>"


class MemoryRegion(_core.Exporter):
    """Registered memory, which peers reach by its key. Made by `Domain.register`. It keeps the buffer alive until close().

    Safe from any thread, except that only one thread may call close().
    """

    def __init__(
        self, domain: DomainBase, attr: MRAttr, *, coherent: bool = False, exempt: bool = False
    ) -> None:
        # coherent: peers see this memory as this process does, also in a non-coherent domain.
        # exempt: mr_mode demands nothing for this region, because groups and windows meet its demands by other means.
        given = list(attr.buffers) if isinstance(attr.buffers, list | tuple) else [attr.buffers]
        memories = [_memory_of(item) for item in given]
        self._domain = domain
        self._buffer = attr.buffers
        self._memory = memories
        self._context: object = None  # stays None after a synchronous registration
        self._access = Access(attr.access)
        # A region that starts disabled also takes keys that come to the vector before it is enabled.
        self._keys_of = attr.auth_key if isinstance(attr.auth_key, AddressVector) else None
        self._bound: weakref.WeakSet[Counter | Endpoint] = weakref.WeakSet()
        self._given_up = False  # closing has waited in vain for a peer
        described = _described(memories)
        self._dtype, self._shape = described or (np.dtype(np.uint8), ())
        pieces = _pieces(memories, domain.info.mr_iov_limit)
        if not domain._registers_asynchronously:
            self._core = self._register(pieces, attr, coherent, exempt)
        else:
            self._context = attr.context
            with domain._pending.lock:  # whoever reads the event at once finds the region
                self._core = self._register(pieces, attr, coherent, exempt)
                domain._pending.registrations[self._core.id] = (attr.context, self)
        if described is None:
            self._shape = (self._core.nbytes,)
        domain._owned.add(self)
        if domain._sync_log is not None:
            domain._sync_log.registered(self.lmr_context)

    def _register(
        self, pieces: list[Any], attr: MRAttr, coherent: bool, exempt: bool
    ) -> _core.MemoryRegionCore:
        keys: list[bytes] = []
        if not self._domain._options.ignores_auth_keys:
            keys = _auth_keys(self._domain, attr.auth_key, by_handle=bool(attr.flags & MRFlag.AUTH_KEY))
        memory = shared_memory_of(pieces[0]) if len(pieces) == 1 else None
        offset = 0
        if memory is not None:
            offset = np.asarray(pieces[0]).__array_interface__["data"][0] - memory.address
        return _core.register_memory(
            domain=self._domain._core,
            buffers=pieces,
            access=int(attr.access),
            key=attr.key,
            flags=int(attr.flags & ~MRFlag.AUTH_KEY),
            auth_keys=keys,
            memory=memory,
            file_offset=offset,
            coherent=coherent,
            exempt=exempt,
        )

    @property
    def key(self) -> int:
        """The number by which peers name the region. KEY_NOTAVAIL without remote rights, while registering, and in MRMode.RAW."""
        key = self._core.key
        return KEY_NOTAVAIL if key == int(KEY_NOTAVAIL) else key

    @property
    def lmr_context(self) -> int:
        """The number by which a `Triplet` names the region. No two regions of a process have the same."""
        return self._core.id

    @property
    def desc(self) -> int:
        """The local name of the region: its lmr_context. FabricError FI_EOPBADSTATE while registering."""
        return self._core.desc

    @property
    def address(self) -> int:
        """The virtual address of the first byte."""
        return self._core.address

    @property
    def nbytes(self) -> int:
        """The number of bytes of all its buffers together."""
        return self._core.nbytes

    @property
    def access(self) -> Access:
        """The rights of peers and of local operations."""
        return self._access

    @property
    def enabled(self) -> bool:
        """Whether peers can reach the region."""
        return self._core.enabled

    @property
    def context(self) -> object:
        """The `context` of an asynchronous registration, which its event brings back. None after a synchronous registration."""
        return self._context

    @property
    def buffer(self) -> Any:
        """The buffer that was registered. None after close()."""
        return self._buffer

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed

    @property
    def remote(self) -> RemoteRegion:
        """A description of the region. Give it to peers; they need nothing else. AccessDeniedError if peers have no rights."""
        return self._core.remote(self._dtype, list(self._shape))

    def raw_attr(self, size: int | None = None, flags: int = 0) -> RawKey:
        """The key as bytes (`info.mr_key_size` of them), in any mode. TooSmallError, with `needed`, if `size` is less."""
        if flags:
            raise BadFlagsError(f"flags={flags!r}: raw_attr() takes none")
        raw = self._core.raw_key()
        if size is not None and size < len(raw):
            raise TooSmallError(
                f"the raw key has {len(raw)} bytes, and size={size} was offered", needed=len(raw)
            )
        return RawKey(self._core.base, raw)

    def bind(self, other: Counter | Endpoint, events: RMAEvent | int = 0) -> None:
        """Binds a counter (with RMAEvent.REMOTE_WRITE) or, in MRMode.ENDPOINT, the endpoint that peers must use.

        The counter rises by one for each remote write, and for each atomic that changes memory, after its data has arrived. An
        ATOMIC_WRITE always counts. Any other atomic counts if it has changed an element: a compare-and-swap that did not swap, or
        a maximum that was there already, does not count. An atomic counts once, however many elements it has. FabricError
        FI_EOPBADSTATE after enable().
        """
        self._check_open()
        if other._domain is not self._domain:
            raise InvalidArgumentError(
                f"the {type(other).__name__.lower()} belongs to another domain than the region"
            )
        if isinstance(other, Endpoint):
            if events:
                raise BadFlagsError(f"events={events!r}: an endpoint is bound without any")
            if other.closed:
                raise ClosedError("the endpoint is closed")
            self._core.bind_endpoint(other._number)
        else:
            if events != RMAEvent.REMOTE_WRITE:
                raise BadFlagsError(f"a region counts RMAEvent.REMOTE_WRITE, not {events!r}")
            if not self._domain.info.caps & Caps.RMA_EVENT:
                raise NotSupportedError(
                    _NOT_IMPLEMENTED,
                    "the domain was opened without Caps.RMA_EVENT, so its regions take no counters",
                )
            other._check_open()
            self._core.bind(other._core)
        self._bound.add(other)

    def grant(
        self,
        peers: GrantPeers | None = None,
        access: Access | None = None,
        until: Until | None = None,
        *,
        offset: int = 0,
        nbytes: int | None = None,
        av: AddressVector | None = None,
    ) -> Grant:
        """Makes a further key to the region or a part of it. You can revoke it; the key of the region stays valid.

        peers: addresses or handles of the endpoints that may use it; they prove on every link who they are. None: whoever has the
        key. access: Access.REMOTE_READ, REMOTE_WRITE or both, at most the rights of the region; None: those. until: seconds from
        now, or a datetime, which is turned into seconds at once. The owner measures the time by its monotonic clock; operations
        that are under way at the end fail. offset, nbytes: the part; `region[8:64].grant()` is a short form. av: the address
        vector of the handles; needed if the domain has several.

        A peer that does more than the grant allows gets KeyRejectedError (another peer, or after the end), AccessDeniedError
        (other rights) or BoundsError (other bytes). If the grant is limited to peers or to a time, this process serves each
        request. Otherwise peers on this node, and RDMA devices, move the bytes themselves.

        This call raises AccessDeniedError for rights that the region lacks, UnreachableError for a peer that cannot prove who it
        is, InvalidArgumentError or BoundsError for other wrong arguments, NotSupportedError for limits on memory that only
        devices reach, and FabricError FI_EOPBADSTATE if the region is not enabled.
        """
        self._check_open()
        offset = operator.index(offset)
        length = max(0, self.nbytes - offset) if nbytes is None else operator.index(nbytes)
        if offset < 0 or length < 0:
            raise InvalidArgumentError(f"offset={offset}, nbytes={nbytes}: they are not negative")
        core = _core.grant(
            self._core,
            access=int(self._access & Access.REMOTE if access is None else access),
            offset=offset,
            nbytes=length,
            peers=addresses_of(self._domain, peers, av),
            seconds=seconds_until(until),
        )
        return Grant(self, self._domain, core)

    @property
    def grants(self) -> list[Grant]:
        """The grants that may still be used."""
        return [Grant(self, self._domain, core) for core in _core.grants_of(self._core)]

    def enable(self) -> None:
        """Lets peers reach a region that started disabled.

        These regions start disabled: in MRMode.ENDPOINT all, in MRMode.RMA_EVENT those registered with MRFlag.RMA_EVENT. In
        other modes this call changes nothing. FabricError FI_EOPBADSTATE if something must still be bound, or if the region is
        enabled already.
        """
        if self._keys_of is not None and not self._domain._options.ignores_auth_keys and not self.enabled:
            self._core.admit(_auth_keys(self._domain, self._keys_of, False))
        self._core.enable()

    def refresh(self, ranges: Sequence[tuple[int, int]] | None = None, flags: int = 0) -> None:
        """Looks again which pages are mapped with the rights of peers. In MRMode.MMU_NOTIFY, peers reach those of the last look.

        ranges: a list of (offset, length) in bytes; None: all of the region. Meanwhile, accesses of peers are refused.
        """
        if flags:
            raise BadFlagsError(f"flags={flags!r}: refresh() takes none")
        self._check_open()
        parts = [(int(offset), int(length)) for offset, length in ranges or ()]
        if any(offset < 0 or length < 0 for offset, length in parts):
            raise InvalidArgumentError(f"ranges={ranges!r}: offsets and lengths are not negative")
        if ranges is None or parts:
            self._core.refresh(parts)

    def close(self) -> None:
        """Ends the access of peers. When it returns, no peer touches the memory any more.

        A peer on this node may have been stopped (SIGSTOP) in the middle of an access. The call waits for it up to the domain's
        `peer_deadline`; then OperationTimeout names its process. After that no other access starts, but the peer may still finish
        this one, until another call of close() returns. If a domain, window, group or store closes the region, there is a
        RuntimeWarning in place of the error.

        BusyError while the region is still registering, and while a counter or an endpoint bound to it is open: close that
        first, or leave the `with` block.
        """
        if self._core.released:
            return
        if any(not other.closed for other in self._bound):
            raise BusyError(
                "the region has counters or endpoints bound to it that are still open; close them first (or use `with`)"
            )
        self._close()
        self._tell()

    def _close(self) -> None:
        seconds = self._domain._options.peer_deadline
        if process := self._core.close(seconds):
            raise OperationTimeout(
                f"process {process} has been in the middle of an access to {self._what()} for {seconds:g} s, so it is stopped;"
                " when it goes on it may still change this memory, which stays allocated until then"
            )
        self._buffer = None
        self._memory = []

    def _settle(self) -> None:
        if self._core.registering:
            self._core.settle()

    def _end(self) -> None:
        self._settle()
        if self._given_up:
            return
        try:
            self._close()
        except OperationTimeout as error:
            self._given_up = True
            warnings.warn(
                f"closed without waiting any longer: {error.strerror}", RuntimeWarning, stacklevel=3
            )

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the region is closed")
        self._domain._core.check_open()

    def __enter__(self) -> MemoryRegion:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle()
        self._close()
        self._tell()

    def _tell(self) -> None:
        if self._domain._sync_log is not None:
            self._domain._sync_log.closed()

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, index: slice) -> RegionSlice:
        """`mr[8:64]`: a range of bytes. Like any slice, it ends at the end of the region."""
        if not isinstance(index, slice):
            raise TypeError(f"a region is sliced by bytes, as in mr[8:64], not indexed by {index!r}")
        start, stop, step = index.indices(self.nbytes)
        if step != 1:
            raise InvalidArgumentError(
                f"a slice with step {step}: take every n-th item from an array in the region"
            )
        return RegionSlice(self, start, max(0, stop - start))

    def _what(self) -> str:
        """Shape and dtype, for texts and pictures."""
        return f"{self._shape} {self._dtype}"

    def _drawn(self) -> DrawnRegion:
        """What the map of the domain's regions shows of it."""
        return DrawnRegion(
            self.address,
            self.nbytes,
            self._what(),
            flag_names(self.access) or "no rights",
            "-" if self.key == KEY_NOTAVAIL else f"{self.key:#x}",
            bool(self.access & Access.REMOTE),
            tuple(grant._terms() for grant in self.grants),
        )

    def _only_buffer(self) -> Any:
        self._check_open()
        if len(self._memory) != 1 or isinstance(self._memory[0], Range):
            raise InvalidArgumentError("the region is not one buffer of Python's; see .buffer")
        only = self._memory[0]
        return mapped_core(only) if isinstance(only, _core.DmaBufCore) else only

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        only = self._only_buffer()
        array = (
            only if isinstance(only, np.ndarray) else np.frombuffer(only, self._dtype).reshape(self._shape)
        )
        return np.array(array, dtype=dtype) if copy or (dtype is not None and dtype != array.dtype) else array

    def __repr__(self) -> str:
        if self.closed:
            return "<MemoryRegion closed>"
        return f"<MemoryRegion key={self._core.key:#x} {self.nbytes} bytes {self._access!r}>"

    def _repr_html_(self) -> str:
        rows = {
            "key": f"{self._core.key:#x}",
            "bytes": self.nbytes,
            "access": flag_names(self._access),
            "dtype": self._dtype,
            "shape": self._shape,
        }
        return html_table(f"MemoryRegion{' (closed)' if self.closed else ''}", rows)
