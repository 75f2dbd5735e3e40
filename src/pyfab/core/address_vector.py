"""Address vectors: the peers of an endpoint, by handle."""

from __future__ import annotations

import html
import operator
import socket
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from pyfab import _core
from pyfab.core import resolver
from pyfab.core.buffers import bytes_of
from pyfab.core.enums import ADDR_NOTAVAIL, AVType, InsertFlag
from pyfab.core.errors import (
    AccessDeniedError,
    BadFlagsError,
    BusyError,
    FabricError,
    InsertError,
    InvalidArgumentError,
    NoEventQueueError,
    NotSupportedError,
    make_error,
)
from pyfab.core.inserter import Inserter
from pyfab.core.queues import EventQueue, Owned

if TYPE_CHECKING:
    from pyfab.core.domain import Domain

__all__ = ["AddressVector", "group_addr", "parse_addr", "rx_addr"]

INDEX_BITS, GROUP_BITS = 32, 24  # of a handle; receive contexts take the topmost bits
MAX_GROUP_ID = (1 << GROUP_BITS) - 1
_ALL_ONES = 2**64 - 1
_NO_FLAGS = InsertFlag(0)
_SHOWN = 20  # rows of a table in a notebook

FORMATS = {"bundle": 0, "sockaddr_in": 1, "sockaddr_in6": 2, "str": 3}
_FAMILIES = {"sockaddr_in": socket.AF_INET, "sockaddr_in6": socket.AF_INET6}
_SOCKET_LINK = "sockaddr"  # the part of a bundle that is a bare socket address

Address = bytes | bytearray | memoryview | str
Handles = MutableSequence[int] | Any
"""What takes handles: a list, or an array of 64-bit integers."""


def rx_addr(handle: int, index: int, rx_ctx_bits: int) -> int:
    """`handle` as the target of receive context `index`, which takes the topmost `rx_ctx_bits` bits (AV-45).

    `rx_ctx_bits` is that of the address vector. With 0 bits there is only index 0. Of ADDR_NOTAVAIL, which stands for the other
    side of a connected endpoint, all bits but those of the index stay ones (AV-46).
    """
    handle, index, bits = operator.index(handle), operator.index(index), operator.index(rx_ctx_bits)
    if not 0 <= bits <= 64 - INDEX_BITS:
        raise InvalidArgumentError(
            f"rx_ctx_bits={bits}: a handle has room for 0 to {64 - INDEX_BITS} beside the index"
        )
    if not 0 <= handle <= _ALL_ONES:
        raise InvalidArgumentError(f"handle={handle}: a handle has 64 bits")
    if not 0 <= index < 1 << bits:
        raise InvalidArgumentError(f"index={index}: rx_ctx_bits={bits} tell contexts 0 to {(1 << bits) - 1}")
    if bits == 0:
        return handle
    below = (1 << (64 - bits)) - 1
    return (handle & below) | (index << (64 - bits))


def group_addr(handle: int, group_id: int) -> int:
    """`handle` with `group_id` as its peer group, in place of the one it had (AV-48). The handle keeps all else."""
    handle, group_id = operator.index(handle), operator.index(group_id)
    if not 0 <= group_id <= MAX_GROUP_ID:
        raise InvalidArgumentError(f"group_id={group_id}: peer groups are 0 to {MAX_GROUP_ID} (AV-49)")
    if not 0 <= handle < _ALL_ONES:
        raise InvalidArgumentError(
            f"handle={handle!r} is no peer's; for any source within a group give the group where you receive"
        )
    return (handle & ~(MAX_GROUP_ID << INDEX_BITS)) | (group_id << INDEX_BITS)


def parse_addr(text: str) -> bytes:
    """The address that `AddressVector.straddr` printed (AV-43). InvalidArgumentError for what is none."""
    return _core.parse_address(text)


class AddressVector(Owned):
    """The peers of an endpoint: handle → address. Made by `Domain.address_vector`.

    Handles count from 0, the lowest free one first (AV-11). Safe from any thread; looking up does not wait for those who
    insert. `with` and `close()` end it; BusyError while an endpoint uses it.
    """

    def __init__(
        self,
        domain: Domain,
        type: AVType,
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
    ) -> None:
        type = AVType(type)
        fixed = domain._av_type
        if AVType.UNSPEC not in (type, fixed) and type != fixed:
            raise InvalidArgumentError(f"type={type!r}: the domain was opened with av_type={fixed!r} (AV-3)")
        for argument, value in (("count", count), ("ep_per_node", ep_per_node), ("map_addr", map_addr)):
            if not 0 <= operator.index(value) <= _ALL_ONES:
                raise InvalidArgumentError(f"{argument}={value}: it is not negative, and has 64 bits")
        if not 0 <= operator.index(rx_ctx_bits) <= 64 - INDEX_BITS:
            raise InvalidArgumentError(f"rx_ctx_bits={rx_ctx_bits}: a handle has no room for so many (AV-51)")
        if duplicates not in ("allow", "reject"):
            raise InvalidArgumentError(f'duplicates={duplicates!r}: it is "allow" or "reject"')
        if on_error not in ("continue", "abort"):
            raise InvalidArgumentError(f'on_error={on_error!r}: it is "continue" or "abort"')
        if read_only and name is None:
            raise InvalidArgumentError("read_only=True is for address vectors with a name (AV-64)")
        chosen = next(kind for kind in (type, fixed, AVType.TABLE) if kind != AVType.UNSPEC)
        format = domain.info.addr_format
        self._options: dict[str, Any] = {
            "format": FORMATS[format],
            "rx_bits": rx_ctx_bits,
            "max_group": domain.info.max_group_id,
            "ep_per_node": min(ep_per_node, 2**16 - 1),
            "symmetric": bool(symmetric),
            "user_ids": bool(user_id),
            "reject_duplicates": duplicates == "reject",
            "type": int(chosen),
        }
        if name is None:
            self._core = _core.AddressVectorCore(**self._options)
        else:
            named = {"read_only": bool(read_only), "map_address": int(map_addr)} | self._options
            self._core = _core.open_named_vector(_core_name(domain), str(name), **named)
        self._core.judge_parts(domain._core)
        super().__init__(domain)
        self.type = chosen
        self.count = count
        self.ep_per_node = ep_per_node
        self.rx_ctx_bits = rx_ctx_bits
        self.name = name
        self.map_addr = map_addr if name is None or map_addr else self._core.map_address()
        self.read_only = bool(read_only)
        self.symmetric = bool(symmetric)
        self.user_id = bool(user_id)
        self.asynchronous = bool(asynchronous)
        self.duplicates = duplicates
        self.addr_format = format
        self._auth_keys: list[bytes | None] = []
        self._inserter = Inserter(domain, self, on_error == "abort") if asynchronous else None

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

        InvalidArgumentError for one bad address, UnreachableError for one without a link of this domain (LNX-18); InsertError if
        some of several are bad: the good ones are inserted then, and a bad one takes no handle (AV-12). sync_err: returns
        (handles, errors) and raises for no address.

        fi_addr: a list or array of 64-bit integers that gets the handles as well, ADDR_NOTAVAIL for a failed address. With
        InsertFlag.USER_ID it holds, before, what completions are to report of each; with InsertFlag.AUTH_KEY the handle of the
        authorization key of each, under which it is reached; an endpoint with several keys reaches nobody without (AV-79).
        InsertFlag.SYNC_ERR: `context` is a list or array of integers that gets 0 or an error code for each. InsertFlag.MORE
        changes nothing.

        An asynchronous vector returns 0 at once; its event queue tells the rest, and `context` comes with the events.
        """
        self._check_insert(flags, sync_err, context)
        single = isinstance(address, bytes | bytearray | memoryview | str)
        addresses = [address] if single else list(address)
        return self._insert(self._to_bytes(addresses), single, flags, sync_err, fi_addr, context)

    def insert_service(
        self,
        node: str,
        service: str | None = None,
        *,
        flags: InsertFlag = _NO_FLAGS,
        fi_addr: Handles | None = None,
        context: Any = None,
    ) -> int:
        """Inserts the address of a service of a node: names or numbers, as for getinfo() (AV-25).

        `node` may also be an address as text ("fi_sockaddr_in://1.2.3.4:80"), without `service`. FabricError FI_ENODATA for
        names that cannot be resolved, and nothing is inserted (AV-26). A domain of several links reaches such a peer over tcp.
        """
        self._check_insert(flags, False, context)
        if node.startswith("fi_"):
            if service is not None:
                raise InvalidArgumentError(f"node={node!r} says it all: service must be None (AV-25)")
            return self._insert(self._to_bytes([node]), True, flags, False, fi_addr, context)  # type: ignore[return-value]
        return self._insert_nodes(node, 1, str(service or ""), 1, True, flags, False, fi_addr, context)  # type: ignore[return-value]

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
        """Inserts the ports from `service` on, `svccnt` of them, of `node` and of the nodes after it, node by node (AV-27).

        Addresses count up as numbers, with carry; names that end in a number count up there and keep their width (AV-31).
        InsertError, sync_err, flags and fi_addr as in insert().
        """
        self._check_insert(flags, sync_err, context)
        return self._insert_nodes(node, nodecnt, service, svccnt, False, flags, sync_err, fi_addr, context)  # type: ignore[return-value]

    def _insert_nodes(
        self,
        node: str,
        nodecnt: int,
        service: str,
        svccnt: int,
        single: bool,
        flags: InsertFlag,
        sync_err: bool,
        fi_addr: Handles | None,
        context: Any,
    ) -> int | list[int] | tuple[list[int], list[FabricError | None]]:
        if self.addr_format == "bundle" and not any(
            link.partition(":")[0] == "tcp" for link in self._domain.info.links
        ):
            raise NotSupportedError(
                f"{self._domain.info.spec} has no tcp link: nodes and services are no addresses here; "
                "insert the address of the peer's endpoint"
            )
        items = resolver.symmetric(
            node, nodecnt, service, svccnt, _FAMILIES.get(self.addr_format, socket.AF_UNSPEC)
        )
        resolved = items if self._inserter else list(items)
        addresses = (
            _core.encode_name([(_SOCKET_LINK, 0, item)])
            if isinstance(item, bytes) and self.addr_format == "bundle"
            else item
            for item in resolved
        )
        return self._insert(addresses, single, flags, sync_err, fi_addr, context)

    def _check_insert(self, flags: InsertFlag, sync_err: bool, context: Any) -> None:
        self._check_open()
        if int(flags) & ~sum(InsertFlag):
            raise BadFlagsError(f"flags={flags!r}: insert() takes those of InsertFlag (AV-18)")
        flags = InsertFlag(flags)
        if self.read_only:
            raise AccessDeniedError("the address vector was opened with read_only=True")
        if flags & InsertFlag.EVENT and self._inserter is None:
            raise BadFlagsError("InsertFlag.EVENT: the address vector was not opened with asynchronous=True")
        if flags & InsertFlag.SYNC_ERR or sync_err:
            if self._inserter is not None:
                raise BadFlagsError("SYNC_ERR: an asynchronous address vector tells errors by events (AV-16)")
            if flags & InsertFlag.SYNC_ERR and not hasattr(context, "__setitem__"):
                raise InvalidArgumentError(
                    "InsertFlag.SYNC_ERR: context must be a list or array of integers (AV-16)"
                )
        if flags & InsertFlag.USER_ID and (
            self.user_id or self._domain._av_auth_keys or flags & InsertFlag.AUTH_KEY
        ):
            raise InvalidArgumentError(
                "InsertFlag.USER_ID: in a vector opened with user_id=True, and with authorization keys, "
                "ids are set by set_user_id() (AV-74)"
            )
        if flags & InsertFlag.AUTH_KEY and not self._domain._av_auth_keys:
            raise InvalidArgumentError(
                "InsertFlag.AUTH_KEY: the domain was not opened with av_auth_keys=True"
            )
        if self._inserter is not None and self._inserter.events is None:
            raise NoEventQueueError(
                "an asynchronous address vector inserts once bind(event_queue) was called (AV-54)"
            )

    def _to_bytes(self, addresses: Iterable[Any]) -> list[bytes | FabricError]:
        return [self._one_to_bytes(item) for item in addresses]

    def _one_to_bytes(self, item: Any) -> bytes | FabricError:
        if isinstance(item, bytes):
            return item
        if isinstance(item, bytearray | memoryview):
            return bytes_of("address", item)
        if isinstance(item, str) and (self.addr_format == "str" or item.startswith("fi_")):
            try:
                return _core.parse_address(item)
            except FabricError as error:
                return error
        kind = "str" if self.addr_format == "str" else "bytes"
        return InvalidArgumentError(f"an address of this domain is {kind}, not {type(item).__name__}")

    def _insert(
        self,
        items: Iterable[bytes | FabricError],
        single: bool,
        flags: InsertFlag,
        sync_err: bool,
        fi_addr: Handles | None,
        context: Any,
    ) -> int | list[int] | tuple[list[int], list[FabricError | None]]:
        if flags & (InsertFlag.USER_ID | InsertFlag.AUTH_KEY) and fi_addr is None:
            raise InvalidArgumentError(f"{flags!r}: fi_addr must hold the input of each address (AV-13)")
        inputs = None
        if flags & (InsertFlag.USER_ID | InsertFlag.AUTH_KEY):
            inputs = [int(value) & _ALL_ONES for value in fi_addr]  # type: ignore[union-attr]
        if self._inserter is not None:
            if fi_addr is None and self.type == AVType.MAP:
                raise InvalidArgumentError(
                    "fi_addr is missing: an asynchronous map tells its handles nowhere else, and they are not predictable"
                )
            self._inserter.push(items, flags, inputs, fi_addr, context)
            return 0
        handles, errors = self._insert_now(list(items), flags, inputs)
        if fi_addr is not None:
            fill(fi_addr, handles)
        if flags & InsertFlag.SYNC_ERR:
            for index in range(len(handles)):
                context[index] = errors[index].errno if index in errors else 0
        if sync_err:
            return handles, [errors.get(index) for index in range(len(handles))]
        if errors and not flags & InsertFlag.SYNC_ERR:
            if single:
                raise errors[0]
            first = min(errors)
            raise InsertError(
                f"{len(errors)} of {len(handles)} addresses could not be inserted, first number {first}: {errors[first]}",
                handles=handles,
                errors=[errors.get(index) for index in range(len(handles))],
            )
        return handles[0] if single else handles

    def _insert_now(
        self, items: Sequence[bytes | FabricError], flags: InsertFlag, inputs: list[int] | None
    ) -> tuple[list[int], dict[int, FabricError]]:
        errors = {index: item for index, item in enumerate(items) if isinstance(item, FabricError)}
        user_ids = auths = None
        if flags & InsertFlag.USER_ID:
            user_ids = inputs
        elif flags & InsertFlag.AUTH_KEY:
            auths = []
            for index, handle in enumerate(inputs or ()):
                known = handle < len(self._auth_keys) and self._auth_keys[handle] is not None
                auths.append(handle + 1 if known else 0)
                if not known:
                    errors.setdefault(
                        index, InvalidArgumentError(f"{handle} is not the handle of an authorization key")
                    )
        given = [b"" if index in errors else item for index, item in enumerate(items)] if errors else items
        handles, failed = self._core.insert_many(list(given), user_ids, auths)
        for index, (code, text) in failed.items():
            errors.setdefault(index, make_error(code, text))
        for index in errors:
            handles[index] = ADDR_NOTAVAIL
        return handles, errors

    def bind(self, event_queue: EventQueue, flags: int = 0) -> None:
        """The queue that an asynchronous vector tells of its insertions; it is bound once (AV-55)."""
        self._check_open()
        if flags:
            raise BadFlagsError(f"flags={flags!r}: bind() takes none")
        if not isinstance(event_queue, EventQueue):
            raise InvalidArgumentError(
                f"an address vector is bound to an event queue, not a {type(event_queue).__name__}"
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
        """Forgets one peer or several. InvalidArgumentError if some were not there; the others are removed (AV-36).

        With InsertFlag.AUTH_KEY the handles are those of authorization keys; BusyError while an endpoint that was enabled with
        the key is open (AV-80).
        """
        self._check_open()
        if int(flags) & ~int(InsertFlag.AUTH_KEY):
            raise BadFlagsError(f"flags={flags!r}: remove() takes InsertFlag.AUTH_KEY or none")
        if self.read_only:
            raise AccessDeniedError("the address vector was opened with read_only=True")
        remove = self._remove_auth_key if flags else self._core.remove
        bad = []
        for handle in [handles] if isinstance(handles, int) else list(handles):
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
        """The address behind a handle, as text in a domain of format "str"; InvalidArgumentError if there is none.

        With `size`: (its first `size` bytes, the size that all of it needs) (AV-39).
        """
        self._check_open()
        try:
            address = self._shown(self._core.lookup(handle))
        except (TypeError, OverflowError):
            raise InvalidArgumentError(f"{handle!r} is not a handle of the address vector") from None
        shown: bytes | tuple[bytes, int] = _cut(address, size)
        return shown

    def _shown(self, address: bytes) -> Any:
        return _core.print_address(address) if self.addr_format == "str" else address

    @overload
    def straddr(self, address: Address) -> str: ...
    @overload
    def straddr(self, address: Address, size: int) -> tuple[str, int]: ...
    def straddr(self, address: Address, size: int | None = None) -> str | tuple[str, int]:
        """An address as text, whether inserted or not; an empty string for bytes of no known format (AV-43).

        With `size`: (what fits into so many bytes with the end mark of C, the size that all of it needs) (AV-42, AV-44).
        """
        self._check_open()
        text = address if isinstance(address, str) else _core.print_address(bytes_of("address", address))
        if size is None:
            return text
        if size < 0:
            raise InvalidArgumentError(f"size={size}: it is not negative")
        return text[: max(size - 1, 0)], len(text) + 1

    def __len__(self) -> int:
        return self._core.size()

    def __contains__(self, handle: object) -> bool:
        return isinstance(handle, int) and 0 <= handle < 2**64 and self._core.contains(handle)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        self._check_open()
        for handle in range(self._core.end()):
            try:
                yield handle, self._shown(self._core.lookup(handle))
            except InvalidArgumentError:  # vacant, or removed meanwhile
                continue

    # --- user ids and authorization keys

    def set_user_id(self, handle: int, user_id: int, *, flags: InsertFlag = _NO_FLAGS) -> None:
        """What completions report of a peer, in a vector opened with user_id=True; before, ADDR_NOTAVAIL (AV-74).

        With InsertFlag.AUTH_KEY: of peers that came under this authorization key and are not in the vector. Their completions
        have CompletionFlag.AUTH_KEY, whatever was set, and in vectors without user ids the handle of the key as source (AV-82).
        """
        self._check_open()
        if not 0 <= operator.index(user_id) <= _ALL_ONES:
            raise InvalidArgumentError(f"user_id={user_id}: it has 64 bits")
        if int(flags) & ~int(InsertFlag.AUTH_KEY):
            raise BadFlagsError(f"flags={flags!r}: set_user_id() takes InsertFlag.AUTH_KEY or none")
        if flags:
            self._auth_key(handle)
            self._core.set_key_user_id(handle + 1, user_id)
            return
        self._core.set_user_id(handle, user_id)

    def insert_auth_key(self, key: bytes, flags: int = 0) -> int:
        """Takes an authorization key; its handle counts as such only with InsertFlag.AUTH_KEY (AV-78).

        Endpoints that are opened with the vector afterwards take it, beside those that are there, and serve whoever has one of
        them; those that are open already do not (AV-77). Peers under different keys share no connection.

        InvalidArgumentError unless the domain was opened with av_auth_keys=True and the key has its auth_key_size.
        """
        self._check_open()
        if flags:
            raise BadFlagsError(f"flags={flags!r}: insert_auth_key() takes none")
        if not self._domain._av_auth_keys:
            raise InvalidArgumentError(
                "insert_auth_key() needs a domain opened with av_auth_keys=True (AV-76)"
            )
        if self.name is not None:
            raise NotSupportedError("authorization keys are not kept in address vectors with a name")
        size = self._domain._auth_key_size
        key = bytes_of("key", key)
        if not key or (size and len(key) != size):
            raise InvalidArgumentError(
                f"an authorization key of this domain has {size or 'at least one'} bytes (auth_key_size)"
            )
        with self._domain._registering:
            free = next((i for i, known in enumerate(self._auth_keys) if known is None), len(self._auth_keys))
            self._auth_keys[free : free + 1] = [key]
        return free

    def lookup_auth_key(self, handle: int, size: int | None = None, *, flags: InsertFlag = _NO_FLAGS) -> Any:
        """The authorization key of a peer's handle, or, with InsertFlag.AUTH_KEY, of a key's handle; `size` as in lookup()."""
        self._check_open()
        if int(flags) & ~int(InsertFlag.AUTH_KEY):
            raise BadFlagsError(f"flags={flags!r}: lookup_auth_key() takes InsertFlag.AUTH_KEY or none")
        if flags:
            return _cut(self._auth_key(handle), size)
        auth = self._core.auth(handle)
        if auth == 0:
            raise InvalidArgumentError(f"peer {handle} was inserted without an authorization key")
        return _cut(self._auth_key(auth - 1), size)

    def _auth_key(self, handle: int) -> bytes:
        key = self._auth_keys[handle] if 0 <= operator.index(handle) < len(self._auth_keys) else None
        if key is None:
            raise InvalidArgumentError(f"{handle} is not the handle of an authorization key")
        return key

    def _keys_now(self, only: bytes = b"") -> list[tuple[bytes, int]]:
        """The keys that an endpoint takes when it is enabled, or `only` that one, each with 1 + its handle (AV-77)."""
        return [
            (key, handle + 1)
            for handle, key in enumerate(self._auth_keys)
            if key is not None and only in (b"", key)
        ]

    def _remove_auth_key(self, handle: int) -> None:
        self._auth_key(handle)
        if any(not user.closed and handle in getattr(user, "_auth_handles", ()) for user in self._users):
            raise BusyError(
                f"authorization key {handle}: an endpoint that was enabled with it is still open (AV-80)"
            )
        self._auth_keys[handle] = None
        if self.user_id:
            self._core.set_key_user_id(handle + 1, None)

    def _end(self) -> None:
        if self._inserter is not None:
            self._inserter.stop()
        super()._end()
        if self.name is not None:  # the file is let go of now, not when this object is collected
            self._core = _core.AddressVectorCore(**self._options)

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


def _core_name(domain: Domain) -> str:
    return f"{domain.info.provider} {domain.info.domain}"


def _cut(value: Any, size: int | None) -> Any:
    if size is None:
        return value
    if size < 0:
        raise InvalidArgumentError(f"size={size}: it is not negative")
    return value[:size], len(value)


def fill(fi_addr: Handles, handles: Sequence[int]) -> None:
    """Writes handles to a list or array, as far as it goes with them."""
    for index, handle in enumerate(handles):
        fi_addr[index] = handle
