"""Addresses as programs write and read them: bytes or text, in the format of a domain."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

from pyfab import _core
from pyfab.core.buffers import bytes_of
from pyfab.core.errors import FabricError, InvalidArgumentError

__all__ = ["FORMATS", "Address", "as_text", "bundled", "cut", "packed", "parse_addr", "shown"]

FORMATS = {"bundle": 0, "sockaddr_in": 1, "sockaddr_in6": 2, "str": 3}
"""The core's number of each address format, by the name of the format."""

_SOCKET_BYTES = {
    int(socket.AF_INET): 16,
    int(socket.AF_INET6): 28,
}  # the length of a socket address, by its family

Address = bytes | bytearray | memoryview | str
T = TypeVar("T", bytes, str)


def parse_addr(text: str) -> bytes:
    """The address that `AddressVector.straddr` printed. InvalidArgumentError for any other text."""
    return _core.parse_address(text)


def as_text(address: Address) -> str:
    """An address as text; an empty string for bytes of no known format."""
    return address if isinstance(address, str) else _core.print_address(bytes_of("address", address))


def shown(address: bytes, format: str) -> Any:
    """An address of the core as a domain of this format shows it: text for "str", else bytes."""
    return _core.print_address(address) if format == "str" else address


def packed(addresses: Iterable[Any], format: str) -> list[bytes | FabricError]:
    """The addresses that a program passed, as the core takes them. One that is no address becomes its error."""
    return [_packed(address, format) for address in addresses]


def bundled(address: bytes | FabricError, format: str) -> bytes | FabricError:
    """A socket address as a domain of this format takes it: where names are bundles, as one with this part alone.

    Any other address, and an error, as it is.
    """
    if format == "bundle" and isinstance(address, bytes) and _is_of_a_socket(address):
        return _core.encode_name([("sockaddr", 0, address)])
    return address


def _other_format(address: bytes) -> InvalidArgumentError:
    text = _core.print_address(address)
    format = text.removeprefix("fi_").partition(":")[0]
    return InvalidArgumentError(
        f"{text} is a socket address, and the addresses of this domain are bundles: use insert_service({text!r}), or open the"
        f" domain with addr_format={format!r}"
    )


def _is_of_a_socket(address: bytes) -> bool:
    length = len(address)
    return length in (16, 28) and _SOCKET_BYTES.get(int.from_bytes(address[:2], sys.byteorder)) == length


def _packed(address: Any, format: str) -> bytes | FabricError:
    if isinstance(address, bytes | bytearray | memoryview):
        given = address if isinstance(address, bytes) else bytes_of("address", address)
        return _other_format(given) if format == "bundle" and _is_of_a_socket(given) else given
    if isinstance(address, str) and (format == "str" or address.startswith("fi_")):
        try:
            return _packed(_core.parse_address(address), format)
        except FabricError as error:
            return error
    kind = "str" if format == "str" else "bytes"
    return InvalidArgumentError(f"an address of this domain is {kind}, not {type(address).__name__}")


def cut(value: T, size: int | None) -> T | tuple[T, int]:
    """All of the value, or, where a program offers room for `size` items: (what fits, the size that all of it needs)."""
    if size is None:
        return value
    if size < 0:
        raise InvalidArgumentError(f"size={size}: it is not negative")
    return value[:size], len(value)
