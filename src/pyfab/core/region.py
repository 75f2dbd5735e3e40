"""Memory regions: what peers may reach."""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pyfab import _core
from pyfab._core import RemoteRegion
from pyfab.core.address_vector import AddressVector
from pyfab.core.buffers import Range, array_of, bytes_of, pieces_of
from pyfab.core.dmabuf import DmaBuf, mapped_core
from pyfab.core.endpoint import Endpoint
from pyfab.core.enums import KEY_NOTAVAIL, Access, MRFlag, RMAEvent, flag_names
from pyfab.core.errors import (
    BadFlagsError,
    BusyError,
    ClosedError,
    InvalidArgumentError,
    NotSupportedError,
    OperationTimeout,
    TooSmallError,
)
from pyfab.core.stats import html_table

if TYPE_CHECKING:
    from pyfab.core.domain import Domain
    from pyfab.core.queues import Counter

__all__ = ["MRAttr", "MemoryRegion", "Range", "RawKey", "RegionSlice", "RemoteRegion"]

_NO_FLAGS = MRFlag(0)
AuthKeys = bytes | Sequence[bytes] | AddressVector | tuple[AddressVector, int] | None
"""A key, several of which a peer needs one, those of an address vector, or, with MRFlag.AUTH_KEY, one of them by its handle."""
_NOT_HERE = 38


@dataclasses.dataclass(frozen=True)
class MRAttr:
    """Everything that a registration takes, in one object (fi_mr_regattr(3)). `Domain.register` takes it in place of a buffer."""

    buffers: Any
    access: Access
    _: dataclasses.KW_ONLY
    key: int | None = None
    offset: int = 0
    flags: MRFlag = _NO_FLAGS
    auth_key: AuthKeys = None
    context: object = None


@dataclasses.dataclass(frozen=True)
class RawKey:
    """A key as bytes, with the base that peers add to offsets. A peer turns it into a number with `Domain.map_raw`."""

    base_address: int
    key: bytes


def shared_memory_of(array: object) -> _core.SharedMemory | None:
    """The memory from Domain.alloc that an array lies in, or None."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array if isinstance(array, _core.SharedMemory) else None


def _auth_keys(domain: Domain, given: object, by_handle: bool) -> list[bytes]:
    """The keys of a region, of which peers need one, from what register() got as auth_key; none: the domain's."""
    if by_handle:
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], AddressVector)):
            raise InvalidArgumentError(
                "MRFlag.AUTH_KEY: auth_key is (address vector, handle that insert_auth_key() gave)"
            )
        _check_vector(domain, given[0])
        return [given[0]._auth_key(given[1])]
    if isinstance(given, AddressVector):
        _check_vector(domain, given)
        return [key for key, _ in given._keys_now()]
    if isinstance(given, list | tuple):
        if not given:
            raise InvalidArgumentError(
                "auth_key: an empty list would let nobody in; None stands for the domain's key"
            )
        return [bytes_of("auth_key", key) for key in given]
    return [] if given is None else [key for key in (bytes_of("auth_key", given),) if key]


def _check_vector(domain: Domain, av: AddressVector) -> None:
    av._check_open()
    if av._domain is not domain:
        raise InvalidArgumentError("auth_key: the address vector belongs to another domain")


class RegionSlice(NamedTuple):
    """`length` bytes of a region from `offset`: what `mr[8:64]` gives. Also a local buffer of operations."""

    region: MemoryRegion
    offset: int
    length: int

    def __repr__(self) -> str:
        return f"<RegionSlice [{self.offset}:{self.offset + self.length}] of {self.region!r}>"


class MemoryRegion(_core.Exporter):
    """Registered memory. Made by `Domain.register`; owns the key, keeps the buffer alive, ends with close().

    Safe from any thread, close() from one.
    """

    def __init__(self, domain: Domain, attr: MRAttr, *, coherent: bool = False, exempt: bool = False) -> None:
        # coherent: also in a non-coherent domain memory that peers see as this process does; exempt: from what mr_mode asks of
        # programs, for groups and windows, which do without
        given = list(attr.buffers) if isinstance(attr.buffers, list | tuple) else [attr.buffers]
        # A DmaBuf lets go of its memory when it is closed; what it holds of it stays.
        memories = [
            item._opened()
            if isinstance(item, DmaBuf)
            else item
            if isinstance(item, Range)
            else array_of(item)
            for item in given
        ]
        if any(isinstance(item, np.ndarray) and item.dtype.hasobject for item in memories):
            raise InvalidArgumentError(
                "cannot register an array of Python objects: peers could do nothing with their addresses"
            )
        single = memories[0] if len(memories) == 1 else None
        pieces: list[Any] = []
        for item in memories:
            if isinstance(item, np.ndarray):
                pieces += pieces_of(item, domain.info.mr_iov_limit)
            else:
                pieces.append((item.address, item.length) if isinstance(item, Range) else item)
        by_handle = bool(attr.flags & MRFlag.AUTH_KEY)
        auth_keys = [] if domain._old_keys else _auth_keys(domain, attr.auth_key, by_handle)
        # Keys that come to the vector until a region that starts disabled is enabled count as well.
        self._keys_of = attr.auth_key if isinstance(attr.auth_key, AddressVector) else None
        memory = shared_memory_of(pieces[0]) if len(pieces) == 1 else None
        offset = 0
        if memory is not None:
            offset = np.asarray(pieces[0]).__array_interface__["data"][0] - memory.address
        self._domain = domain
        self._buffer = attr.buffers
        self._memory = memories
        self._context: object = None
        self._access = Access(attr.access)
        self._bound: weakref.WeakSet[Counter | Endpoint] = weakref.WeakSet()
        self._given_up = False  # a peer was waited for in vain
        if isinstance(single, np.ndarray):
            self._dtype, self._shape = single.dtype, single.shape
        elif isinstance(single, memoryview) and single.format not in (None, "B"):
            described = np.asarray(single)
            self._dtype, self._shape = described.dtype, described.shape
        else:
            self._dtype, self._shape = np.dtype(np.uint8), ()
        arguments: dict[str, Any] = {
            "access": int(attr.access),
            "key": attr.key,
            "flags": int(attr.flags & ~MRFlag.AUTH_KEY),
            "auth_keys": auth_keys,
            "memory": memory,
            "file_offset": offset,
            "coherent": coherent,
            "exempt": exempt,
        }
        if domain._registration_events is None:
            # The context is for an event only (MR-49).
            self._core = _core.register_memory(domain._core, pieces, **arguments)
        else:
            self._context = attr.context
            with domain._registering:  # an event that is read early finds the region
                self._core = _core.register_memory(domain._core, pieces, **arguments)
                domain._registered[self._core.id] = self
        if not isinstance(single, np.ndarray) and not self._shape:
            self._shape = (self._core.nbytes,)
        domain._owned.add(self)
        if domain._sync_log is not None:
            domain._sync_log.registered(self.lmr_context)

    @property
    def key(self) -> int:
        """What peers name the region by; KEY_NOTAVAIL without remote rights, while registering, and in MRMode.RAW."""
        key = self._core.key
        return KEY_NOTAVAIL if key == int(KEY_NOTAVAIL) else key

    @property
    def lmr_context(self) -> int:
        """What a `Triplet` names the region by. No two regions of a process have the same."""
        return self._core.id

    @property
    def desc(self) -> int:
        """What the region is named by locally: its lmr_context. FabricError FI_EOPBADSTATE while registering (MR-19)."""
        return self._core.desc

    @property
    def address(self) -> int:
        """Virtual address of the first byte."""
        return self._core.address

    @property
    def nbytes(self) -> int:
        """Bytes of all its buffers together."""
        return self._core.nbytes

    @property
    def access(self) -> Access:
        """Who may do what."""
        return self._access

    @property
    def enabled(self) -> bool:
        """Whether peers can reach the region."""
        return self._core.enabled

    @property
    def context(self) -> object:
        """What an asynchronous registration was given for its event; None after a synchronous one (MR-49)."""
        return self._context

    @property
    def buffer(self) -> Any:
        """What was registered; None once closed."""
        return self._buffer

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed

    @property
    def remote(self) -> RemoteRegion:
        """What a peer needs, nothing more. Raises AccessDeniedError if the region grants no remote rights."""
        return self._core.remote(self._dtype, list(self._shape))

    def raw_attr(self, size: int | None = None, flags: int = 0) -> RawKey:
        """The key as info.mr_key_size bytes, in any mode. TooSmallError(.needed) if `size` is less (MR-50, MR-51)."""
        if flags:
            raise BadFlagsError(f"flags={flags!r}: raw_attr() takes none")
        raw = self._core.raw_key()
        if size is not None and size < len(raw):
            error = TooSmallError(f"the raw key has {len(raw)} bytes, and size={size} was offered")
            error.needed = len(raw)
            raise error
        return RawKey(self._core.base, raw)

    def bind(self, other: Counter | Endpoint, events: RMAEvent | int = 0) -> None:
        """Binds a counter, with RMAEvent.REMOTE_WRITE, or, in MRMode.ENDPOINT, the endpoint that peers must use.

        A counter rises by one per remote write or modifying atomic, after its data (MR-57 … MR-63): ATOMIC_WRITE, and any other
        that has changed an element, once however many elements there are. A compare-and-swap that did not swap, or a maximum that
        was there already, does not count. FabricError FI_EOPBADSTATE once enable() was called.
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
            if not self._domain._offers_events:
                error = NotSupportedError(
                    "the domain was opened without Caps.RMA_EVENT, so its regions take no counters"
                )
                error.errno = _NOT_HERE
                raise error
            other._check_open()
            self._core.bind(other._core)
        self._bound.add(other)

    def enable(self) -> None:
        """Opens to peers a region that started disabled (MR-38 … MR-40).

        Those are all regions in MRMode.ENDPOINT, and those registered with MRFlag.RMA_EVENT in MRMode.RMA_EVENT. In other
        modes this changes nothing. FabricError FI_EOPBADSTATE if something is still to be bound, or if it is enabled.
        """
        if self._keys_of is not None and not self._domain._old_keys and not self.enabled:
            self._core.admit(_auth_keys(self._domain, self._keys_of, False))
        self._core.enable()

    def refresh(self, ranges: Sequence[tuple[int, int]] | None = None, flags: int = 0) -> None:
        """Looks again which pages are there: in MRMode.MMU_NOTIFY peers reach only those that were when looked at last (MR-37).

        ranges: (offset, length) in bytes of what to look at, None for all of the region. Peers are refused meanwhile.
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
        """Takes the region away from peers; when it returns no peer touches the memory any more.

        A peer on this node that was stopped (SIGSTOP) in the middle of an access is waited for, for the domain's `peer_deadline`;
        then OperationTimeout names its process. No access starts any more, but until another call returns the peer may still
        carry out this one. Where a domain, window, group or store closes the region, this is a RuntimeWarning.
        BusyError while it is still registering, and while a counter or an endpoint is bound that is still open: close that
        first, or leave by the `with` block.
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
        seconds = self._domain._peer_deadline
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
        """`mr[8:64]`: a range of bytes, cut off at the region's end like any slice."""
        if not isinstance(index, slice):
            raise TypeError(f"a region is sliced by bytes, as in mr[8:64], not indexed by {index!r}")
        start, stop, step = index.indices(self.nbytes)
        if step != 1:
            raise InvalidArgumentError(
                f"a slice with step {step}: take every n-th item from an array in the region"
            )
        return RegionSlice(self, start, max(0, stop - start))

    def _what(self) -> str:
        """Shape and dtype, for pictures."""
        return f"{self._shape} {self._dtype}"

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
