"""Who meets, and how error messages name ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyfab.core.deadline import Deadline
from pyfab.core.errors import OperationTimeout, PeerLostError

Exchange = Callable[[bytes], list[bytes]]
"""Gives a value to all ranks of a meeting and returns everyone's, by rank. All call it equally often."""


class Member(NamedTuple):
    """Who somebody is in a meeting."""

    rank: int
    size: int


def ranks_text(ranks: Iterable[int], size: int) -> str:
    """``rank 2 of 4``, ``ranks 1, 3 of 4``."""
    listed = sorted(ranks)
    shown = ", ".join(map(str, listed[:20])) + (", ..." if len(listed) > 20 else "")
    return f"{'rank' if len(listed) == 1 else 'ranks'} {shown} of {size}"


def incomplete(
    arrived: Iterable[int], size: int, deadline: Deadline, where: str, hint: str = ""
) -> OperationTimeout:
    """The error of a meeting to which not all ranks came in time."""
    arrived = sorted(arrived)
    missing = set(range(size)) - set(arrived)
    came = ", ".join(map(str, arrived)) or "none"
    return OperationTimeout(
        f"{ranks_text(missing, size)} did not arrive at {where} within {deadline}; arrived: {came}{hint}"
    )


def lost_ranks(ranks: set[int], reason: str | None, size: int) -> PeerLostError:
    """What to raise when these ranks were found dead."""
    return PeerLostError(
        f"{ranks_text(ranks, size)} ended, left the group or can no longer be reached: {reason}"
    )
