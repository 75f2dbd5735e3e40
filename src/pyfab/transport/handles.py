"""Handles of registered memory, for the process that has it and for its peers."""

from __future__ import annotations

import struct

from pyfab import versions
from pyfab.core.enums import Access
from pyfab.core.errors import InvalidArgumentError
from pyfab.core.region import MemoryRegion
from pyfab.transport.module import MOST_MODULES, Module

__all__ = ["HANDLE_SIZE", "Registration", "RemoteHandle"]

_HANDLE = struct.Struct(f"<4sIQQQ{MOST_MODULES}Q")  # magic, rights, length, address, local descriptor, keys
_MAGIC = b"PFH%d" % versions.REGISTRATION
HANDLE_SIZE = _HANDLE.size


class RemoteHandle:
    """A peer's registration, as it came in `Registration.to_bytes`."""

    def __init__(self, data: bytes) -> None:
        if data[:3] == _MAGIC[:3] and data[3:4].isdigit() and data[:4] != _MAGIC:
            raise InvalidArgumentError(
                f"this handle is of version {int(data[3:4])}, this library reads version {versions.REGISTRATION}: use the same"
                " version of pyfab on both sides"
            )
        if len(data) != HANDLE_SIZE or data[:4] != _MAGIC:
            raise InvalidArgumentError(
                f"a handle has {HANDLE_SIZE} bytes, as Registration.to_bytes() makes them"
            )
        _, access, self.nbytes, self.address, _, *self._keys = _HANDLE.unpack(data)
        self.access = Access(access & int(Access.ALL))

    def _place(self, module: Module, number: int, address: int) -> tuple[int, int]:
        """Address and key as the core takes them. `address` is the program's, `number` that of the peer's module."""
        return address - (0 if module.virtual else self.address), self._keys[number % MOST_MODULES]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.nbytes} bytes at {self.address:#x}>"


class Registration(RemoteHandle):
    """Registered memory: a handle for this process and, as bytes, for its peers. Made by `Transport.register`.

    `address` is how operations name the first byte: in MRMode.VIRT_ADDR its virtual address, else a number that tells nothing
    about this process. Programs add offsets to it in the same way in both modes.
    """

    def __init__(self, owner: object, regions: list[MemoryRegion], address: int) -> None:
        self._owner, self._regions = owner, regions  # the owner is the transport that made it
        self._uses = 0  # outstanding operations that read or write the memory here
        keys = [int(region.key) if region.access & Access.REMOTE else 0 for region in regions]
        # The descriptor means nothing to a peer, so it is blank.
        self._data = _HANDLE.pack(
            _MAGIC,
            int(regions[0].access),
            regions[0].nbytes,
            address,
            0,
            *(keys + [0] * MOST_MODULES)[:MOST_MODULES],
        )
        super().__init__(self._data)

    def to_bytes(self) -> bytes:
        """HANDLE_SIZE bytes, to be sent to peers as they are."""
        return self._data

    @property
    def descriptor(self) -> int:
        """What names the memory locally: the `desc` of its region in the first module."""
        return self._regions[0].desc
