"""How an address vector is opened."""

from __future__ import annotations

import dataclasses
import operator
from typing import Literal, TypedDict

from pyfab.core.addressing.handles import ALL_ONES, INDEX_BITS
from pyfab.core.enums import AVType
from pyfab.core.errors import InvalidArgumentError

__all__ = ["CoreOptions", "VectorOptions"]


class CoreOptions(TypedDict):
    """The arguments of `_core.AddressVectorCore`."""

    format: int
    rx_bits: int
    max_group: int
    ep_per_node: int
    symmetric: bool
    user_ids: bool
    reject_duplicates: bool
    type: int


@dataclasses.dataclass(frozen=True)
class VectorOptions:
    """The keywords of `Domain.address_vector`, which explains them.

    InvalidArgumentError for a value that its keyword does not take.
    """

    count: int
    ep_per_node: int
    rx_ctx_bits: int
    name: str | None
    read_only: bool
    map_addr: int
    symmetric: bool
    user_id: bool
    asynchronous: bool
    duplicates: Literal["allow", "reject"]
    on_error: Literal["continue", "abort"]

    def __post_init__(self) -> None:
        for argument in ("count", "ep_per_node", "map_addr"):
            value = getattr(self, argument)
            if not 0 <= operator.index(value) <= ALL_ONES:
                raise InvalidArgumentError(f"{argument}={value}: it is not negative, and has 64 bits")
        if not 0 <= operator.index(self.rx_ctx_bits) <= 64 - INDEX_BITS:
            raise InvalidArgumentError(f"rx_ctx_bits={self.rx_ctx_bits}: a handle has no room for so many")
        if self.duplicates not in ("allow", "reject"):
            raise InvalidArgumentError(f'duplicates={self.duplicates!r}: it is "allow" or "reject"')
        if self.on_error not in ("continue", "abort"):
            raise InvalidArgumentError(f'on_error={self.on_error!r}: it is "continue" or "abort"')
        if self.read_only and self.name is None:
            raise InvalidArgumentError("read_only=True is for address vectors with a name")

    def for_core(self, format: int, max_group: int, type: AVType) -> CoreOptions:
        """The options as the core takes them, with what the domain says of addresses, groups and handles."""
        return CoreOptions(
            format=format,
            rx_bits=self.rx_ctx_bits,
            max_group=max_group,
            ep_per_node=min(self.ep_per_node, 2**16 - 1),
            symmetric=bool(self.symmetric),
            user_ids=bool(self.user_id),
            reject_duplicates=self.duplicates == "reject",
            type=int(type),
        )
