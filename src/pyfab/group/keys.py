"""The keys of a group."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from pyfab.core.buffers import stretched_key
from pyfab.meeting.sealing import derive

if TYPE_CHECKING:
    from pyfab.core.domain import Domain


class Keys:
    """What only the members of a group have, and of all groups that came out of it: one object in each process.

    of_domain: their domains have the key; else only their endpoints do. members: of the widest of these groups.
    """

    def __init__(self, secret: bytes, of_domain: bool, members: int) -> None:
        self._secret, self.of_domain, self.members = secret, of_domain, members
        self._proving = [_for_proofs(secret)]
        # While the key is being replaced: by which one, which one it was, in which group, and how many barriers were passed.
        self.next: bytes | None = None
        self.former, self.passed = secret, 0
        self.replaced_in: object = None

    def shrunk(self, former: int, size: int) -> None:
        """A group of `former` ranks has become one of `size`."""
        if self.members == former:
            self.members = size

    def secret(self, domain: Domain) -> bytes:
        """The key of their endpoints."""
        return domain._core.auth_key if self.of_domain else self._secret

    @property
    def regions(self) -> bytes | None:
        """What others' endpoints need to reach the regions of the group; None: the key of the domain."""
        return None if self.of_domain else self._secret

    def proof(self, *shown: bytes) -> bytes:
        """What proves to the others that a member shows this."""
        return derive(self._proving[0], *shown)

    def proves(self, proof: bytes, *shown: bytes) -> bool:
        """Whether a member shows this. While the key is being replaced, proofs that are made with either are taken."""
        return any(hmac.compare_digest(proof, derive(key, *shown)) for key in self._proving)

    def expect(self, key: bytes, former: bytes, group: object) -> None:
        """All ranks of `group` have agreed on the next key: from now on proofs that are made with it are taken, too."""
        if self.next != key:
            self._proving = [self._proving[0], _for_proofs(key)]
            self.next, self.former = key, former
        self.replaced_in, self.passed = group, 0

    def replace(self) -> None:
        """From now on proofs are made with the next key."""
        assert self.next is not None
        if self._secret != self.next:
            self._secret = self.next
            self._proving.reverse()

    def settle(self) -> None:
        """All have replaced the key: from now on it is the only one."""
        del self._proving[1:]
        self.next = self.replaced_in = None


def _for_proofs(secret: bytes) -> bytes:
    # Whoever sees a proof and guesses at the secret has to stretch each guess.
    return derive(stretched_key(secret), b"proofs of a group")
