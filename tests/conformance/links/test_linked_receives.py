"""Receives and completions of linked endpoints, whichever link they come from."""

from __future__ import annotations

import threading

import numpy as np
import pyfab
import pytest
from linked import ONE, link_to
from pyfab import Access, AtomicOp
from support import TIMEOUT, collect


def send(target, handle, content, tag):
    target.endpoint.tsend(np.array([content]), handle, tag).result(TIMEOUT)


@pytest.mark.req("LNX-47", "LNX-48")
@pytest.mark.parametrize("by_variable", [True, False])
def test_without_a_shared_queue_receives_name_their_source(open_linked, monkeypatch, by_variable):
    if by_variable:
        monkeypatch.setenv("FI_LNX_USE_SRQ", "0")
    linked = open_linked() if by_variable else open_linked(lnx_use_srq=0)
    endpoint, landing = linked.endpoint, np.zeros(1, np.int64)
    for post in (
        lambda: endpoint.recv(landing),
        lambda: endpoint.trecv(landing, 7),
        lambda: endpoint.trecv(landing, 0, ignore=2**64 - 1, peer=pyfab.ADDR_UNSPEC),
    ):
        with pytest.raises(pyfab.FabricError) as failure:
            post()
        assert failure.value.name == "FI_ENOSYS"
    for number, (spec, peer, handle) in enumerate(linked):
        peer.start(send, linked.handles_there[spec], number, 7)
        done = endpoint.trecv(landing, 7, peer=handle).result(TIMEOUT)
        peer.finish()
        assert landing == number, "nothing was posted by what was refused"
        assert done.source == handle
        assert link_to(endpoint, handle) == spec


def test_single_links_always_share_their_queue(monkeypatch):
    monkeypatch.setenv("FI_LNX_USE_SRQ", "0")
    with pyfab.Domain("tcp") as domain, domain.endpoint() as endpoint:
        receive = endpoint.recv(np.zeros(1, np.int64))
        endpoint.send(ONE, endpoint.av.insert(endpoint.address))
        receive.result(TIMEOUT)


def write_when_told(target, handle, remote, data):
    target.endpoint.write(ONE * data, handle, remote, data=data).result(TIMEOUT)


@pytest.mark.req("LNX-50")
def test_a_waiting_reader_wakes_for_any_link(linked):
    """One thread sleeps on the queue while the other side of either link begins to write."""
    memory = np.zeros(1, np.int64)
    with linked.domain.register(memory, Access.REMOTE) as region:
        for turn in range(3):
            for number, (spec, peer, handle) in enumerate(linked):
                data = 1 + 10 * turn + number
                entries = []
                reader = threading.Thread(
                    target=lambda out=entries: out.extend(collect(linked.endpoint.cq, 1))
                )
                reader.start()
                peer.run(write_when_told, linked.handles_there[spec], region.remote, data)
                reader.join(TIMEOUT)
                assert [(entry.data, entry.source) for entry in entries] == [(data, handle)]


@pytest.mark.slow
@pytest.mark.req("LNX-50")
def test_a_link_that_is_stuck_holds_up_no_other(open_linked):
    """A tcp peer that is stopped in the middle, and one over shared memory that is busy; and the other way round."""
    linked = open_linked()
    endpoint = linked.endpoint
    places = {spec: peer.expose(np.zeros(1 << 20)) for spec, peer, _ in linked}
    source = np.ones(1 << 20)
    for stuck, busy in (("tcp", "shm"), ("shm", "tcp")):
        linked.peers[stuck].suspend()
        try:
            late = [
                endpoint.fetch_atomic(
                    AtomicOp.SUM, np.ones(1), np.zeros(1), linked.handles[stuck], places[stuck].remote[:1]
                )
                for _ in range(10)
            ]
            if stuck == "tcp":  # what the initiator moves itself does not wait for a stopped target
                late += [
                    endpoint.write(source, linked.handles[stuck], places[stuck].remote) for _ in range(10)
                ]
            for _ in range(20):
                endpoint.write(source, linked.handles[busy], places[busy].remote).result(TIMEOUT)
            if stuck == "tcp":
                assert not any(operation.done() for operation in late)
            with pytest.raises(pyfab.BoundsError):
                endpoint.write(source, linked.handles[busy], (8, places[busy].key)).result(TIMEOUT)
        finally:
            linked.peers[stuck].resume()
        for operation in late:
            operation.result(TIMEOUT)
    for place in places.values():
        place.close()


@pytest.mark.req("LNX-50")
def test_errors_of_all_links_keep_their_fields(linked):
    queue = linked.endpoint.cq
    for spec, peer, handle in linked:
        place = peer.expose(np.zeros(4, np.int64), Access.REMOTE_READ)
        operation = linked.endpoint.write(ONE, handle, place.remote, context=spec)
        assert operation.exception(TIMEOUT) is not None
        (entry,) = collect(queue, 1)
        assert entry.context == spec
        assert isinstance(entry.error, pyfab.AccessDeniedError)
        assert entry.nbytes == 0
        place.close()
