"""A domain with a key serves those who know it, and nobody else."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer
from support import TIMEOUT, Combination, failure

OTHERS = {
    "another key": b"another key, as long",
    "a longer one": b"the key of the domain, longer",
    "none": None,
}
REFUSED = (pyfab.KeyRejectedError, pyfab.UnreachableError, pyfab.AccessDeniedError)


@pytest.mark.req("MR-68")
def test_those_who_know_the_key_are_served(combination: Combination):
    settings = {**combination.settings, "auth_key": b"the key of the domain"}
    with (
        Peer(combination.spec, where=combination.where, **settings) as peer,
        pyfab.Domain(combination.spec, **settings) as domain,
        domain.endpoint() as endpoint,
    ):
        exposed = peer.expose(np.zeros(8), alloc=combination.alloc)
        handle = endpoint.av.insert(peer.address)
        endpoint.write(np.ones(8), handle, exposed.remote).result(TIMEOUT)
        assert exposed.content().all()


@pytest.mark.req("MR-68")
@pytest.mark.parametrize("ours", OTHERS.values(), ids=OTHERS.keys())
def test_those_who_do_not_are_refused(combination: Combination, ours):
    """Whatever they know of the region; and the peer goes on serving others."""
    settings = {**combination.settings, "auth_key": b"the key of the domain"}
    with (
        Peer(combination.spec, where=combination.where, **settings) as peer,
        pyfab.Domain(combination.spec, **combination.settings, auth_key=ours) as stranger,
        stranger.endpoint() as outside,
        pyfab.Domain(combination.spec, **settings) as friend,
        friend.endpoint() as inside,
    ):
        exposed = peer.expose(np.zeros(8), alloc=combination.alloc)
        for _ in range(2):
            handle = outside.av.insert(peer.address)
            error = failure(lambda handle=handle: outside.write(np.ones(8), handle, exposed.remote))
            assert isinstance(error, REFUSED)
            assert "key" in str(error)
        assert not exposed.content().any()
        inside.write(np.ones(8), inside.av.insert(peer.address), exposed.remote).result(TIMEOUT)
        assert exposed.content().all()


@pytest.mark.req("MR-68")
def test_a_domain_with_a_key_does_not_trust_one_without(combination: Combination):
    with (
        Peer(combination.spec, where=combination.where, **combination.settings) as open_peer,
        pyfab.Domain(combination.spec, **combination.settings, auth_key=b"the key of the domain") as domain,
        domain.endpoint() as endpoint,
    ):
        exposed = open_peer.expose(np.zeros(8), alloc=combination.alloc)
        handle = endpoint.av.insert(open_peer.address)
        assert isinstance(failure(lambda: endpoint.write(np.ones(8), handle, exposed.remote)), REFUSED)
        assert not exposed.content().any()
