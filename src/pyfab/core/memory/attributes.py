"""What a registration takes and gives, beside the region itself."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

from pyfab.core.address_vector import AddressVector
from pyfab.core.enums import Access, Caps, MRFlag
from pyfab.core.errors import BadFlagsError, InvalidArgumentError

__all__ = ["AuthKeys", "MRAttr", "RawKey"]

_NO_FLAGS = MRFlag(0)
AuthKeys = bytes | Sequence[bytes] | AddressVector | tuple[AddressVector, int] | None
"""The authorization keys of a region: one key; several, of which a peer needs one; or all keys of an address vector.
With MRFlag.AUTH_KEY it is one key of an address vector, by its handle."""


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

    def _check(self, caps: Caps) -> None:
        """Refuses what no region of a domain with these capabilities takes."""
        if self.offset != 0:
            raise InvalidArgumentError(
                f"offset={self.offset}: it is reserved and must be 0; slice the buffer instead"
            )
        rights: object = self.access  # whatever the caller gave
        if not isinstance(rights, int) or rights & ~int(Access.ALL):
            raise InvalidArgumentError(
                f"access={self.access!r}: it is a combination of Access.SEND, RECV, READ, WRITE, REMOTE_READ, REMOTE_WRITE"
            )
        if self.key is not None and not 0 <= operator.index(self.key) < 2**64:
            raise InvalidArgumentError(f"key={self.key}: a key is an int from 0 to 2**64 - 2")
        if int(self.flags) & ~int(MRFlag.PMEM | MRFlag.RMA_EVENT | MRFlag.AUTH_KEY):
            raise BadFlagsError(
                f"flags={self.flags!r}: a region takes MRFlag.PMEM, MRFlag.RMA_EVENT, MRFlag.AUTH_KEY or none"
            )
        if self.flags & MRFlag.PMEM and not caps & Caps.RMA_PMEM:
            raise BadFlagsError("MRFlag.PMEM: the domain was opened without Caps.RMA_PMEM")


@dataclasses.dataclass(frozen=True)
class RawKey:
    """A key as bytes, with the base that peers add to offsets. A peer turns it into a number with `Domain.map_raw`."""

    base_address: int
    key: bytes
