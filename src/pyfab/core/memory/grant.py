"""Grants: further keys to parts of regions, for some peers, some rights and some time."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from pyfab import _core
from pyfab._core import RemoteRegion
from pyfab.core.address_vector import AddressVector
from pyfab.core.domain_base import DomainBase
from pyfab.core.enums import Access, flag_names
from pyfab.core.errors import InvalidArgumentError, OperationTimeout
from pyfab.core.opening import seconds
from pyfab.core.stats import html_table

__all__ = ["Grant", "GrantPeers", "Until", "addresses_of", "seconds_until"]

GrantPeers: TypeAlias = Iterable[bytes | int]
"""Endpoints, by their addresses, or by their handles in an address vector."""
Until: TypeAlias = float | datetime.datetime
"""When a grant ends: seconds from now, or a point in time."""


def seconds_until(until: Until | None) -> float | None:
    """The time that is left, by this process's own clock from now on, however the time of day is set. None: for ever."""
    if until is None:
        return None
    if isinstance(until, datetime.datetime):
        left = (until - datetime.datetime.now(until.tzinfo)).total_seconds()
        if left <= 0:
            raise InvalidArgumentError(f"until={until!s}: that moment has passed")
        return left
    return seconds("until", until)


def addresses_of(domain: DomainBase, peers: GrantPeers | None, av: AddressVector | None) -> list[bytes]:
    """The addresses of those who may use a grant. [] stands for everybody who has the key."""
    if peers is None:
        return []
    if isinstance(peers, bytes | int):
        raise InvalidArgumentError(f"peers={peers!r}: give a list of addresses or handles")
    found = [peer if isinstance(peer, bytes) else _vector(domain, av).lookup(peer) for peer in peers]
    if not found:
        raise InvalidArgumentError(
            "peers: an empty list would let nobody in; None stands for whoever has the key"
        )
    return found


def _vector(domain: DomainBase, given: AddressVector | None) -> AddressVector:
    """The vector that handles are looked up in."""
    open_vectors = [item for item in domain._owned if isinstance(item, AddressVector) and not item.closed]
    if given is None and len(open_vectors) == 1:
        return open_vectors[0]
    if given is None:
        raise InvalidArgumentError(
            f"peers: handles mean something in one address vector, and the domain has {len(open_vectors)}; "
            "say which (av=endpoint.av), or give addresses"
        )
    if given._domain is not domain:
        raise InvalidArgumentError("av: the address vector belongs to another domain")
    return given


class Grant:
    """A further key to a part of a region. Made by `MemoryRegion.grant`; ends with revoke(), its time, or the region.

    It keeps its region alive. It stays valid if this object is dropped: `MemoryRegion.grants` lists the grants that may still be
    used. A `with` block revokes it at its end. Safe from any thread.
    """

    def __init__(self, region: Any, domain: DomainBase, core: _core.GrantCore) -> None:
        # `region` is kept, because it ends with its last reference, and its grants with it.
        self._region, self._domain, self._core = region, domain, core

    @property
    def remote(self) -> RemoteRegion:
        """What a peer needs to use the grant, and nothing more. Offsets count from the first byte granted.

        For a grant of all of the region, it has the dtype and shape of the region. For a part that consists of whole items, it is
        a one-dimensional array of these items; for any other part, of bytes. ClosedError once the grant has ended.
        """
        region = self._region
        if self.nbytes == region.nbytes:
            return self._core.remote(region._dtype, list(region._shape))
        dtype = region._dtype
        if self.offset % dtype.itemsize or self.nbytes % dtype.itemsize:
            dtype = np.dtype(np.uint8)
        return self._core.remote(dtype, [self.nbytes // dtype.itemsize])

    @property
    def access(self) -> Access:
        """Access.REMOTE_READ, Access.REMOTE_WRITE or both."""
        return Access(self._core.access)

    @property
    def offset(self) -> int:
        """Where the part begins in the region, in bytes."""
        return self._core.offset

    @property
    def nbytes(self) -> int:
        """Bytes of the part."""
        return self._core.nbytes

    @property
    def peers(self) -> tuple[bytes, ...] | None:
        """The addresses of those who may use it; None: whoever has the key."""
        return tuple(self._core.peers) or None

    @property
    def seconds_left(self) -> float | None:
        """How long it may still be used; None: until it is revoked."""
        return 0.0 if self.revoked else self._core.seconds_left

    @property
    def revoked(self) -> bool:
        """Whether nobody may use it any more: it was revoked, or its time or its region has ended."""
        return self._core.over

    def revoke(self) -> None:
        """Ends the grant. When it returns, no access under it is under way or can begin; the region stays as it is.

        What is under way fails at the peer with KeyRejectedError, as does what comes later. Calling it twice is harmless. A
        peer on this node that was stopped (SIGSTOP) in the middle of an access is waited for up to the domain's
        `peer_deadline`; then OperationTimeout names its process, as with `MemoryRegion.close`.
        """
        patience = self._domain._options.peer_deadline
        if process := self._core.revoke(patience):
            raise OperationTimeout(
                f"process {process} has been in the middle of an access under the grant for {patience:g} s, so it is stopped;"
                " no other access starts, but when it goes on it may still carry out this one, until revoke() or the region's"
                " close() returns"
            )

    def __enter__(self) -> Grant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.revoke()

    def _terms(self) -> str:
        """Who may do what, and for how long, in one line."""
        peers = "whoever has the key" if self.peers is None else f"{len(self.peers)} peers"
        if self.peers is not None and len(self.peers) == 1:
            peers = "1 peer"
        left = self.seconds_left
        until = "" if left is None else f", {left:.0f} s left"
        return f"{flag_names(self.access)} of [{self.offset}, {self.offset + self.nbytes}) for {peers}{until}"

    def __repr__(self) -> str:
        return f"<Grant {'over' if self.revoked else self._terms()}>"

    def _repr_html_(self) -> str:
        left = self.seconds_left
        rows = {
            "access": flag_names(self.access),
            "bytes": f"{self.offset} to {self.offset + self.nbytes} of {self._region.nbytes}",
            "peers": "whoever has the key" if self.peers is None else len(self.peers),
            "time": "until revoked" if left is None else f"{left:.0f} s left",
        }
        return html_table(f"Grant{' (over)' if self.revoked else ''}", rows)
