"""Domains with a registration cache, and what a registration counts as."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pyfab
from pyfab import Access
from support import Combination


@contextmanager
def opened(links: Combination, **cache):
    """A domain with a cache, and an endpoint that has itself as peer 0."""
    with (
        pyfab.Domain(links.spec, **{"mr_cache": True, **links.settings, **cache}) as domain,
        domain.endpoint() as endpoint,
    ):
        endpoint.av.insert(endpoint.address)
        yield domain, endpoint


def registered(domain: pyfab.Domain, memory: object, access: Access = Access.REMOTE) -> None:
    domain.register(memory, access).close()


def spread(count: int) -> list[np.ndarray]:
    """Arrays of 64 bytes that do not touch."""
    return list(np.zeros((count, 128), np.uint8)[:, :64])


def outcome(domain: pyfab.Domain, memory: object, access: Access = Access.REMOTE) -> str:
    """What a registration of `memory` counts as."""
    before = domain.stats().cache
    registered(domain, memory, access)
    after = domain.stats().cache
    assert after.searches == before.searches + 1
    assert after.hits + after.misses == after.searches
    return "hit" if after.hits > before.hits else "miss"
