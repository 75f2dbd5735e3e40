"""Handles of peers: given in order, reused from the lowest, refused once they are gone."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from pyfab import Access
from support import TIMEOUT

BAD = b"not an address"


@pytest.fixture(scope="module")
def domain():
    with pyfab.Domain("shm+tcp") as domain:
        yield domain


@pytest.fixture(scope="module")
def addresses(domain):
    """Of eight endpoints."""
    endpoints = [domain.endpoint() for _ in range(8)]
    yield [endpoint.address for endpoint in endpoints]
    for endpoint in endpoints:
        endpoint.close()


@pytest.fixture
def av(domain):
    with domain.address_vector() as av:
        yield av


@pytest.mark.req("AV-10")
def test_handles_follow_the_order_of_insertion(av, addresses):
    assert av.insert(addresses[:3]) == [0, 1, 2]
    assert av.insert([]) == []
    assert av.insert(addresses[3:8]) == [3, 4, 5, 6, 7]
    assert [av.lookup(handle) for handle in range(8)] == addresses
    assert av.insert(addresses[0]) == 8
    assert len(av) == 9


@pytest.mark.req("AV-11")
def test_the_lowest_free_handle_is_taken(av, addresses):
    av.insert(addresses[:5])
    av.remove(3)
    av.remove(1)
    assert av.insert(addresses[5:8]) == [1, 3, 5]
    assert [av.lookup(handle) for handle in (1, 3, 5)] == addresses[5:8]


@pytest.mark.req("AV-9", "AV-12", "AV-14")
def test_a_bad_address_takes_no_handle(av, addresses):
    with pytest.raises(pyfab.InsertError) as caught:
        av.insert([addresses[0], BAD, addresses[1], addresses[2]])
    error = caught.value
    assert error.count == 3
    assert list(error.handles) == [0, pyfab.ADDR_NOTAVAIL, 1, 2]
    assert [bool(code) for code in error.errors] == [False, True, False, False]
    assert len(av) == 3
    assert [av.lookup(handle) for handle in range(3)] == addresses[:3]


@pytest.mark.req("AV-9", "AV-15")
def test_errors_for_each_address_on_request(av, addresses):
    handles, errors = av.insert([addresses[0], BAD, addresses[1], b""], sync_err=True)
    assert list(handles) == [0, pyfab.ADDR_NOTAVAIL, 1, pyfab.ADDR_NOTAVAIL]
    assert [bool(code) for code in errors] == [False, True, False, True]


def test_one_bad_address_alone(av):
    with pytest.raises((pyfab.InsertError, pyfab.InvalidArgumentError)):
        av.insert(BAD)
    assert len(av) == 0


@pytest.mark.req("AV-4")
def test_the_expected_count_is_no_limit(domain, addresses):
    with domain.address_vector(count=1) as av:
        assert av.insert(addresses * 2500) == list(range(20_000))
        assert av.lookup(19_999) == addresses[7]


@pytest.mark.req("AV-22")
def test_duplicates_get_handles_of_their_own(av, addresses):
    assert av.insert([addresses[0]] * 3) == [0, 1, 2]
    av.remove(1)
    assert av.lookup(0) == av.lookup(2) == addresses[0]
    assert 1 not in av


@pytest.mark.req("AV-35", "AV-36")
@pytest.mark.parametrize("bad", [900, 1, pyfab.ADDR_NOTAVAIL], ids=["unknown", "removed", "not available"])
def test_remove_takes_the_valid_ones_and_tells_of_the_others(av, addresses, bad):
    av.insert(addresses[:4])
    av.remove(1)
    with pytest.raises(pyfab.InvalidArgumentError):
        av.remove([0, bad, 3])
    assert [handle for handle, _ in av] == [2]


@pytest.mark.req("AV-35")
def test_remove_takes_many(av, addresses):
    av.insert(addresses)
    av.remove([0, 2, 4])
    assert [handle for handle, _ in av] == [1, 3, 5, 6, 7]
    av.remove([])
    assert len(av) == 5


@pytest.mark.req("AV-40")
@pytest.mark.parametrize(
    "handle", [1, 2, 10**6, 2**32, 2**63, 2**64 - 1, pyfab.ADDR_NOTAVAIL, pyfab.ADDR_UNSPEC]
)
def test_lookup_of_what_is_not_there(av, addresses, handle):
    av.insert(addresses[:3])
    av.remove([1, 2])
    with pytest.raises(pyfab.InvalidArgumentError):
        av.lookup(handle)
    assert av.lookup(0) == addresses[0]


def test_the_sentinels_are_distinct():
    sentinels = [pyfab.ADDR_NOTAVAIL, pyfab.ADDR_UNSPEC, pyfab.KEY_NOTAVAIL]
    assert all(left is not right for i, left in enumerate(sentinels) for right in sentinels[:i])
    assert pyfab.ADDR_NOTAVAIL != pyfab.ADDR_UNSPEC
    assert [repr(s) for s in sentinels[:2]] == ["ADDR_NOTAVAIL", "ADDR_UNSPEC"]


def test_it_is_a_collection(av, addresses):
    av.insert(addresses[:3])
    av.remove(1)
    assert len(av) == 2
    assert 0 in av and 1 not in av and 2 in av and 99 not in av
    assert list(av) == [(0, addresses[0]), (2, addresses[2])]


@pytest.mark.req("AV-35")
def test_an_operation_to_a_removed_peer_is_refused(pair):
    exposed = pair.expose(np.zeros(8))
    handle = pair.endpoint.av.insert(pair.peer.address)
    pair.endpoint.write(np.ones(8), handle, exposed.remote).result(TIMEOUT)
    pair.endpoint.av.remove(handle)
    with pytest.raises(pyfab.InvalidArgumentError, match=str(handle)):  # when it is posted
        pair.endpoint.write(np.full(8, 2.0), handle, exposed.remote)
    assert (exposed.content() == 1).all()
    pair.put(np.full(8, 3.0), exposed.remote)  # the other handle of the same peer goes on


@pytest.mark.req("AV-22")
def test_insert_use_remove_again_and_again(pair):
    exposed = pair.expose(np.zeros(1))
    for turn in range(300):
        handle = pair.endpoint.av.insert(pair.peer.address)
        pair.endpoint.write(np.array([float(turn)]), handle, exposed.remote).result(TIMEOUT)
        pair.endpoint.av.remove(handle)
    assert exposed.content() == 299


def test_a_reused_handle_leads_to_its_new_owner(pair):
    """The handle of a removed peer is given to another one; nothing goes to the old."""
    memory = np.zeros(8)
    region = pair.register(memory, Access.REMOTE)
    exposed = pair.expose(np.zeros(8))
    av = pair.endpoint.av
    handle = av.insert(pair.peer.address)
    pair.endpoint.write(np.ones(8), handle, exposed.remote).result(TIMEOUT)
    av.remove(handle)
    assert av.insert(pair.endpoint.address) == handle
    pair.endpoint.write(np.full(8, 2.0), handle, region.remote).result(TIMEOUT)
    error = pair.endpoint.write(np.full(8, 3.0), handle, (0, exposed.key)).exception(TIMEOUT)
    assert isinstance(error, pyfab.KeyRejectedError)
    av.remove(handle)
    assert (memory == 2).all()
    assert (exposed.content() == 1).all()


@pytest.mark.req("AV-38")
def test_a_peer_is_removed_under_load(pair):
    """What was started finishes or fails, once each."""
    exposed = pair.expose(np.zeros(1 << 17))
    for _ in range(10):
        handle = pair.endpoint.av.insert(pair.peer.address)
        source = np.ones(1 << 17)
        operations = [pair.endpoint.write(source, handle, exposed.remote) for _ in range(20)]
        pair.endpoint.av.remove(handle)
        for operation in operations:
            error = operation.exception(TIMEOUT)
            assert error is None or isinstance(error, pyfab.FabricError)
    pair.put(np.full(1 << 17, 2.0), exposed.remote)
    assert (exposed.content() == 2).all()


@pytest.mark.req("AV-6", "AV-24")
def test_endpoints_share_an_address_vector(pair):
    exposed = pair.expose(np.zeros(2))
    with (
        pair.domain.address_vector() as av,
        pair.domain.endpoint(av) as first,
        pair.domain.endpoint(av) as second,
    ):
        assert first.av is av
        handle = av.insert(pair.peer.address)
        first.write(np.ones(1), handle, exposed.remote[:1]).result(TIMEOUT)
        second.write(np.ones(1), handle, exposed.remote[1:]).result(TIMEOUT)
        with pytest.raises(pyfab.BusyError):
            av.close()
    assert (exposed.content() == 1).all()
