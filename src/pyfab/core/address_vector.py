"""Address vectors: the peers of an endpoint, by handle."""

from __future__ import annotations

import html
import operator
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, overload

from pyfab import _core
from pyfab.core.addressing import resolver
from pyfab.core.addressing.addresses import FORMATS, Address, as_text, bundled, cut, packed, shown
from pyfab.core.addressing.auth_keys import KeyTable
from pyfab.core.addressing.handles import ALL_ONES, Handles
from pyfab.core.addressing.inserter import Inserter, Target
from pyfab.core.addressing.insertion import Inserted, Insertion, Result
from pyfab.core.addressing.link_traits import traits_of
from pyfab.core.addressing.options import VectorOptions
from pyfab.core.buffers import bytes_of, whole
from pyfab.core.domain_base import DomainBase
from pyfab.core.enums import ADDR_NOTAVAIL, AVType, InsertFlag
from pyfab.core.errors import (
    AccessDeniedError,
    BadFlagsError,
    BusyError,
    FabricError,
    InvalidArgumentError,
    NoEventQueueError,
    NotSupportedError,
    make_error,
)
from pyfab.core.owned import Owned
from pyfab.core.queues import EventQueue

__all__ = ["AddressVector"]

_NO_FLAGS = InsertFlag(0)
_SHOWN = 20  # rows of a table in a notebook
_FAMILIES = {"sockaddr_in": socket.AF_INET, "sockaddr_in6": socket.AF_INET6}


class AddressVector(Owned):
    """The peers of an endpoint: it gives each address a number, the handle. Made by `Domain.address_vector`.

    A new peer gets the lowest free handle, counted from 0. Safe from any thread; look-ups do not wait for insertions. `with` and
    `close()` end it. BusyError while an endpoint uses it.
    """

    def __init__(self, domain: DomainBase, type: AVType, options: VectorOptions) -> None:
        type = AVType(type)
        fixed = domain._options.av_type
        if AVType.UNSPEC not in (type, fixed) and type != fixed:
            raise InvalidArgumentError(f"type={type!r}: the domain was opened with av_type={fixed!r}")
        chosen = next(kind for kind in (type, fixed, AVType.TABLE) if kind != AVType.UNSPEC)
        self.addr_format = domain.info.addr_format
        self._core_options = options.for_core(FORMATS[self.addr_format], domain.info.max_group_id, chosen)
        if options.name is None:
            self._core = _core.AddressVectorCore(**self._core_options)
        else:
            self._core = _core.open_named_vector(
                domain=f"{domain.info.provider} {domain.info.domain}",
                name=str(options.name),
                read_only=bool(options.read_only),
                map_address=int(options.map_addr),
                **self._core_options,
            )
        self._core.judge_parts(domain._core)
        super().__init__(domain)
        self.type = chosen
        self.count = options.count
        self.ep_per_node = options.ep_per_node
        self.rx_ctx_bits = options.rx_ctx_bits
        self.name = options.name
        chooses_address = options.name is not None and not options.map_addr
        self.map_addr = self._core.map_address() if chooses_address else options.map_addr
        self.read_only = bool(options.read_only)
        self.symmetric = bool(options.symmetric)
        self.user_id = bool(options.user_id)
        self.asynchronous = bool(options.asynchronous)
        self.duplicates = options.duplicates
        self._keys = KeyTable()
        self._inserter: Inserter | None = None
        if options.asynchronous:
            target = Target(self, self._insert_now, stops_at_errors=options.on_error == "abort")
            self._inserter = Inserter(domain, target)

    # --- inserting

    @overload
    def insert(  # type: ignore[overload-overlap]
        self,
        address: Address,
        *,
        flags: InsertFlag = ...,
        sync_err: Literal[False] = False,
        fi_addr: Handles | None = None,
        context: Any = None,
    ) -> int: ...
    @overload
    def insert(
        self,
        address: Sequence[Address],
        *,
        flags: InsertFlag = ...,
        sync_err: Literal[False] = False,
        fi_addr: Handles | None = None,
        context: Any = None,
    ) -> list[int]: ...
    @overload
    def insert(
        self,
        address: Address | Sequence[Address],
        *,
        flags: InsertFlag = ...,
        sync_err: Literal[True],
        fi_addr: Handles | None = None,
        context: Any = None,
    ) -> tuple[list[int], list[FabricError | None]]: ...
    def insert(
        self,
        address: Address | Sequence[Address],
        *,
        flags: InsertFlag = _NO_FLAGS,
        sync_err: bool = False,
        fi_addr: Handles | None = None,
        context: Any = None,
    ) -> int | list[int] | tuple[list[int], list[FabricError | None]]:
        """Inserts one address (returns its handle) or several (returns a list).

        A single bad address raises InvalidArgumentError, or UnreachableError if no link of this domain leads to it. If some of
        several addresses are bad, the call raises InsertError: the good ones are inserted, and a bad one takes no handle.
        sync_err: the call returns (handles, errors), and no bad address raises an error.

        fi_addr: a list or array of 64-bit integers that gets the handles as well, ADDR_NOTAVAIL for a bad address. It is also an
        input. With InsertFlag.USER_ID it holds, for each peer, what completions are to report. With InsertFlag.AUTH_KEY it holds
        the handle of the authorization key for each peer; an endpoint with several keys does not reach peers that were inserted
        without one. InsertFlag.SYNC_ERR: `context` is a list or array of integers that gets 0 or an error code for each address.
        InsertFlag.MORE changes nothing.

        An asynchronous vector returns 0 at once. Its event queue gets the outcome, in events that have the `context`.
        """
        self._check_insert(flags, sync_err, context)
        single = isinstance(address, bytes | bytearray | memoryview | str)
        addresses = [address] if single else list(address)
        call = Insertion(flags, fi_addr, context, sync_err, single)
        return self._insert(packed(addresses, self.addr_format), call)

    def insert_service(
        self,
        node: str,
        service: str | None = None,
        *,
        flags: InsertFlag = _NO_FLAGS,
        fi_addr: Handles | None = None,
        context: Any = None,
    ) -> int:
        """Inserts the address of a service of a node. Both are names or numbers, as for getinfo().

        `node` may also be an address as text ("fi_sockaddr_in://1.2.3.4:80"), without `service`. FabricError FI_ENODATA if a name
        cannot be resolved; then nothing is inserted. A domain of several links reaches such a peer over tcp.
        """
        self._check_insert(flags, False, context)
        call = Insertion(flags, fi_addr, context, single=True)
        if node.startswith("fi_"):
            if service is not None:
                raise InvalidArgumentError(f"node={node!r} says it all: service must be None")
            (address,) = packed([node], "str")
            return self._insert([bundled(address, self.addr_format)], call)  # type: ignore[return-value]
        services = resolver.Services(node, 1, str(service or ""), 1)
        return self._insert_services(services, call)  # type: ignore[return-value]

    @overload
    def insert_symmetric(
        self,
        node: str,
        nodecnt: int,
        service: str,
        svccnt: int,
        *,
        flags: InsertFlag = ...,
        sync_err: Literal[False] = False,
        fi_addr: Handles | None = None,
        context: Any = None,
    ) -> list[int]: ...
    @overload
    def insert_symmetric(
        self,
        node: str,
        nodecnt: int,
        service: str,
        svccnt: int,
        *,
        flags: InsertFlag = ...,
        sync_err: Literal[True],
        fi_addr: Handles | None = None,
        context: Any = None,
    ) -> tuple[list[int], list[FabricError | None]]: ...
    def insert_symmetric(
        self,
        node: str,
        nodecnt: int,
        service: str,
        svccnt: int,
        *,
        flags: InsertFlag = _NO_FLAGS,
        sync_err: bool = False,
        fi_addr: Handles | None = None,
        context: Any = None,
    ) -> list[int] | tuple[list[int], list[FabricError | None]]:
        """Inserts many services (fi_av(3)): `svccnt` ports, from `service` on, for each of `nodecnt` nodes, from `node` on.

        They are inserted node by node. Addresses count up as numbers, with carry. Names that end in a number count up there and
        keep their width. InsertError, sync_err, flags and fi_addr as in insert().
        """
        self._check_insert(flags, sync_err, context)
        services = resolver.Services(node, nodecnt, str(service), svccnt)
        return self._insert_services(services, Insertion(flags, fi_addr, context, sync_err))  # type: ignore[return-value]

    def _insert_services(self, services: resolver.Services, call: Insertion) -> Result:
        links = map(traits_of, self._domain.info.links)
        if self.addr_format == "bundle" and not any(link.called_by_socket for link in links):
            raise NotSupportedError(
                f"{self._domain.info.spec} has no tcp link: nodes and services are no addresses here; "
                "insert the address of the peer's endpoint"
            )
        items = resolver.symmetric(services, _FAMILIES.get(self.addr_format, socket.AF_UNSPEC))
        # An asynchronous vector resolves the names after the call has returned.
        resolved = items if self._inserter else list(items)
        addresses = (bundled(item, self.addr_format) for item in resolved)
        return self._insert(addresses, call)

    def _check_insert(self, flags: InsertFlag, sync_err: bool, context: Any) -> None:
        self._check_open()
        if int(flags) & ~sum(InsertFlag):
            raise BadFlagsError(f"flags={flags!r}: insert() takes those of InsertFlag")
        flags = InsertFlag(flags)
        if self.read_only:
            raise AccessDeniedError("the address vector was opened with read_only=True")
        if flags & InsertFlag.EVENT and self._inserter is None:
            raise BadFlagsError("InsertFlag.EVENT: the address vector was not opened with asynchronous=True")
        if flags & InsertFlag.SYNC_ERR or sync_err:
            if self._inserter is not None:
                raise BadFlagsError("SYNC_ERR: an asynchronous address vector tells errors by events")
            if flags & InsertFlag.SYNC_ERR and not hasattr(context, "__setitem__"):
                raise InvalidArgumentError("InsertFlag.SYNC_ERR: context must be a list or array of integers")
        if flags & InsertFlag.USER_ID and (
            self.user_id or self._domain._options.av_auth_keys or flags & InsertFlag.AUTH_KEY
        ):
            raise InvalidArgumentError(
                "InsertFlag.USER_ID: in a vector opened with user_id=True, and with authorization keys, "
                "ids are set by set_user_id()"
            )
        if flags & InsertFlag.AUTH_KEY and not self._domain._options.av_auth_keys:
            raise InvalidArgumentError(
                "InsertFlag.AUTH_KEY: the domain was not opened with av_auth_keys=True"
            )
        if self._inserter is not None and self._inserter.events is None:
            raise NoEventQueueError(
                "an asynchronous address vector inserts once bind(event_queue) was called"
            )

    def _insert(self, items: Iterable[bytes | FabricError], call: Insertion) -> Result:
        if self._inserter is not None:
            if call.fi_addr is None and self.type == AVType.MAP:
                raise InvalidArgumentError(
                    "fi_addr is missing: an asynchronous map tells its handles nowhere else, and they are not predictable"
                )
            self._inserter.push(items, call)
            return 0
        inputs = call.inputs()
        return call.result(self._insert_now(list(items), call.flags, inputs))

    def _insert_now(
        self, items: Sequence[bytes | FabricError], flags: InsertFlag, inputs: list[int] | None
    ) -> Inserted:
        errors = {index: item for index, item in enumerate(items) if isinstance(item, FabricError)}
        user_ids = auths = None
        if flags & InsertFlag.USER_ID:
            user_ids = inputs
        elif flags & InsertFlag.AUTH_KEY:
            auths, unknown = self._keys.numbers(inputs or ())
            errors = unknown | errors
        given = [b"" if index in errors else item for index, item in enumerate(items)] if errors else items
        handles, failed = self._core.insert_many(list(given), user_ids, auths)
        for index, (code, text) in failed.items():
            errors.setdefault(index, make_error(code, text))
        for index in errors:
            handles[index] = ADDR_NOTAVAIL
        return handles, errors

    def bind(self, event_queue: EventQueue, flags: int = 0) -> None:
        """Binds the event queue that gets the outcomes of an asynchronous vector. A vector can be bound once."""
        self._check_open()
        if flags:
            raise BadFlagsError(f"flags={flags!r}: bind() takes none")
        if not isinstance(event_queue, EventQueue):
            raise InvalidArgumentError(
                f"an address vector is bound to an event queue, not an object of type {type(event_queue).__name__}"
            )
        if self._inserter is None:
            raise InvalidArgumentError("only an address vector opened with asynchronous=True tells of events")
        with self._domain._binding:
            event_queue._check_open()
            if event_queue._domain is not self._domain:
                raise InvalidArgumentError("the event queue belongs to another domain")
            self._inserter.bind(event_queue)

    # --- removing and looking up

    def remove(self, handles: int | Iterable[int], *, flags: InsertFlag = _NO_FLAGS) -> None:
        """Removes one peer or several. InvalidArgumentError if some were not there; the others are removed.

        With InsertFlag.AUTH_KEY the handles are those of authorization keys. BusyError while an endpoint is open that was opened
        with the key.
        """
        self._check_open()
        _check_key_flag("remove()", flags)
        if self.read_only:
            raise AccessDeniedError("the address vector was opened with read_only=True")
        remove = self._remove_auth_key if flags else self._core.remove
        bad = []
        for handle in list(handles) if isinstance(handles, Iterable) else [handles]:
            try:
                remove(handle)
            except (InvalidArgumentError, TypeError, OverflowError):
                bad.append(handle)
        if bad:
            raise InvalidArgumentError(
                f"no such handle in the address vector: {bad}; handles that were there are removed"
            )

    @overload
    def lookup(self, handle: int) -> bytes: ...
    @overload
    def lookup(self, handle: int, size: int) -> tuple[bytes, int]: ...
    def lookup(self, handle: int, size: int | None = None) -> bytes | tuple[bytes, int]:
        """The address of a handle; it is text in a domain of format "str". InvalidArgumentError if there is no such handle.

        With `size`: returns (the first `size` bytes of the address, the number of bytes of the whole address).
        """
        self._check_open()
        try:
            address = shown(self._core.lookup(handle), self.addr_format)
        except (TypeError, OverflowError):
            raise InvalidArgumentError(f"{handle!r} is not a handle of the address vector") from None
        found: bytes | tuple[bytes, int] = cut(address, size)
        return found

    @overload
    def straddr(self, address: Address) -> str: ...
    @overload
    def straddr(self, address: Address, size: int) -> tuple[str, int]: ...
    def straddr(self, address: Address, size: int | None = None) -> str | tuple[str, int]:
        """An address as text, whether it was inserted or not. An empty string for bytes of no known format.

        With `size`: returns (the part that fits into `size` bytes with a terminating zero, the size of the whole text).
        """
        self._check_open()
        text = as_text(address)
        if size is None:
            return text
        if size < 0:
            raise InvalidArgumentError(f"size={size}: it is not negative")
        return text[: max(size - 1, 0)], len(text) + 1

    def __len__(self) -> int:
        return self._core.size()

    def __contains__(self, handle: object) -> bool:
        number = whole(handle)
        return number is not None and 0 <= number < 2**64 and self._core.contains(number)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        self._check_open()
        for handle in range(self._core.end()):
            try:
                yield handle, shown(self._core.lookup(handle), self.addr_format)
            except InvalidArgumentError:  # vacant, or removed meanwhile
                continue

    # --- user ids and authorization keys

    def set_user_id(self, handle: int, user_id: int, *, flags: InsertFlag = _NO_FLAGS) -> None:
        """Sets the number by which completions report a peer, in a vector with user_id=True. Before, they report ADDR_NOTAVAIL.

        With InsertFlag.AUTH_KEY, `handle` is that of an authorization key. Then the call sets what completions report of peers
        that use this key and are not in the vector. These completions always have CompletionFlag.AUTH_KEY. In a vector without
        user ids their source is the handle of the key.
        """
        self._check_open()
        if not 0 <= operator.index(user_id) <= ALL_ONES:
            raise InvalidArgumentError(f"user_id={user_id}: it has 64 bits")
        _check_key_flag("set_user_id()", flags)
        if flags:
            self._keys[handle]  # raises if there is no such key
            self._core.set_key_user_id(handle + 1, user_id)
            return
        self._core.set_user_id(handle, user_id)

    def insert_auth_key(self, key: bytes, flags: int = 0) -> int:
        """Adds an authorization key. Use the handle that it returns only in calls with InsertFlag.AUTH_KEY.

        An endpoint that is opened with the vector afterwards serves peers that have any one of its keys, also this one. An
        endpoint that is already open does not get the key. Peers with different keys share no connection.

        InvalidArgumentError unless the domain was opened with av_auth_keys=True and the key has its auth_key_size.
        """
        self._check_open()
        if flags:
            raise BadFlagsError(f"flags={flags!r}: insert_auth_key() takes none")
        if not self._domain._options.av_auth_keys:
            raise InvalidArgumentError("insert_auth_key() needs a domain opened with av_auth_keys=True")
        if self.name is not None:
            raise NotSupportedError("authorization keys are not kept in address vectors with a name")
        size = self._domain._options.auth_key_size
        key = bytes_of("key", key)
        if not key or (size and len(key) != size):
            raise InvalidArgumentError(
                f"an authorization key of this domain has {size or 'at least one'} bytes (auth_key_size)"
            )
        return self._keys.insert(key)

    def lookup_auth_key(self, handle: int, size: int | None = None, *, flags: InsertFlag = _NO_FLAGS) -> Any:
        """The authorization key of a peer. With InsertFlag.AUTH_KEY, `handle` is that of the key. `size` as in lookup()."""
        self._check_open()
        _check_key_flag("lookup_auth_key()", flags)
        if flags:
            return cut(self._keys[handle], size)
        auth = self._core.auth(handle)
        if auth == 0:
            raise InvalidArgumentError(f"peer {handle} was inserted without an authorization key")
        return cut(self._keys[auth - 1], size)

    def _remove_auth_key(self, handle: int) -> None:
        self._keys[handle]  # raises if there is no such key
        if any(not user.closed and handle in user._auth_handles for user in self._users):
            raise BusyError(f"authorization key {handle}: an endpoint that was enabled with it is still open")
        self._keys.remove(handle)
        if self.user_id:
            self._core.set_key_user_id(handle + 1, None)

    def _end(self) -> None:
        if self._inserter is not None:
            self._inserter.stop()
        super()._end()
        if self.name is not None:  # the file is closed now, not when this object is collected
            self._core = _core.AddressVectorCore(**self._core_options)

    def __repr__(self) -> str:
        extra = "".join(
            f" {text}"
            for text, said in (
                (f"name={self.name!r}", self.name is not None),
                ("read-only", self.read_only),
                ("symmetric", self.symmetric),
                ("asynchronous", self.asynchronous),
                ("closed", self.closed),
            )
            if said
        )
        return f"<AddressVector {self.type.name} {len(self)} peers{extra}>"

    def _repr_html_(self) -> str:
        rows = []
        if not self.closed:
            for (handle, address), _ in zip(self, range(_SHOWN), strict=False):
                text = html.escape(self.straddr(address))
                rows.append(
                    f"<tr><td>{handle}</td><td>{text if len(text) < 100 else text[:97] + '…'}</td></tr>"
                )
        more = f"<tr><td colspan=2>{len(self)} in all</td></tr>" if len(self) > len(rows) else ""
        return (
            f"<table><caption>{html.escape(repr(self))}</caption><tr><th>handle</th><th>address</th></tr>"
            f"{''.join(rows)}{more}</table>"
        )


def _check_key_flag(call: str, flags: InsertFlag) -> None:
    if int(flags) & ~int(InsertFlag.AUTH_KEY):
        raise BadFlagsError(f"flags={flags!r}: {call} takes InsertFlag.AUTH_KEY or none")
