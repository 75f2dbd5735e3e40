"""Handles of peers: 64-bit numbers that hold an index, a peer group and a receive context."""

from __future__ import annotations

import operator
from collections.abc import MutableSequence, Sequence
from typing import Any

from pyfab.core.errors import InvalidArgumentError

__all__ = ["ALL_ONES", "INDEX_BITS", "Handles", "fill", "group_addr", "rx_addr"]

# The index takes the lowest bits and the group those above it; receive contexts take the topmost bits.
INDEX_BITS, GROUP_BITS = 32, 24
MAX_GROUP_ID = (1 << GROUP_BITS) - 1
ALL_ONES = 2**64 - 1

Handles = MutableSequence[int] | Any
"""What takes handles: a list, or an array of 64-bit integers."""


def rx_addr(handle: int, index: int, rx_ctx_bits: int) -> int:
    """`handle` as the target of receive context `index`, which takes the topmost `rx_ctx_bits` bits (fi_av(3)).

    `rx_ctx_bits` is that of the address vector. With 0 bits there is only index 0. ADDR_NOTAVAIL as
    `handle` stands for the other side of a connected endpoint: its topmost bits become `index`, and all others stay ones.
    """
    handle, index, bits = operator.index(handle), operator.index(index), operator.index(rx_ctx_bits)
    if not 0 <= bits <= 64 - INDEX_BITS:
        raise InvalidArgumentError(
            f"rx_ctx_bits={bits}: a handle has room for 0 to {64 - INDEX_BITS} beside the index"
        )
    if not 0 <= handle <= ALL_ONES:
        raise InvalidArgumentError(f"handle={handle}: a handle has 64 bits")
    if not 0 <= index < 1 << bits:
        raise InvalidArgumentError(f"index={index}: rx_ctx_bits={bits} tell contexts 0 to {(1 << bits) - 1}")
    if bits == 0:
        return handle
    below = (1 << (64 - bits)) - 1
    return (handle & below) | (index << (64 - bits))


def group_addr(handle: int, group_id: int) -> int:
    """`handle` with `group_id` as its peer group, in place of the one it had (fi_av(3)). The handle keeps all else."""
    handle, group_id = operator.index(handle), operator.index(group_id)
    if not 0 <= group_id <= MAX_GROUP_ID:
        raise InvalidArgumentError(f"group_id={group_id}: peer groups are 0 to {MAX_GROUP_ID}")
    if not 0 <= handle < ALL_ONES:
        raise InvalidArgumentError(
            f"handle={handle!r} is no peer's; for any source within a group give the group where you receive"
        )
    return (handle & ~(MAX_GROUP_ID << INDEX_BITS)) | (group_id << INDEX_BITS)


def fill(fi_addr: Handles, handles: Sequence[int]) -> None:
    """Writes handles to the start of a list or array, which may be longer than they are."""
    for index, handle in enumerate(handles):
        try:
            fi_addr[index] = handle
        except OverflowError:  # an array of signed integers: the same 64 bits
            fi_addr[index] = int(handle) - (1 << 64)
