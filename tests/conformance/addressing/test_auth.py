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


@pytest.mark.slow
@pytest.mark.req("MR-68")
@pytest.mark.parametrize("ours", OTHERS.values(), ids=OTHERS.keys())
def test_those_who_do_not_are_refused(combination: Combination, ours):
    """Whatever they know of the region; and the peer goes on serving others."""
    if ours is None and combination.settings.get("encrypt"):
        pytest.skip("nobody encrypts without a key")
    settings = {**combination.settings, "auth_key": b"the key of the domain"}
    with (
        Peer(combination.spec, where=combination.where, **settings) as peer,
        pyfab.Domain(combination.spec, **{**combination.settings, "auth_key": ours}) as stranger,
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
    if combination.settings.get("encrypt"):
        pytest.skip("nobody encrypts without a key")
    with (
        Peer(combination.spec, where=combination.where, **combination.settings) as open_peer,
        pyfab.Domain(combination.spec, **combination.settings, auth_key=b"the key of the domain") as domain,
        domain.endpoint() as endpoint,
    ):
        exposed = open_peer.expose(np.zeros(8), alloc=combination.alloc)
        handle = endpoint.av.insert(open_peer.address)
        assert isinstance(failure(lambda: endpoint.write(np.ones(8), handle, exposed.remote)), REFUSED)
        assert not exposed.content().any()


@pytest.mark.req("MR-68", "AV-76")
@pytest.mark.parametrize("wrong", [8, 0, True, "secret", [1, 2]], ids=repr)
def test_what_is_no_key_is_refused(wrong):
    """A number is no key of so many zeroes, which anybody could guess."""
    with (
        pyfab.Domain("shm", auth_key=bytearray(b"the key of the domain"), av_auth_keys=True) as domain,
        domain.address_vector() as av,
    ):
        for use in (
            lambda: pyfab.Domain("shm", auth_key=wrong),
            lambda: domain.register(np.zeros(8), pyfab.Access.REMOTE, auth_key=wrong),
            lambda: domain.endpoint(auth_key=wrong),
            lambda: domain.endpoint(av, auth_key=wrong),
            lambda: av.insert_auth_key(wrong),
        ):
            with pytest.raises(pyfab.InvalidArgumentError, match="key"):
                use()


@pytest.mark.req("MR-68")
def test_an_empty_key_is_not_taken_for_none():
    """As an unset variable gives it: whoever passes a key means that others are kept out."""
    with pytest.raises(pyfab.InvalidArgumentError, match="at least one byte"):
        pyfab.Domain("shm", auth_key=b"")
    with pyfab.Domain("shm") as domain, pytest.raises(pyfab.InvalidArgumentError, match="at least one byte"):
        domain.endpoint(auth_key=b"")


def test_a_number_is_no_buffer():
    """Nor so many zeroes, wherever bytes are taken."""
    with (
        pyfab.Domain("shm") as domain,
        domain.address_vector() as av,
        pyfab.Transport("shm") as transport,
    ):
        for use in (
            lambda: av.straddr(8),
            lambda: domain.map_raw(8),
            lambda: transport.send(transport.peer(transport.name), 1, 8),
        ):
            with pytest.raises(pyfab.InvalidArgumentError, match="int"):
                use()
