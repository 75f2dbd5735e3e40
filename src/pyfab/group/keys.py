"""The keys of a group."""

from __future__ import annotations

from typing import NamedTuple


class Keys(NamedTuple):
    """What only the members of a group have.

    `secret` proves what they show each other. `regions` is what others' endpoints need to reach the regions of the group, where
    the domain has another key than the group; None: that of the domain.
    """

    secret: bytes
    regions: bytes | None = None
