"""Makes a process one of another version: ``python other_version.py NUMBERS PROGRAM ARGUMENTS...`` runs it with other numbers.

No other version speaks these protocols yet. So this one shows the number of the next in what it shares, and takes that of its
peers for another, as both sides of two versions do.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pyfab
from pyfab import _core
from pyfab.core.address_vector import AddressVector
from pyfab.core.domain import Domain

LAYOUT = 8  # where the number stands in each
FILE_VERSION = 16


def next_of(form: str) -> int:
    return _core.versions[form] + 1


def descriptors(name: str) -> list[int]:
    """Those of this process whose file has this in its name."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            if name in str(Path(f"/proc/self/fd/{number}").readlink()):
                found.append(int(number))
        except OSError:  # the listing's own
            continue
    return found


def mapped(path_part: str) -> list[int]:
    """The addresses at which this process has the beginnings of such files mapped for writing."""
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return [
        int(fields[0].partition("-")[0], 16)
        for fields in maps
        if len(fields) == 6 and path_part in fields[5] and fields[1][1] == "w" and int(fields[2], 16) == 0
    ]


def write(path_part: str, place: int, form: str) -> int:
    """Writes the next version into each open file with this in its name. Returns how many there are."""
    number = struct.pack("<I", next_of(form))
    found = descriptors(path_part)
    for file in found:
        try:
            os.pwrite(file, number, place)
        except PermissionError:  # sealed, so that only its owner's mapping is left to write to
            for address in mapped(path_part):
                ctypes.memmove(address + place, number, len(number))
    return len(found)


def with_parts(address: bytes, form: str, link: str) -> bytes:
    """The address with the parts of a link in the next version."""
    number = struct.pack("<H" if link == "shm" else "B", next_of(form))
    parts = [
        (tag, context, number + part[len(number) :] if tag.startswith(link) else part)
        for tag, context, part in _core.decode_name(address)
    ]
    return _core.encode_name(parts)


def share_other_memory() -> None:
    """Another layout of shared memory, here and, as seen from here, at peers."""
    opened, inserted = Domain.__init__, AddressVector.insert

    def init(self: Domain, *args: Any, **settings: Any) -> None:
        opened(self, *args, **settings)
        write("memfd:pyfab-segment", LAYOUT, "shared memory")

    def insert(self: AddressVector, address: Any, **options: Any) -> Any:
        if isinstance(address, bytes):
            address = with_parts(address, "shared memory", "shm")
        return inserted(self, address, **options)

    Domain.__init__ = init  # type: ignore[method-assign]
    AddressVector.insert = insert  # type: ignore[assignment,method-assign]


def keep_other_vectors() -> None:
    """Another version of named address vectors."""
    opened = Domain.address_vector

    def address_vector(self: Domain, *args: Any, **options: Any) -> Any:
        vector = opened(self, *args, **options)
        write("/dev/shm/pyfab-av-", FILE_VERSION, "named address vector")
        return vector

    Domain.address_vector = address_vector  # type: ignore[method-assign]


if __name__ == "__main__":
    _, numbers, program, *sys.argv[1:] = sys.argv
    {"memory": share_other_memory, "vectors": keep_other_vectors, "nothing": lambda: None}[numbers]()
    exec(compile(program, "program", "exec"), {"__name__": "__main__", "pyfab": pyfab})
