"""Domains: an opened link, or several linked ones, with everything made from it."""

from __future__ import annotations

import atexit
import operator
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike
from pyfab import _core
from pyfab.core.address_vector import AddressVector
from pyfab.core.addressing.options import VectorOptions
from pyfab.core.buffers import auth_key_of, bytes_of
from pyfab.core.domain_base import DomainBase, DomainOptions
from pyfab.core.endpoint import Endpoint, EndpointOptions
from pyfab.core.enums import Access, AVFlag, AVType, Caps, MRFlag, MRMode, flag_names
from pyfab.core.errors import BadFlagsError, BusyError, FabricError, InvalidArgumentError
from pyfab.core.info import Info, bits_in_force
from pyfab.core.memory.attributes import AuthKeys, MRAttr, RawKey
from pyfab.core.memory.mapped import NumpyMemory, new_array
from pyfab.core.opening import cache_setting, emulated_cache, granted, seconds
from pyfab.core.owned import Owned
from pyfab.core.queues import CompletionQueue, Counter, EventQueue
from pyfab.core.region import MemoryRegion, RemoteRegion
from pyfab.core.stats import CacheStats, DomainStats, html_table
from pyfab.core.sync import SyncStats, synchronise
from pyfab.core.sync_log import SyncLog, SyncReport
from pyfab.display.pictures import Drawing, regions_map
from pyfab.logs.links import every_way_is_logged, tell_left_out

__all__ = ["Domain"]

_AUTH_KEYS_SINCE = (1, 5)
_NO_CAPS, _NO_FLAGS = Caps(0), MRFlag(0)
_DEFAULT_QUEUE = 4096  # entries of the queue that an endpoint makes for itself


class Domain(DomainBase):
    """An open link, or several joined ones. It makes regions, memory, endpoints, address vectors, queues and counters.

    spec: one provider ("shm", "tcp", "tcp:eth0") or several joined ones ("shm+tcp"), alternatives with "|"; or an Info. None
    takes $FI_LNX_PROV_LINKS, else the best links found. settings: those of the providers, such as tcp_listen="10.0.0.5",
    shm_copy="ring"; lnx_disable_shm and lnx_use_srq override $FI_LNX_DISABLE_SHM and $FI_LNX_USE_SRQ (docs/links.md). caps: what
    the domain must offer, by default all that it can. mr_mode: the requirements for registered memory in force; None: those of
    an Info, else none. mr_key_size: bytes of a key, 4 to 8. strict_keys: in MRMode.PROV_KEY and RAW, a key that you choose is
    refused, not ignored.

    auth_key: a secret that peers must have too. av_auth_keys: address vectors take such keys, of `auth_key_size` bytes (0: any
    number). encrypt: links over tcp use TLS 1.3 with the key, and peers must do the same; NotSupportedError if the system has no
    OpenSSL, or with links over verbs (docs/security.md). api_version: below (1, 5), keys of single regions and endpoints are
    ignored. addr_format: how addresses look: "bundle" (None), or, with one tcp link, socket addresses. av_type: that of all
    address vectors.

    progress: "auto": a thread of the library serves peers; "busy": it never sleeps; "manual": only calls do. peer_deadline:
    seconds without a sign of life until a peer counts as lost, or up to a quarter more. rail_deadline: the same for one of
    several network links to a peer. rail_policy(peer, links): called when a peer is first used over several of them. It returns
    a share for each link (0: not used), or None: bandwidth decides. It may use the domain, but not that peer.

    coherent=False: emulates memory that needs `sync_rdma_read` and `sync_rdma_write`, with a cache (at the "device" or the "cpu")
    that has lines of `cache_line` bytes. checker=True: does the same, and reports calls that are missing, late or needless.

    mr_cache: whether memory stays registered with the device for the next region or transfer on it. "auto": if possible and
    harmless; None: if $FI_MR_CACHE_MONITOR names a monitor. mr_cache_monitor, mr_cache_max_size, mr_cache_max_count and
    mr_cache_merge_regions override $FI_MR_CACHE_*. RuntimeWarning if a cache is wanted but not possible.
    A `with` block closes at its end what the domain still owns. Safe from any thread; a child of fork() gets ClosedError.
    """

    def __init__(
        self,
        spec: str | Info | None = None,
        *,
        mr_mode: MRMode | None = None,
        mr_key_size: int = 8,
        caps: Caps = _NO_CAPS,
        auth_key: bytes | None = None,
        encrypt: bool = False,
        strict_keys: bool = False,
        api_version: tuple[int, int] = (1, 20),
        progress: Literal["auto", "manual", "busy"] = "auto",
        peer_deadline: float = 10.0,
        rail_deadline: float = 2.0,
        rail_policy: Callable[[int, list[str]], Sequence[float] | None] | None = None,
        coherent: bool = True,
        cache: Literal["device", "cpu"] = "device",
        cache_line: int = 1,
        checker: bool = False,
        mr_cache: bool | Literal["auto"] | None = None,
        addr_format: Literal["bundle", "sockaddr_in", "sockaddr_in6", "str"] | None = None,
        av_type: AVType = AVType.UNSPEC,
        av_auth_keys: bool = False,
        auth_key_size: int = 0,
        **settings: str | int,
    ) -> None:
        if str(progress) not in ("auto", "manual", "busy"):
            raise InvalidArgumentError(f'progress={progress!r}: it is "auto", "manual" or "busy"')
        if not 4 <= mr_key_size <= 8:
            raise InvalidArgumentError(f"mr_key_size={mr_key_size!r}: keys have 4 to 8 bytes")
        if isinstance(spec, Info):
            addr_format = addr_format or spec.addr_format  # type: ignore[assignment]
            mr_mode = spec.mr_mode if mr_mode is None else mr_mode
            spec = spec.spec
        elif spec is not None and not str(spec).strip():
            raise InvalidArgumentError(
                f"spec={spec!r}: a link is a string such as 'shm', 'tcp:eth0' or 'shm+tcp'"
            )
        mode = MRMode(mr_mode or 0)
        if mr_cache is not None:
            settings["mr_cache"] = cache_setting(mr_cache)
        options = DomainOptions(
            auth_key_size=operator.index(auth_key_size),
            av_auth_keys=bool(av_auth_keys),
            av_type=AVType(av_type),
            ignores_auth_keys=tuple(api_version) < _AUTH_KEYS_SINCE,
            manual_progress=progress == "manual",
            peer_deadline=seconds("peer_deadline", peer_deadline),
            rail_policy=None if rail_policy is None else _core.RailPolicy(rail_policy),
        )
        own_key = auth_key_of(auth_key)
        if encrypt and not (own_key or options.av_auth_keys):
            raise InvalidArgumentError(
                "encrypt=True needs a key that both sides have: pass auth_key (long and random), or av_auth_keys=True"
            )
        non_coherent = emulated_cache(cache, cache_line, checker)
        core = _core.open_domain(
            spec=str(spec or ""),
            mr_mode=int(bits_in_force(mode)),
            auth_key=own_key,
            encrypt=bool(encrypt),
            strict_keys=strict_keys,
            manual_progress=options.manual_progress,
            busy_progress=progress == "busy",
            log_links=every_way_is_logged(),
            peer_deadline=options.peer_deadline,
            rail_deadline=seconds("rail_deadline", rail_deadline),
            rail_policy=options.rail_policy,
            mr_key_size=mr_key_size,
            non_coherent=None if coherent and not checker else non_coherent,
            settings={name: str(value) for name, value in settings.items()},
        )
        if core.cache_warning:
            warnings.warn(core.cache_warning, RuntimeWarning, stacklevel=2)
        try:
            info = granted(core, mode, caps, addr_format or "bundle")
        except BaseException:
            core.close(True)
            raise
        super().__init__(core, info, options, SyncLog(core) if checker else None)
        self._registration_events: EventQueue | None = None

    def register(
        self,
        buffer: Any,
        access: Access | None = None,
        *,
        key: int | None = None,
        offset: int = 0,
        flags: MRFlag = _NO_FLAGS,
        auth_key: AuthKeys = None,
        context: object = None,
    ) -> MemoryRegion:
        """Registers memory without copying it. Peers can use it at once.

        buffer: anything with the buffer protocol, or with DLPack on the CPU; kept alive until the region closes. A list becomes
        one region, whose offsets count through all its items; so does an array with gaps, with its pieces. A `Range` is bare
        addresses; an `MRAttr` holds all arguments. access: what peers and local operations may do. key: an int of at most
        `mr_key_size` bytes, below 2**64 - 1, that you choose, so that peers know it without being told; None: the library
        chooses. offset: must be 0. flags: MRFlag.PMEM for memory mapped from a file, MRFlag.RMA_EVENT for one with counters.
        auth_key: the key that peers must have; None: the domain's; a list: one of several keys; an address vector: one of its
        keys when the region is enabled (now, or by enable()); with MRFlag.AUTH_KEY, (address vector, handle): that key.

        After bind(event_queue) the region is usable once its event was read. That event has the `context`.
        """
        self._core.check_open()
        if isinstance(buffer, MRAttr):
            attr = buffer
        elif access is None:
            raise TypeError("register() misses the argument 'access': what a key opens is always said")
        else:
            attr = MRAttr(
                buffer, access, key=key, offset=offset, flags=flags, auth_key=auth_key, context=context
            )
        attr._check(self._info.caps)
        return MemoryRegion(self, attr)

    def bind(self, event_queue: EventQueue | None) -> None:
        """Makes registrations asynchronous: `event_queue` gets an event when one of them ends. None: synchronous again."""
        self._core.check_open()
        with self._binding:
            if event_queue is not None:
                event_queue._check_open()
                if event_queue._domain is not self:
                    raise InvalidArgumentError("the event queue belongs to another domain")
            self._report_to(event_queue)

    def _report_to(self, event_queue: EventQueue | None) -> None:
        # The caller holds `_binding`.
        if self._registration_events is not None:
            self._registration_events._reporters.discard(self)
        if event_queue is not None:
            event_queue._reporters.add(self)
        self._registration_events = event_queue
        self._registers_asynchronously = event_queue is not None
        self._core.bind_registrations(None if event_queue is None else event_queue._core)

    def map_raw(self, raw: RawKey | RemoteRegion | bytes, flags: int = 0) -> int:
        """Returns a number that stands for the raw key of a peer: use it as key in operations, until unmap_key().

        InvalidArgumentError for bytes that are no raw key, or are damaged.
        """
        self._core.check_open()
        if flags:
            raise BadFlagsError(f"flags={flags!r}: map_raw() takes none")
        if isinstance(raw, RawKey | RemoteRegion):
            raw = raw.key if isinstance(raw, RawKey) else raw.raw_key
        if not isinstance(raw, bytes | bytearray | memoryview):
            raise InvalidArgumentError(
                f"a raw key is what raw_attr() gave, or its bytes, not an object of type {type(raw).__name__}"
            )
        return self._core.map_key(bytes_of("raw", raw))

    def unmap_key(self, key: int) -> None:
        """Ends what map_raw() began. InvalidArgumentError if map_raw() did not return `key`, or if it was unmapped before."""
        self._core.check_open()
        if not 0 <= operator.index(key) < 2**64:
            raise InvalidArgumentError(f"key={key}: not a key that map_raw() gave")
        self._core.unmap_key(key)

    def alloc(
        self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = float, *, zero: bool = True
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """Returns a new array in memory that peers on the node can map once it is registered. They reach it the fastest.

        It is C-contiguous, page-aligned and zeroed. `zero` changes nothing, because the kernel gives only zeroed pages. The
        memory lives as long as the array, its views and its regions.
        """
        del zero
        return new_array(self._core, shape, dtype)

    def numpy_memory(self) -> NumpyMemory:
        """A context manager. In its `with` block, all arrays that NumPy makes in this thread are like those of `alloc`.

        So code that knows nothing of pyfab makes arrays that peers can map once they are registered. Arrays begin at a multiple
        of 64 bytes, those above 16 KiB at a page. They keep the memory for as long as they live, also after the block and the
        domain have ended. Arrays of other threads and memory of other libraries do not change; for torch, use
        `torch.from_numpy(numpy.empty(...))`. A child of fork() shares these arrays, and those of `alloc`, with its parent.
        """
        return NumpyMemory(self._core)

    def endpoint(
        self,
        av: AddressVector | None = None,
        cq: CompletionQueue | None = None,
        *,
        contexts: int = 1,
        auth_key: bytes | None = None,
        caps: Caps = _NO_CAPS,
    ) -> Endpoint:
        """Opens an endpoint. Without `av` or `cq`, the endpoint makes an address vector or a completion queue of its own.

        auth_key: the key that peers must have too; None: one of the keys in `av` (up to 16) if it has some, else the domain's.
        caps: by default all that the domain offers. Without Caps.RMA_EVENT, remote writes through this endpoint raise no
        counters. Without Caps.DIRECTED_RECV, its receives take messages from anybody, even if they name a `peer`.

        The endpoint's own queue forgets the oldest entries when it is full. A queue that you pass refuses operations then.
        """
        return self._open_endpoint(av, cq, contexts=contexts, auth_key=auth_key, caps=caps)

    def _open_endpoint(
        self,
        av: AddressVector | None = None,
        cq: CompletionQueue | None = None,
        *,
        contexts: int = 1,
        auth_key: bytes | None = None,
        caps: Caps = _NO_CAPS,
        exempt: bool = False,
    ) -> Endpoint:
        self._core.check_open()
        own_key = auth_key_of(auth_key)
        auth_keys = [] if av is None else av._keys.numbered(own_key)
        if own_key and not auth_keys:
            auth_keys = [(own_key, 0)]
        owns: list[Owned] = []
        if cq is None:
            cq = CompletionQueue(self, _DEFAULT_QUEUE, True)
            owns.append(cq)
        if av is None:
            av = self.address_vector()
            owns.append(av)
        options = EndpointOptions(
            contexts=contexts,
            auth_keys=[] if self._options.ignores_auth_keys else auth_keys,
            caps=caps or self._info.caps,
            exempt=exempt,
            owns=tuple(owns),
        )
        return Endpoint(self, av, cq, options)

    def address_vector(
        self,
        type: AVType = AVType.UNSPEC,
        *,
        count: int = 0,
        ep_per_node: int = 0,
        rx_ctx_bits: int = 0,
        name: str | None = None,
        read_only: bool = False,
        map_addr: int = 0,
        symmetric: bool = False,
        user_id: bool = False,
        asynchronous: bool = False,
        duplicates: Literal["allow", "reject"] = "allow",
        on_error: Literal["continue", "abort"] = "continue",
        flags: AVFlag | int = 0,
    ) -> AddressVector:
        """Makes an address vector: a list of peers. All arguments can be read as its attributes.

        type: how handles are made; here both kinds are indices. count, ep_per_node: hints, never limits. rx_ctx_bits: how many
        bits of a handle are for the receive context; each endpoint of the vector may have up to 2**rx_ctx_bits contexts. name:
        all processes of this user that open it by this name, in a domain of the same name, share it. read_only: the vector must
        exist already; this object never changes it. map_addr: 0: the library chooses. symmetric: consecutive socket addresses
        take almost no memory. user_id: completions report what set_user_id() set. asynchronous: an event queue gets the ends of
        insertions (`AddressVector.bind`). on_error: whether an insertion goes on after a bad address, or cancels the rest.
        duplicates: "reject" refuses an address that is there already (FI_EALREADY); "allow" gives it another handle. flags:
        AVFlag; each flag means the same as its keyword.
        """
        self._core.check_open()
        if int(flags) & ~sum(AVFlag):
            raise BadFlagsError(f"flags={flags!r}: an address vector is opened with those of AVFlag")
        flags = AVFlag(flags)
        options = VectorOptions(
            count=count,
            ep_per_node=ep_per_node,
            rx_ctx_bits=rx_ctx_bits,
            name=name,
            read_only=read_only or AVFlag.READ in flags,
            map_addr=map_addr,
            symmetric=symmetric or AVFlag.SYMMETRIC in flags,
            user_id=user_id or AVFlag.USER_ID in flags,
            asynchronous=asynchronous or AVFlag.EVENT in flags,
            duplicates=duplicates,
            on_error=on_error,
        )
        return AddressVector(self, type, options)

    def completion_queue(self, size: int = 4096) -> CompletionQueue:
        """Makes a completion queue with room for `size` entries. While it is full, operations are refused with FI_EAGAIN."""
        self._core.check_open()
        return CompletionQueue(self, size, False)

    def event_queue(self, size: int = 1024) -> EventQueue:
        """Makes an event queue, for `Endpoint.bind`, `Domain.bind` and `AddressVector.bind`.

        size: how many events of endpoints (such as lost peers) it has room for until they are read.
        """
        self._core.check_open()
        return EventQueue(self, size)

    def counter(self) -> Counter:
        """Makes a counter. `MemoryRegion.bind` binds it to a region."""
        self._core.check_open()
        return Counter(self)

    def progress(self) -> None:
        """Makes progress without waiting, for all endpoints (for progress="manual")."""
        self._core.check_open()
        self._core.progress()

    def sync_rdma_read(self, segments: Any) -> None:
        """Lets peers see what this process stored. Call it after the stores and before a peer's get.

        segments: a list of regions, slices `mr[8:64]`, arrays within a region (strided ones too) or `Triplet`s. When it returns,
        stores that any thread had done before are visible; it promises nothing for other bytes. If
        `info.needs_sync_rdma_read` is false, it only checks its arguments and orders memory accesses. ClosedError if the domain
        is closed. InvalidArgumentError, with `index`, for the first segment outside of the open regions of this domain; then
        nothing was synchronised. Safe from any thread.
        """
        self._synchronise(segments, write_side=False)

    def sync_rdma_write(self, segments: Any) -> None:
        """Lets this process see what peers put. Call it after a put has completed and before local loads or stores there.

        Call it also after local stores and before a peer puts into the same range. Arguments, errors and thread rules are those
        of `sync_rdma_read`.
        """
        self._synchronise(segments, write_side=True)

    def _synchronise(self, segments: Any, *, write_side: bool, deliberate: bool = True) -> None:
        found = synchronise(self._core, segments, write_side=write_side, deliberate=deliberate)
        if found and self._sync_log is not None:
            self._sync_log.warn(self._sync_log.add(found))

    @property
    def sync_stats(self) -> SyncStats:
        """Statistics of the synchronisation calls and of the emulated cache."""
        return SyncStats(**_core.sync_stats(self._core))

    @property
    def sync_reports(self) -> list[SyncReport]:
        """What the checker has found, oldest first.

        Reading this property ends a check: puts and gets whose synchronisation call has not come yet are reported as missing it.
        For what the checker finds in a call, or when a region closes, there is also a SyncWarning.
        """
        if self._sync_log is None:
            return []
        self._sync_log.take_stock()
        return list(self._sync_log.reports)

    def stats(self) -> DomainStats:
        """Statistics: the open regions, the transfers with each peer and their link, the registration cache.

        "registrations": for each link, how many ranges of memory its device knows ("held"), has registered since it was opened
        ("made"), and knew already when they were needed ("reused"). Links over shm and tcp never register memory. "security": how
        often connections of strangers and peers were closed, by reason (docs/security.md).
        """
        self._core.check_open()
        peers = []
        for endpoint in [item for item in self._owned if isinstance(item, Endpoint) and not item.closed]:
            for peer, _ in endpoint.av:
                counts = endpoint.counts(peer)
                if counts["posted"]:
                    try:
                        link = endpoint.report(peer)[0]
                    except FabricError:  # the peer has ended, or cannot be reached any more
                        link = "-"
                    peers.append({"peer": peer, "link": link, **counts})
        return DomainStats(
            regions=self._core.regions,
            peers=peers,
            cache=CacheStats(**self._core.cache_stats),
            registrations=self._core.device_registrations,
            security=_core.security_stats(self._core),
        )

    def regions_map(self) -> Drawing:
        """A picture (SVG) of the open regions by address: their sizes, rights, keys, grants and the gaps between them."""
        self._core.check_open()
        open_regions = [item for item in self._owned if isinstance(item, MemoryRegion) and not item.closed]
        return regions_map(region._drawn() for region in open_regions)

    def close(self) -> None:
        """Closes the domain. BusyError while endpoints or regions are open. Closing twice is harmless."""
        if self.closed:
            return
        busy = [item for item in self._owned if isinstance(item, Endpoint | MemoryRegion) and not item.closed]
        if busy:
            raise BusyError(
                f"the domain still has {len(busy)} open endpoints or regions, for instance {busy[0]!r}; "
                "close them first, or use `with`"
            )
        if self._core.mapped_keys:
            raise BusyError(
                f"the domain still has {self._core.mapped_keys} mapped keys; unmap them first (unmap_key)"
            )
        self._end()

    def _end(self) -> None:
        # Regions end first, so that no peer reaches memory while the rest is taken apart.
        for region in [item for item in self._owned if isinstance(item, MemoryRegion)]:
            region._end()
        endpoints = [item for item in self._owned if isinstance(item, Endpoint)]
        _core.Context._close_all([context for endpoint in endpoints for context in endpoint._contexts])
        for item in list(self._owned):
            if isinstance(item, Owned):
                item._end()
        self._core.close(True)
        tell_left_out()
        if self._sync_log is not None:
            self._sync_log.warn(self._sync_log.take_stock())

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
            "mr_mode": flag_names(info.mr_mode) or "SCALABLE",
            "caps": flag_names(info.caps),
            "regions": self._core.regions,
        }
        table = html_table(f"Domain{' (closed)' if self.closed else ''}", rows)
        return table + (str(self.regions_map()) if not self.closed and self._core.regions else "")


# The progress threads must end before the interpreter does.
atexit.register(_core.close_all)
