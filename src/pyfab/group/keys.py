"""The keys of a group."""

from __future__ import annotations

from typing import NamedTuple

from pyfab.core.buffers import stretched_key
from pyfab.meeting.sealing import derive


class Keys(NamedTuple):
    """What only the members of a group have.

    `secret` is the key of their endpoints. `regions` is what others' endpoints need to reach the regions of the group, where
    the domain has another key than the group; None: that of the domain.
    """

    secret: bytes
    regions: bytes | None = None

    def for_proofs(self) -> bytes:
        """What the members' proofs are made with. Whoever sees one and guesses at the secret has to stretch each guess."""
        return derive(stretched_key(self.secret), b"proofs of a group")
