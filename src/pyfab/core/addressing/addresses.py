"""Addresses as programs write and read them: bytes or text, in the format of a domain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pyfab import _core
from pyfab.core.buffers import bytes_of
from pyfab.core.errors import FabricError, InvalidArgumentError

__all__ = ["FORMATS", "Address", "as_text", "cut", "packed", "parse_addr", "shown"]

FORMATS = {"bundle": 0, "sockaddr_in": 1, "sockaddr_in6": 2, "str": 3}
"""The core's number of each address format, by the name of the format."""

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


def _packed(address: Any, format: str) -> bytes | FabricError:
    if isinstance(address, bytes):
        return address
    if isinstance(address, bytearray | memoryview):
        return bytes_of("address", address)
    if isinstance(address, str) and (format == "str" or address.startswith("fi_")):
        try:
            return _core.parse_address(address)
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
