"""What a grant opens, and what it does not: rights, bytes, peers; and that the region's own key stays as it is."""

from __future__ import annotations

import socket

import grantor
import numpy as np
import pyfab
import pytest
from pyfab import Access, AccessDeniedError, AtomicOp, BoundsError, KeyRejectedError
from refusals import check_refused
from support import TIMEOUT, failure, random_bytes

CONTENT = np.arange(64, dtype=np.int64)


@pytest.fixture(params=["anybody", "named", "timed"])
def limits(request, pair):
    """Grants for whoever has the key, which peers use by themselves, and limited ones, of which the owner serves each request."""
    return {
        "anybody": {},
        "named": {"peers": [pair.endpoint.address]},
        "timed": {"until": 3600.0},
    }[request.param]


@pytest.mark.req("MR-85")
def test_a_grant_opens_its_part(pair, limits):
    exposed = pair.expose(CONTENT)
    remote = pair.peer.run(grantor.give, exposed.name, offset=80, nbytes=160, **limits)
    assert (remote.shape, remote.dtype, remote.nbytes) == ((20,), np.int64, 160)
    landing = np.zeros(20, np.int64)
    pair.get(landing, remote)
    assert (landing == CONTENT[10:30]).all()
    pair.put(-landing, remote)
    expected = CONTENT.copy()
    expected[10:30] *= -1
    assert (exposed.content() == expected).all()
    former = np.zeros(1, np.int64)
    pair.endpoint.fetch_atomic(AtomicOp.SUM, np.array([5]), former, pair.handle, remote[3:4]).result(TIMEOUT)
    assert former[0] == -13
    assert exposed.content()[13] == -8


@pytest.mark.req("MR-85")
def test_a_long_part_is_put_and_got(pair, limits):
    content = random_bytes(5 << 20)
    exposed = pair.expose(content)
    remote = pair.peer.run(grantor.give, exposed.name, offset=1000, nbytes=4 << 20, **limits)
    landing = np.zeros(4 << 20, np.uint8)
    pair.get(landing, remote)
    expected = content.copy()
    assert (landing == expected[1000 : 1000 + (4 << 20)]).all()
    expected[1000 : 1000 + (4 << 20)] ^= 0xFF
    pair.put(landing ^ 0xFF, remote)
    assert (exposed.content() == expected).all()


@pytest.mark.req("MR-85")
def test_a_grant_tells_of_remote_data(pair, limits):
    exposed = pair.expose(CONTENT)
    remote = pair.peer.run(grantor.give, exposed.name, **limits)
    assert remote.shape == CONTENT.shape
    pair.endpoint.write(np.full(64, 7), pair.handle, remote, data=41).result(TIMEOUT)
    assert (exposed.content() == 7).all()


@pytest.mark.req("MR-86")
@pytest.mark.parametrize("right", [Access.REMOTE_READ, Access.REMOTE_WRITE])
def test_rights_that_were_not_granted_are_refused(pair, limits, right):
    exposed = pair.expose(CONTENT)
    remote = pair.peer.run(grantor.give, exposed.name, access=right, **limits)
    local = np.full(64, -1)
    if right == Access.REMOTE_WRITE:
        assert isinstance(failure(lambda: pair.endpoint.read(local, pair.handle, remote)), AccessDeniedError)
        assert (local == -1).all()
        return
    assert isinstance(failure(lambda: pair.endpoint.write(local, pair.handle, remote)), AccessDeniedError)
    add = failure(lambda: pair.endpoint.atomic(AtomicOp.SUM, local[:1], pair.handle, remote[:1]))
    assert isinstance(add, AccessDeniedError)
    assert (exposed.content() == CONTENT).all()
    pair.put(local, exposed.remote)  # the region's own key has its rights as before
    assert (exposed.content() == -1).all()


@pytest.mark.req("MR-86")
@pytest.mark.parametrize("offset, count", [(160, 1), (152, 2), (2**64 - 80, 10), (2**64 - 8, 1), (0, 21)])
def test_bytes_beyond_the_part_are_refused(pair, limits, offset, count):
    exposed = pair.expose(CONTENT)
    remote = pair.peer.run(grantor.give, exposed.name, offset=80, nbytes=160, **limits)
    local = np.full(count, -1)
    there = (offset, remote.key)
    assert isinstance(failure(lambda: pair.endpoint.write(local, pair.handle, there)), BoundsError)
    assert isinstance(failure(lambda: pair.endpoint.read(local, pair.handle, there)), BoundsError)
    assert (local == -1).all()
    assert (exposed.content() == CONTENT).all()


@pytest.mark.req("MR-85", "MR-88")
def test_several_grants_of_a_region(pair):
    exposed = pair.expose(CONTENT)
    first = pair.peer.run(grantor.give, exposed.name, offset=0, nbytes=256)
    second = pair.peer.run(grantor.give, exposed.name, offset=128, nbytes=384, access=Access.REMOTE_READ)
    assert len({first.key, second.key, exposed.key}) == 3
    pair.put(np.zeros(32, np.int64), first)
    landing = np.ones(48, np.int64)
    pair.get(landing, second)
    assert (landing[:16] == 0).all()
    assert (landing[16:] == CONTENT[32:]).all()
    pair.peer.run(grantor.revoke, exposed.name)  # the second one
    assert isinstance(failure(lambda: pair.endpoint.read(landing, pair.handle, second)), KeyRejectedError)
    pair.put(np.ones(32, np.int64), first)
    pair.put(CONTENT, exposed.remote)
    assert (exposed.content() == CONTENT).all()


@pytest.mark.req("MR-86", "MR-87")
def test_a_grant_for_one_peer_is_of_no_use_to_another(pair):
    exposed = pair.expose(CONTENT)
    with grantor.Stranger(pair) as stranger:
        mine = pair.peer.run(grantor.give, exposed.name, [pair.endpoint.address])
        check_refused(exposed, stranger, mine)
        assert (exposed.content() == CONTENT).all()
        local = np.full(64, -1)
        pair.get(local, mine)
        assert (local == CONTENT).all()
        both = pair.peer.run(
            grantor.give, exposed.name, [pair.handle_there, stranger.handle_there], Access.REMOTE_WRITE
        )
        stranger.endpoint.write(np.full(64, 3), stranger.handle, both).result(TIMEOUT)
        assert (exposed.content() == 3).all()
        pair.put(np.full(64, 4), both)
        assert (exposed.content() == 4).all()


@pytest.mark.req("MR-89")
def test_terms_that_a_region_cannot_give():
    with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint:
        region = domain.register(np.zeros(8), Access.REMOTE_READ)
        for wrong, error in (
            ({"access": Access.REMOTE}, AccessDeniedError),
            ({"access": Access.READ}, pyfab.InvalidArgumentError),
            ({"access": Access(0)}, pyfab.InvalidArgumentError),
            ({"offset": 65}, BoundsError),
            ({"offset": 60, "nbytes": 5}, BoundsError),
            ({"nbytes": 0}, pyfab.InvalidArgumentError),
            ({"until": 0}, pyfab.InvalidArgumentError),
            ({"until": float("nan")}, pyfab.InvalidArgumentError),
            ({"peers": []}, pyfab.InvalidArgumentError),
            ({"peers": [b"nonsense"]}, pyfab.InvalidArgumentError),
            ({"peers": endpoint.address}, pyfab.InvalidArgumentError),
            ({"peers": [77]}, pyfab.InvalidArgumentError),
        ):
            with pytest.raises(error):
                region.grant(**wrong)
        assert region.grants == []
        local = domain.register(np.zeros(8), Access.LOCAL)
        with pytest.raises(AccessDeniedError):
            local.grant()
        region.close()
        with pytest.raises(pyfab.ClosedError):
            region.grant()


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


@pytest.mark.req("MR-87")
def test_a_peer_whose_address_is_a_place_is_not_granted_anything():
    """Whoever listens at a port of choice has that address, so nobody can be held to it."""
    with (
        pyfab.Domain("tcp:lo") as domain,
        pyfab.Domain("tcp:lo", tcp_port=free_port()) as fixed,
        domain.endpoint(),
        fixed.endpoint() as known,
        domain.register(np.zeros(8), Access.REMOTE) as region,
        pytest.raises(pyfab.UnreachableError, match="place"),
    ):
        region.grant([known.address])


@pytest.mark.req("MR-90")
def test_grants_are_shown():
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        region = domain.register(np.zeros(8), Access.REMOTE)
        with region[8:24].grant([endpoint.address], access=Access.REMOTE_READ, until=100) as grant:
            assert (grant.offset, grant.nbytes, grant.access) == (8, 16, Access.REMOTE_READ)
            assert grant.peers == (endpoint.address,)
            assert 0 < grant.seconds_left <= 100
            assert [other.remote.key for other in region.grants] == [grant.remote.key]
            assert "grants REMOTE_READ of [8, 24) for 1 peer, " in repr(domain.regions_map())
            assert "REMOTE_READ of [8, 24)" in repr(grant)
            assert "8 to 24 of 64" in grant._repr_html_()
        assert grant.revoked
        assert region.grants == []
        assert repr(grant) == "<Grant over>"
        assert "grants" not in repr(domain.regions_map())
        with pytest.raises(pyfab.ClosedError):
            _ = grant.remote
        grant.revoke()
        open_to_all = region.grant()
        assert (open_to_all.peers, open_to_all.seconds_left) == (None, None)
        assert open_to_all.remote.shape == (8,)
        region.close()
        assert open_to_all.revoked
