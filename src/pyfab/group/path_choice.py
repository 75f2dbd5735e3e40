"""Which of several links to a peer is taken: one whose device moves bytes itself, to all peers. Of equals the fastest."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from pyfab import _core
from pyfab.core.addressing.link_traits import traits_of
from pyfab.core.errors import FabricError

if TYPE_CHECKING:
    from pyfab._core import Context, Operation
    from pyfab.core.address_vector import AddressVector

__all__ = ["UNREACHED", "left_out", "measure", "mixed", "not_to_all", "rank"]

_ROUNDS = 6  # gets of a few bytes; the first opens the path and is not counted
UNREACHED = float("inf")


def rank(shared: bool, direct: bool, latency: float) -> tuple[bool, bool, float]:
    """The rank of a link; the lowest is best. Shared memory comes first, then a device that leads to all, then messages."""
    return not shared, not direct, latency


def measure(context: Context, peer: int, place: tuple[int, int], told: Callable[[float], None]) -> None:
    """Tells the seconds of a small get from `place` of the peer, or UNREACHED if it fails. Does not wait."""
    into = np.empty(8, np.uint8)
    took: list[float] = []
    begun = 0.0

    def go_on(ended: Operation | None) -> None:
        nonlocal begun
        if ended is not None:
            if ended._failure is not None:
                return told(UNREACHED)
            took.append(time.perf_counter() - begun)
        if len(took) == _ROUNDS:
            return told(min(took[1:]))
        begun = time.perf_counter()
        try:
            context.read(into, peer, place).add_done_callback(go_on)
        except FabricError:
            told(UNREACHED)

    go_on(None)


def mixed(address: bytes) -> bool:
    """Whether an endpoint has network links of both kinds, so that one can take the place of the other."""
    traits = map(traits_of, _core.address_links(address))
    return len({link.by_device for link in traits if not link.within_node}) == 2


def not_to_all(av: AddressVector, context: Context, addresses: Iterable[bytes], own: bytes) -> list[str]:
    """Links that move bytes themselves and do not lead to all of the addresses on other nodes; `own` is this endpoint's."""

    def leads(address: bytes, link: str) -> bool:
        if link not in _core.address_links(address):
            return False
        try:
            handle = av.insert(_core.restrict_address(address, [link]))
        except FabricError:
            return False
        try:
            return context._reaches(handle)
        finally:
            av.remove(handle)

    far = [address for address in addresses if address != own and not leads(address, "shm.0")]
    return sorted(link for link in _direct(addresses) if not all(leads(address, link) for address in far))


def left_out(named: Iterable[Iterable[str]], addresses: Iterable[bytes]) -> set[str]:
    """The links that all ranks leave out because some rank named them. Only links whose device moves bytes can be left out."""
    return _direct(addresses).intersection(itertools.chain(*named))


def _direct(addresses: Iterable[bytes]) -> set[str]:
    return {
        link for address in addresses for link in _core.address_links(address) if traits_of(link).by_device
    }
