"""The name of a transport: bytes that its peers make a `TransportPeer` of."""

from __future__ import annotations

import struct

from pyfab.core.errors import InvalidArgumentError
from pyfab.transport.handles import HANDLE_SIZE, Registration, RemoteHandle
from pyfab.transport.module import Module

__all__ = ["name_of", "names_in"]

_CARD = b"PFT2"  # the first bytes of a transport's name


def name_of(modules: list[Module], beacon: Registration) -> bytes:
    """The name of a transport: its beacon, which peers read to time the modules, and the address of each module."""
    names = [module.endpoint.address for module in modules]
    return (
        _CARD
        + beacon.to_bytes()
        + struct.pack("<H", len(names))
        + b"".join(struct.pack("<I", len(n)) + n for n in names)
    )


def names_in(name: bytes) -> tuple[list[bytes], RemoteHandle | None]:
    """The addresses in a transport's name, and its beacon; no address and None if the name is damaged."""
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
