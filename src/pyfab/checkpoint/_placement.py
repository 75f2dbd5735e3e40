"""Which ranks hold the state of which."""

from __future__ import annotations

from collections.abc import Sequence

from pyfab.core.errors import InvalidArgumentError
from pyfab.data import _placement


def holders(hosts: Sequence[str], replicas: int) -> list[list[int]]:
    """For each rank the `replicas` others that hold its state. `hosts` are those of the ranks.

    They are on other hosts than the rank, and each on another one, if there are so many hosts; and each rank holds about as many
    states as any other. InvalidArgumentError unless there are more ranks than replicas.
    """
    if not 0 <= replicas < len(hosts):
        raise InvalidArgumentError(
            f"replicas={replicas}: how many other ranks hold each state, 0 to {len(hosts) - 1} of {len(hosts)} ranks"
        )
    return [ranks[1:] for ranks in _placement.holders(hosts, replicas + 1)]
