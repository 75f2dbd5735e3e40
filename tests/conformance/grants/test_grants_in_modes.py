"""Grants where the domain demands more of its users: modes, authorization keys, counters, asynchronous registration."""

from __future__ import annotations

import grantor
import numpy as np
import pyfab
import pytest
from pyfab import Access, KeyRejectedError, MRMode, RMAEvent
from support import TIMEOUT, failure

pytestmark = pytest.mark.req("MR-85")


@pytest.mark.parametrize("spec", ["shm", "tcp:lo"])
@pytest.mark.parametrize(
    "mode", [MRMode.VIRT_ADDR, MRMode.RAW, MRMode.PROV_KEY, MRMode.ENDPOINT, MRMode.BASIC]
)
@pytest.mark.parametrize("named", [False, True], ids=["anybody", "named"])
def test_a_grant_works_as_its_region_does(spec, mode, named):
    with (
        pyfab.Domain(spec, mr_mode=mode) as domain,
        domain.endpoint() as endpoint,
        pyfab.Domain(spec, mr_mode=mode) as others,
        others.endpoint() as user,
    ):
        array = np.zeros(32, np.int64)
        region = domain.register(array, Access.REMOTE)
        if mode == MRMode.ENDPOINT:
            with pytest.raises(pyfab.FabricError):
                region.grant()
            region.bind(endpoint)
            region.enable()
        grant = region.grant([user.address] if named else None, offset=64, nbytes=64)
        there = user.av.insert(endpoint.address)
        remote, local = grant.remote, np.full(8, 3)
        if mode == MRMode.RAW:
            key = others.map_raw(remote)
            target = (remote.address, key)
        else:
            target = remote
        user.write(local, there, target).result(TIMEOUT)
        assert (array[8:16] == 3).all()
        assert array.sum() == 24
        grant.revoke()
        assert isinstance(failure(lambda: user.write(local, there, target)), KeyRejectedError)
        if mode == MRMode.RAW:
            others.unmap_key(key)


@pytest.mark.parametrize("spec", ["shm", "tcp:lo"])
@pytest.mark.parametrize("until", [None, 3600.0], ids=["open", "timed"])
def test_who_lacks_the_authorization_key_has_nothing_of_a_grant(spec, until):
    with (
        pyfab.Domain(spec, auth_key=b"ours") as domain,
        domain.endpoint() as endpoint,
        pyfab.Domain(spec, auth_key=b"ours") as others,
        others.endpoint() as user,
        domain.register(np.zeros(8), Access.REMOTE, auth_key=b"of few") as region,
        domain.endpoint(auth_key=b"of few") as few,
        others.endpoint(auth_key=b"of few") as one_of_few,
    ):
        remote = region.grant(until=until).remote
        there = user.av.insert(endpoint.address)
        assert isinstance(failure(lambda: user.write(np.ones(8), there, remote)), KeyRejectedError)
        one_of_few.write(np.ones(8), one_of_few.av.insert(few.address), remote).result(TIMEOUT)
        assert np.asarray(region).all()


def count_puts(target, name):
    counter = target.kept["counter"] = target.domain.counter()
    target.kept[name].region.bind(counter, RMAEvent.REMOTE_WRITE)


def counted(target, count):
    target.kept["counter"].wait(count, TIMEOUT)
    return target.kept["counter"].value


def close_counter(target):
    target.kept.pop("counter").close()


@pytest.mark.parametrize("named", [False, True], ids=["anybody", "named"])
def test_puts_under_a_grant_count(pair, named):
    exposed = pair.expose(np.zeros(8))
    first = pair.peer.run(grantor.give, exposed.name, [pair.endpoint.address] if named else None)
    pair.put(np.ones(8), first)
    pair.peer.run(count_puts, exposed.name)
    pair.put(np.ones(8), first)
    second = pair.peer.run(grantor.give, exposed.name, [pair.endpoint.address] if named else None)
    pair.put(np.ones(8), second)
    assert pair.peer.run(counted, 2) == 2
    pair.peer.run(close_counter)
