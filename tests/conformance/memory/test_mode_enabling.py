"""Regions that have to be bound and enabled before peers reach them."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from modes import ONE, bind_and_enable, end_sibling, error_of
from pyfab import Access, AtomicOp, Caps, MRFlag, MRMode, RMAEvent
from support import TIMEOUT


def expose_events(target, flags):
    memory = np.zeros(8, np.int64)
    region = target.domain.register(memory, Access.REMOTE, flags=flags)
    target.kept["events"] = memory, region, target.domain.counter()
    return region.remote, region.enabled


def bind_events(target):
    _, region, counter = target.kept["events"]
    region.bind(counter, RMAEvent.REMOTE_WRITE)


def bind_own_endpoint(target):
    target.kept["events"][1].bind(target.endpoint)


def enable_events(target):
    target.kept["events"][1].enable()


def events(target):
    memory, region, counter = target.kept["events"]
    return memory.copy(), region.enabled, counter.value


def end_events(target):
    _, region, counter = target.kept.pop("events")
    counter.close()
    region._end()


def state_error(function, *arguments):
    with pytest.raises(pyfab.FabricError) as failure:
        function(*arguments)
    return failure.value.name


@pytest.mark.req("MR-38", "MR-62")
def test_a_region_with_events_starts_disabled(open_pair):
    pair = open_pair(mr_mode=MRMode.RMA_EVENT)
    run = pair.peer.run
    remote, enabled = run(expose_events, MRFlag.RMA_EVENT)
    assert not enabled

    def refused():
        return isinstance(error_of(pair.endpoint.write(ONE, pair.handle, remote[:1])), pyfab.KeyRejectedError)

    assert refused()
    assert state_error(run, enable_events) == "FI_EOPBADSTATE"
    run(bind_events)
    assert refused()
    run(enable_events)
    pair.put(ONE, remote[:1])
    memory, enabled, value = run(events)
    assert memory[0] == 1
    assert enabled
    assert value == 1
    assert state_error(run, bind_events) == "FI_EOPBADSTATE"
    assert state_error(run, enable_events) == "FI_EOPBADSTATE"
    run(end_events)


@pytest.mark.slow
@pytest.mark.req("MR-38")
def test_a_region_without_events_takes_no_counter(open_pair):
    pair = open_pair(mr_mode=MRMode.RMA_EVENT)
    remote, enabled = pair.peer.run(expose_events, MRFlag(0))
    assert enabled
    assert state_error(pair.peer.run, bind_events) == "FI_EINVAL"
    pair.peer.run(enable_events)  # changes nothing
    pair.put(ONE, remote[:1])
    assert pair.peer.run(events)[2] == 0
    pair.peer.run(end_events)


def second_endpoint(target):
    target.kept["sibling"] = target.domain.endpoint()
    return target.kept["sibling"].address


@pytest.mark.req("MR-39")
def test_a_region_is_reached_through_its_endpoint_only(open_pair):
    pair = open_pair(mr_mode=MRMode.ENDPOINT)
    sibling = pair.endpoint.av.insert(pair.peer.run(second_endpoint))
    exposed = pair.expose(np.zeros(8, np.int64))
    to = exposed.remote[:1]
    for peer in (pair.handle, sibling):
        assert isinstance(error_of(pair.endpoint.write(ONE, peer, to)), pyfab.KeyRejectedError)
    pair.peer.run(bind_and_enable, exposed.name)
    pair.put(ONE, to)
    for start in (
        lambda: pair.endpoint.write(ONE * 9, sibling, to),
        lambda: pair.endpoint.read(ONE.copy(), sibling, to),
        lambda: pair.endpoint.atomic(AtomicOp.SUM, ONE, sibling, to),
    ):
        assert isinstance(error_of(start()), pyfab.KeyRejectedError)
    assert exposed.content()[0] == 1
    pair.peer.run(end_sibling)


@pytest.mark.req("MR-40")
def test_enable_needs_everything_that_the_modes_ask_for(open_pair):
    pair = open_pair(mr_mode=MRMode.RMA_EVENT | MRMode.ENDPOINT)
    run = pair.peer.run
    for order in ([], [bind_events], [bind_own_endpoint]):
        run(expose_events, MRFlag.RMA_EVENT)
        for step in order:
            run(step)
        assert state_error(run, enable_events) == "FI_EOPBADSTATE"
        run(end_events)
    for flags, order in (
        (MRFlag.RMA_EVENT, [bind_own_endpoint, bind_events]),
        (MRFlag.RMA_EVENT, [bind_events, bind_own_endpoint]),
        (MRFlag(0), [bind_own_endpoint]),
    ):
        remote, _ = run(expose_events, flags)
        for step in order:
            run(step)
        run(enable_events)
        pair.put(ONE, remote[:1])
        assert run(events)[2] == bool(flags)
        run(end_events)


def silent_endpoint(target):
    target.kept["sibling"] = target.domain.endpoint(caps=Caps.RMA | Caps.ATOMIC)
    return target.kept["sibling"].address


@pytest.mark.req("MR-60")
def test_only_an_endpoint_for_events_counts(open_pair):
    pair = open_pair()
    silent = pair.endpoint.av.insert(pair.peer.run(silent_endpoint))
    remote, _ = pair.peer.run(expose_events, MRFlag(0))
    pair.peer.run(bind_events)
    pair.put(ONE, remote[:1])
    pair.endpoint.write(ONE, silent, remote[1:2]).result(TIMEOUT)
    pair.endpoint.atomic(AtomicOp.SUM, ONE, silent, remote[2:3]).result(TIMEOUT)
    memory, _, value = pair.peer.run(events)
    assert memory[:3].all()
    assert value == 1
    pair.peer.run(end_sibling)
    pair.peer.run(end_events)


@pytest.mark.req("MR-61", "MR-63")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_what_cannot_be_bound(spec):
    with (
        pyfab.Domain(spec) as domain,
        pyfab.Domain(spec) as other,
        domain.register(np.zeros(8), Access.REMOTE) as region,
        domain.counter() as counter,
        other.counter() as foreign,
        domain.endpoint() as endpoint,
        other.endpoint() as elsewhere,
    ):
        for flags in (0, RMAEvent.REMOTE_READ, RMAEvent.REMOTE_READ | RMAEvent.REMOTE_WRITE, 64):
            with pytest.raises(pyfab.BadFlagsError):
                region.bind(counter, flags)
        with pytest.raises(pyfab.BadFlagsError):
            region.bind(endpoint, RMAEvent.REMOTE_WRITE)
        with pytest.raises(pyfab.InvalidArgumentError):
            region.bind(foreign, RMAEvent.REMOTE_WRITE)
        with pytest.raises(pyfab.InvalidArgumentError):
            region.bind(elsewhere)
        with pytest.raises(pyfab.InvalidArgumentError, match="ENDPOINT"):
            region.bind(endpoint)
    with (
        pyfab.Domain(spec, caps=Caps.RMA) as domain,
        domain.register(np.zeros(8), Access.REMOTE) as region,
        domain.counter() as counter,
        pytest.raises(pyfab.FabricError) as failure,
    ):
        region.bind(counter, RMAEvent.REMOTE_WRITE)
    assert failure.value.name == "FI_ENOSYS"


@pytest.mark.req("MR-8")
@pytest.mark.parametrize("flags", [4, 1 << 16, 1 << 20, 3 << 30])
def test_unknown_flags_are_refused(flags):
    with pyfab.Domain("shm") as domain, pytest.raises(pyfab.BadFlagsError):
        domain.register(np.zeros(8), Access.REMOTE, flags=flags)


@pytest.mark.req("MR-8")
def test_persistence_needs_the_capability():
    with pyfab.Domain("shm", caps=Caps.RMA) as domain, pytest.raises(pyfab.BadFlagsError):
        domain.register(np.zeros(8), Access.REMOTE, flags=MRFlag.PMEM)


@pytest.mark.req("MR-67")
def test_a_region_with_an_open_endpoint_is_busy():
    with pyfab.Domain("shm", mr_mode=MRMode.ENDPOINT) as domain:
        endpoint = domain.endpoint()
        region = domain.register(np.zeros(8), Access.REMOTE)
        region.bind(endpoint)
        region.enable()
        with pytest.raises(pyfab.BusyError):
            region.close()
        endpoint.close()
        region.close()
        with domain.endpoint() as endpoint, domain.register(np.zeros(8), Access.REMOTE) as region:
            region.bind(endpoint)  # leaving the block detaches it
