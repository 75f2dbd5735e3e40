"""How a grant ends: it is revoked, its time is over, or its region closes. What is under way then changes no byte afterwards."""

from __future__ import annotations

import datetime
import threading
import time

import grantor
import numpy as np
import pyfab
import pytest
from pyfab import Access, KeyRejectedError
from pyfab.testing.suite.support import litmus, rounds
from refusals import check_refused
from support import TIMEOUT, failure

COUNT = 1 << 16  # items of the array, which a put of many slices and frames writes
ENDED = (KeyRejectedError, pyfab.CanceledError)


@pytest.fixture(params=["anybody", "named"])
def peers(request, pair):
    return None if request.param == "anybody" else [pair.endpoint.address]


@pytest.mark.req("MR-88")
def test_a_revoked_grant_opens_nothing(pair, peers):
    exposed = pair.expose(np.zeros(64, np.int64))
    remote = pair.peer.run(grantor.give, exposed.name, peers)
    pair.put(np.full(64, 1), remote)
    pair.peer.run(grantor.revoke, exposed.name)
    check_refused(exposed, pair, remote)
    pair.peer.run(grantor.revoke, exposed.name)
    pair.put(np.full(64, 3), exposed.remote)
    assert (exposed.content() == 3).all()


@pytest.mark.req("MR-88")
def test_grants_end_with_their_region(pair, peers):
    exposed = pair.expose(np.zeros(64, np.int64))
    remote = pair.peer.run(grantor.give, exposed.name, peers)
    pair.put(np.full(64, 1), remote)
    pair.peer.run(grantor.close_region, exposed.name)
    assert pair.peer.run(grantor.is_over, exposed.name)
    check_refused(exposed, pair, remote)


@pytest.mark.req("MR-88")
def test_a_grant_ends_with_its_time(pair, peers):
    exposed = pair.expose(np.zeros(64, np.int64))
    remote = pair.peer.run(grantor.give, exposed.name, peers, until=0.3)
    end = time.monotonic() + TIMEOUT
    while not pair.peer.run(grantor.is_over, exposed.name):
        assert time.monotonic() < end
    check_refused(exposed, pair, remote)
    pair.put(np.full(64, 3), exposed.remote)
    assert (exposed.content() == 3).all()


@pytest.mark.req("MR-88")
def test_the_time_may_be_a_point_in_time(pair):
    exposed = pair.expose(np.zeros(64, np.int64))
    later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    remote = pair.peer.run(grantor.give, exposed.name, until=later)
    pair.put(np.full(64, 1), remote)
    assert (exposed.content() == 1).all()
    with pytest.raises(pyfab.InvalidArgumentError, match="passed"):
        pair.peer.run(grantor.give, exposed.name, until=later - datetime.timedelta(hours=2))


@pytest.mark.req("MR-88")
@litmus
def test_no_byte_changes_after_revoke_has_returned(pair, peers):
    """Puts are under way all the time, of all lengths, while grants are revoked."""
    exposed = pair.expose(np.zeros(COUNT, np.int64))
    for round_ in range(1, rounds(40) + 1):
        remote = pair.peer.run(grantor.give, exposed.name, peers)
        values = np.full(COUNT, round_)
        begun, revoked = threading.Event(), threading.Event()
        errors: list[BaseException | None] = []

        def put(remote=remote, values=values, begun=begun, revoked=revoked, errors=errors):
            late = False
            while not late and (not errors or errors[-1] is None):
                late = revoked.is_set()  # then not even this put may succeed
                count = COUNT if len(errors) % 2 else 512
                put = pair.endpoint.write(values[:count], pair.handle, remote[:count])
                errors.append(put.exception(TIMEOUT))
                begun.set()

        putting = threading.Thread(target=put)
        putting.start()
        assert begun.wait(TIMEOUT)
        content = pair.peer.run(grantor.revoke_and_look, exposed.name)
        revoked.set()
        putting.join(TIMEOUT)
        assert isinstance(errors[-1], ENDED)
        assert errors[0] is None or isinstance(errors[0], ENDED)
        assert (exposed.content() == content).all(), f"round {round_}"
    pair.put(np.zeros(COUNT, np.int64), exposed.remote)


@pytest.mark.req("MR-88")
@litmus
def test_gets_under_way_end_with_the_grant(pair, peers):
    exposed = pair.expose(np.arange(COUNT))
    for _ in range(rounds(20)):
        remote = pair.peer.run(grantor.give, exposed.name, peers)
        landing = np.zeros((4, COUNT), np.int64)
        gets = [pair.endpoint.read(part, pair.handle, remote) for part in landing]
        pair.peer.run(grantor.revoke, exposed.name)
        for get in gets:
            error = get.exception(TIMEOUT)
            assert error is None or isinstance(error, ENDED)
    check_refused(exposed, pair, remote)


@pytest.mark.req("MR-88")
def test_a_put_under_way_ends_with_the_time(pair):
    """A put that is longer than the grant lives does not go on for as long as it likes."""
    exposed = pair.expose(np.zeros(1 << 20, np.int64))
    remote = pair.peer.run(grantor.give, exposed.name, until=0.2)
    values = np.ones(1 << 20, np.int64)
    error, end = None, time.monotonic() + TIMEOUT
    while error is None:
        assert time.monotonic() < end
        error = pair.endpoint.write(values, pair.handle, remote).exception(TIMEOUT)
    assert isinstance(error, ENDED)
    check_refused(exposed, pair, remote)


@pytest.mark.req("MR-88")
def test_under_manual_progress_grants_end_too():
    with (
        pyfab.Domain("tcp:lo", progress="manual") as domain,
        domain.endpoint() as endpoint,
        domain.register(np.zeros(8), Access.REMOTE) as region,
    ):
        me = endpoint.av.insert(endpoint.address)
        grant = region.grant(until=0.2)
        remote = grant.remote
        end = time.monotonic() + TIMEOUT
        while not grant.revoked:
            assert time.monotonic() < end
        assert isinstance(failure(lambda: endpoint.write(np.ones(8), me, remote)), KeyRejectedError)
        domain.progress()
        assert region.grants == []
