"""A linked domain takes, for each peer, a link that both have; queues, keys and names are one for all links."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pyfab
import pytest
from pyfab import Access, AtomicOp, Caps
from pyfab.testing import Peer
from support import TIMEOUT, collect, drain, insert


def info_of(spec):
    with pyfab.Domain(spec) as domain:
        return domain.info


@pytest.mark.req("LNX-10")
def test_limits_of_a_linked_domain_are_those_of_its_links():
    linked, shm, tcp = map(info_of, ("shm+tcp", "shm", "tcp"))
    reach = Caps.LOCAL_COMM | Caps.REMOTE_COMM  # what any link reaches, the whole reaches
    assert linked.caps & ~reach == shm.caps & tcp.caps & ~reach
    assert linked.caps & reach == (shm.caps | tcp.caps) & reach
    assert linked.mr_mode == shm.mr_mode | tcp.mr_mode
    for limit in (
        "inject_size",
        "max_msg_size",
        "max_rma_size",
        "mr_iov_limit",
        "mr_key_size",
        "max_contexts",
    ):
        assert getattr(linked, limit) == min(getattr(shm, limit), getattr(tcp, limit)), limit
    assert [link.split(":")[0] for link in linked.links] == ["shm", "tcp"]


def test_discovery_offers_what_opens():
    infos = pyfab.getinfo()
    assert {"shm", "tcp"} <= {info.provider for info in infos}
    for info in infos:
        if info.provider == "shm" or (info.provider == "tcp" and info.domain == "lo"):
            with pyfab.Domain(info) as domain:
                assert domain.info.provider == info.provider
    assert {info.provider for info in pyfab.getinfo("tcp")} == {"tcp"}


@pytest.fixture(scope="module")
def three():
    """A linked endpoint, and peers that have shm only, tcp only, and both."""
    with ExitStack() as stack:
        peers = {spec: stack.enter_context(Peer(spec)) for spec in ("shm", "tcp", "shm+tcp")}
        domain = stack.enter_context(pyfab.Domain("shm+tcp"))
        endpoint = stack.enter_context(domain.endpoint())
        handles = {spec: endpoint.av.insert(peer.address) for spec, peer in peers.items()}
        yield endpoint, peers, handles


@pytest.fixture
def places(three):
    endpoint, peers, _ = three
    drain(endpoint.cq)
    exposed = {spec: peer.expose(np.zeros(100, np.int64)) for spec, peer in peers.items()}
    yield exposed
    for place in exposed.values():
        place.close()


@pytest.mark.req("LNX-23")
def test_each_peer_is_reached_over_the_best_link_that_both_have(three, places):
    endpoint, _, handles = three
    for spec, place in places.items():
        endpoint.write(np.arange(100), handles[spec], place.remote).result(TIMEOUT)
        assert place.content().tolist() == list(range(100))
    used = {spec: endpoint.report(handle)[0].partition(".")[0] for spec, handle in handles.items()}
    assert used == {"shm": "shm", "tcp": "tcp", "shm+tcp": "shm"}
    assert all(endpoint.report(handle)[2] for handle in handles.values()), "a reason for each choice"


@pytest.mark.req("LNX-53")
def test_the_key_of_a_region_is_good_on_the_link_of_each_peer(three, places):
    """Puts, gets and atomics with offset and key alone, and with what the peers described."""
    endpoint, _, handles = three
    for spec, place in places.items():
        back, one, handle = np.zeros(100, np.int64), np.ones(100, np.int64), handles[spec]
        endpoint.write(np.arange(100), handle, (0, place.key)).result(TIMEOUT)
        endpoint.atomic(AtomicOp.SUM, one, handle, place.remote).result(TIMEOUT)
        endpoint.read(back, handle, (0, place.key)).result(TIMEOUT)
        assert back.tolist() == list(range(1, 101))


@pytest.mark.req("LNX-49", "LNX-22")
def test_completions_of_all_links_arrive_in_one_queue(three, places):
    """Also errors; the order for each peer is kept."""
    endpoint, _, handles = three
    source = np.arange(100)
    for number in range(100):
        for spec, place in places.items():
            endpoint.write(source, handles[spec], place.remote, context=(spec, number))
    seen = [entry.context for entry in collect(endpoint.cq, 300)]
    for spec in places:
        assert [number for who, number in seen if who == spec] == list(range(100))
    assert endpoint.cq.read(max=10) == []


def put_with_data(target, handle, remote, data):
    target.endpoint.write(np.arange(8), handle, remote, data=data).result(TIMEOUT)


@pytest.mark.slow
@pytest.mark.req("LNX-49", "LNX-22")
def test_remote_data_of_all_links_arrives_in_one_queue():
    """With the handle of the sender, whichever link brought it."""
    with ExitStack() as stack:
        domain = stack.enter_context(pyfab.Domain("shm+tcp"))
        endpoint = stack.enter_context(domain.endpoint())
        memory = np.zeros(8, np.int64)
        region = stack.enter_context(domain.register(memory, Access.REMOTE))
        peers = [stack.enter_context(Peer(spec)) for spec in ("tcp", "shm", "shm+tcp")]
        handles = [endpoint.av.insert(peer.address) for peer in peers]
        for number, peer in enumerate(peers):
            handle = peer.run(insert, endpoint.address)
            peer.run(put_with_data, handle, region.remote, 100 + number)
        entries = collect(endpoint.cq, 3)
        assert [(entry.data, entry.source) for entry in entries] == [
            (100 + number, handle) for number, handle in enumerate(handles)
        ]


@pytest.mark.req("LNX-16")
def test_an_address_bundles_those_of_its_links():
    """The blob of a linked endpoint reaches it over either link alone, and holds nothing of links that it has not."""
    with Peer("shm+tcp") as peer:
        place = peer.expose(np.zeros(10, np.int64))
        for spec in ("shm", "tcp"):
            with pyfab.Domain(spec) as domain, domain.endpoint() as endpoint:
                handle = endpoint.av.insert(peer.address)
                endpoint.write(np.full(10, len(spec) + ord(spec[0])), handle, place.remote).result(TIMEOUT)
                assert endpoint.report(handle)[0].partition(".")[0] == spec
                assert (place.content() == len(spec) + ord(spec[0])).all()
    with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint:
        held = pyfab._core.decode_name(endpoint.address)
        assert held == endpoint.context(0).parts(), "each link's name and own address, in its own size"
        assert [link for link, *_ in held] == ["shm.0", "tcp.0"]
        (host,) = (bytes.fromhex(info.fabric.removeprefix("node:")) for info in pyfab.getinfo("shm"))
        assert held[0][2].count(host) == 1, "who is on this host can tell"
        for link, number, own in held:  # the part of one link is a name by itself
            with pyfab.Domain(link.partition(".")[0]) as alone, alone.endpoint() as other:
                to = other.av.insert(pyfab._core.encode_name([(link, number, own)]))
                other.send(b"x", to).result(TIMEOUT)
                assert endpoint.recv(np.zeros(1, "u1")).result(TIMEOUT).nbytes == 1
    with Peer("tcp") as peer, pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        with pytest.raises(pyfab.UnreachableError, match=r"has shm, the peer tcp\.0"):
            endpoint.av.insert(peer.address)
        assert len(endpoint.av) == 0


def test_a_peer_without_a_common_link_does_not_disturb_others(three, places):
    with Peer("shm") as stranger, pyfab.Domain("tcp") as domain, domain.endpoint() as alone:
        with pytest.raises(pyfab.InsertError) as refused:
            alone.av.insert([stranger.address, three[1]["tcp"].address])
        assert isinstance(refused.value.errors[0], pyfab.UnreachableError)
        nobody, somebody = refused.value.handles
        assert nobody == pyfab.ADDR_NOTAVAIL
        alone.write(np.arange(100), somebody, places["tcp"].remote).result(TIMEOUT)
        assert places["tcp"].content().tolist() == list(range(100))


def test_environment_names_the_links(monkeypatch):
    monkeypatch.setenv("FI_LNX_PROV_LINKS", "tcp+shm")
    with pyfab.Domain(None) as domain:
        assert [link.split(":")[0] for link in domain.info.links] == ["tcp", "shm"]
