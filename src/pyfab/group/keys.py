"""The keys of a group."""

from __future__ import annotations

from pyfab.core.buffers import stretched_key
from pyfab.meeting.sealing import derive


class Keys:
    """What only the members of a group have, and all groups that came out of it.

    secret: the key of their endpoints. of_domain: their domains have that key; else only their endpoints do.
    """

    def __init__(self, secret: bytes, of_domain: bool) -> None:
        self._of_domain = of_domain
        self.replace(secret)

    def replace(self, secret: bytes) -> None:
        """The members have agreed on another key, and their domains know it."""
        # Whoever sees a proof and guesses at the secret has to stretch each guess.
        self.secret, self.for_proofs = secret, derive(stretched_key(secret), b"proofs of a group")

    @property
    def regions(self) -> bytes | None:
        """What others' endpoints need to reach the regions of the group; None: the key of the domain."""
        return None if self._of_domain else self.secret
