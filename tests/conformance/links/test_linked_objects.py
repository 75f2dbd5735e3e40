"""Addresses and regions of linked domains: one object for the user, whichever link leads to a peer."""

from __future__ import annotations

import gc
import os
import socket
from contextlib import ExitStack

import numpy as np
import pyfab
import pytest
from linked import ONE, Linked, link_to
from pyfab import Access, MRMode
from pyfab.testing import Peer
from support import TIMEOUT

# --- addresses


@pytest.mark.req("LNX-19")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_a_short_buffer_for_the_name(spec):
    with pyfab.Domain(spec) as domain, domain.endpoint() as endpoint:
        needed = len(endpoint.address)
        for size in (0, 1, needed - 1):
            with pytest.raises(pyfab.TooSmallError) as failure:
                endpoint.getname(size)
            assert failure.value.needed == needed
            assert failure.value.name == "FI_ETOOSMALL"
        assert (
            endpoint.getname(needed) == endpoint.getname(needed + 1) == endpoint.getname() == endpoint.address
        )


@pytest.mark.req("LNX-20")
def test_an_address_that_one_link_cannot_read_is_not_inserted(linked):
    """Cut short in the last part, tcp's, with a checksum that is right."""
    with pyfab.Domain("shm+tcp") as other, other.endpoint() as endpoint:
        parts = endpoint.context(0).parts()
        assert [link for link, *_ in parts] == ["shm.0", "tcp.0"]
    for broken in range(2):
        bad = [
            (link, number, data[:-1] if i == broken else data) for i, (link, number, data) in enumerate(parts)
        ]
        with linked.domain.address_vector() as av:
            handles, errors = av.insert([pyfab._core.encode_name(bad)], sync_err=True)
            assert handles == [pyfab.ADDR_NOTAVAIL]
            assert errors[0].name == "FI_EINVAL"
            assert parts[broken][0] in str(errors[0])
            assert len(av) == 0
            assert av.insert(pyfab._core.encode_name(parts)) == 0, "nothing of the failed one is left"


@pytest.mark.req("LNX-21")
def test_addresses_of_links_come_back_and_go(linked):
    with Peer("shm+tcp") as peer:
        av = linked.endpoint.av
        handle = av.insert(peer.address)
        assert av.lookup(handle) == peer.address
        assert pyfab.parse_addr(av.straddr(peer.address)) == peer.address
        place = peer.expose(np.zeros(1, np.int64))
        linked.endpoint.write(ONE, handle, place.remote).result(TIMEOUT)
        av.remove(handle)
        for use in (
            lambda: linked.endpoint.write(ONE, handle, place.remote),
            lambda: linked.endpoint.send(ONE, handle),
            lambda: linked.endpoint.report(handle),
            lambda: av.lookup(handle),
        ):
            with pytest.raises(pyfab.InvalidArgumentError):
                use()


@pytest.mark.req("LNX-18")
def test_peers_with_other_links_use_what_both_have():
    """Insertion refuses those that have none in common, with the links of both, and those of another version."""
    with Peer("tcp+shm") as reverse, Peer("tcp") as fewer, pyfab.Domain("shm+tcp") as domain:
        with domain.endpoint() as endpoint:
            assert link_to(endpoint, endpoint.av.insert(reverse.address)) == "shm"
            assert link_to(endpoint, endpoint.av.insert(fewer.address)) == "tcp"
            newer = bytearray(fewer.address)
            newer[4] += 1  # the version follows the magic
            with pytest.raises(pyfab.InvalidArgumentError, match="version 2, this library reads version 1"):
                endpoint.av.insert(bytes(newer))
        with pyfab.Domain("shm") as alone, alone.endpoint() as endpoint:
            with pytest.raises(pyfab.UnreachableError, match=r"this domain has shm, the peer tcp\.0"):
                endpoint.av.insert(fewer.address)
            endpoint.av.insert(reverse.address)


def descriptors_and_threads():
    gc.collect()  # what tests before this one left behind is not in question
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.req("LNX-15")
@pytest.mark.parametrize("spec", ["shm+tcp", "tcp+shm"])
def test_what_fails_halfway_leaves_nothing_open(spec):
    """Each link in turn, when the domain opens and when an endpoint does; and what succeeds closes all of it."""

    def attempt(**settings):
        with pyfab.Domain(spec, **settings) as domain, domain.endpoint() as endpoint:
            endpoint.av.insert(endpoint.address)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        failing = [
            ({"shm_copy": "nonsense"}, pyfab.InvalidArgumentError),
            ({"tcp_port": "nonsense"}, pyfab.InvalidArgumentError),
            ({"tcp_port": listener.getsockname()[1]}, OSError),
        ]
        attempt()
        before = descriptors_and_threads()
        for settings, error in failing:
            for _ in range(5):
                with pytest.raises(error):
                    attempt(**settings)
                attempt()
            assert descriptors_and_threads() == before


# --- regions and keys


@pytest.mark.req("LNX-54")
def test_keys_are_plain_numbers_or_raw(open_linked):
    """All links take one 64-bit key; where keys are raw, they are mapped once for all links."""
    with ExitStack() as stack:
        plain = Linked(stack)
        for _, peer, handle in plain:
            place = peer.expose(np.zeros(1, np.int64), key=0xABCD)
            assert place.key == 0xABCD
            plain.endpoint.write(ONE, handle, (0, 0xABCD)).result(TIMEOUT)
            assert place.content() == 1
            place.close()
    raw = open_linked(mr_mode=MRMode.RAW)
    with raw.domain.register(np.zeros(8), Access.REMOTE) as region:
        assert region.key == pyfab.KEY_NOTAVAIL
        assert len(region.raw_attr().key) == raw.domain.info.mr_key_size
    for _, peer, handle in raw:
        place = peer.expose(np.zeros(1, np.int64))
        key = raw.domain.map_raw(place.remote)
        raw.endpoint.write(ONE, handle, (0, key)).result(TIMEOUT)
        assert place.content() == 1
        raw.domain.unmap_key(key)
        place.close()


@pytest.mark.req("LNX-55")
def test_addresses_are_virtual_or_offsets_on_all_links(open_linked):
    for mode in (MRMode.SCALABLE, MRMode.VIRT_ADDR):
        linked = open_linked(mr_mode=mode)
        for _, peer, handle in linked:
            place = peer.expose(np.zeros(4, np.int64))
            base = place.address if mode else 0
            linked.endpoint.write(ONE, handle, (base + 16, place.key)).result(TIMEOUT)
            linked.endpoint.write(ONE * 2, handle, place.remote[3:]).result(TIMEOUT)
            assert place.content().tolist() == [0, 0, 1, 2]
            place.close()


@pytest.mark.req("LNX-56")
@pytest.mark.parametrize("order", [["shm", "tcp", "shm"], ["tcp", "shm", "tcp"]])
def test_a_registration_is_good_on_every_link(open_linked, order):
    """One region is the source of puts and messages to peers of both links, and where gets land, in turns."""
    linked = open_linked(mr_mode=MRMode.LOCAL)
    memory = np.arange(8)
    with linked.domain.register(memory, Access.LOCAL) as region:
        for turn, spec in enumerate(order):
            place = linked.peers[spec].expose(np.zeros(8, np.int64))
            memory[:] = np.arange(8) + turn
            linked.endpoint.write((region, 0, 64), linked.handles[spec], place.remote).result(TIMEOUT)
            assert place.content().tolist() == memory.tolist()
            place.store(np.full(8, 9))
            linked.endpoint.read((region, 0, 64), linked.handles[spec], place.remote).result(TIMEOUT)
            assert memory.tolist() == [9] * 8
            place.close()
    for spec in order:
        with pytest.raises(pyfab.FabricError):  # the memory is not registered any more
            linked.endpoint.write(memory, linked.handles[spec], (0, 1)).result(TIMEOUT)


def receive_piece_by_piece(target):
    landing = np.zeros(8, np.int64)
    with target.domain.register(landing, Access.RECV):
        target.endpoint.trecv(landing, 28).result(TIMEOUT)
    return landing.tolist()


@pytest.mark.slow
@pytest.mark.req("LNX-28")
def test_each_piece_of_a_message_has_a_registration_of_its_own(open_linked):
    linked = open_linked(mr_mode=MRMode.LOCAL)
    pieces = [np.full(2, number) for number in range(4)]
    with ExitStack() as stack:
        regions = [stack.enter_context(linked.domain.register(piece, Access.SEND)) for piece in pieces]
        for _, peer, handle in linked:
            sent = linked.endpoint.tsend(pieces, handle, 28)
            assert peer.run(receive_piece_by_piece) == [0, 0, 1, 1, 2, 2, 3, 3]
            sent.result(TIMEOUT)
        for bad in (3, 1):
            regions[bad].close()
            for _, _, handle in linked:
                with pytest.raises(pyfab.InvalidArgumentError):
                    linked.endpoint.tsend(pieces[: bad + 1], handle, 28)


@pytest.mark.req("LNX-58")
def test_a_key_opens_nothing_of_another_peer(open_linked):
    """Mapped for the region of one peer, used at the other, which has a region of its own."""
    linked = open_linked(mr_mode=MRMode.RAW)
    places = {spec: peer.expose(np.zeros(4, np.int64)) for spec, peer, _ in linked}
    for spec, other in (("shm", "tcp"), ("tcp", "shm")):
        key = linked.domain.map_raw(places[spec].remote)
        wrong = linked.endpoint.write(ONE, linked.handles[other], (0, key))
        assert isinstance(wrong.exception(TIMEOUT), pyfab.KeyRejectedError)
        linked.endpoint.write(ONE, linked.handles[spec], (8, key)).result(TIMEOUT)
        linked.domain.unmap_key(key)
    for place in places.values():
        assert place.content().tolist() == [0, 1, 0, 0]
        place.close()


def write_error(target, handle, remote):
    error = target.endpoint.write(ONE, handle, remote).exception(TIMEOUT)
    return type(error).__name__ if error else None


@pytest.mark.req("LNX-60")
def test_binding_and_enabling_reach_every_link(open_linked):
    linked = open_linked(mr_mode=MRMode.ENDPOINT)
    memory = np.zeros(1, np.int64)

    def outcomes(region):
        return [peer.run(write_error, linked.handles_there[spec], region.remote) for spec, peer, _ in linked]

    with linked.domain.register(memory, Access.REMOTE) as region:
        assert outcomes(region) == ["KeyRejectedError"] * 2
        region.bind(linked.endpoint)
        assert outcomes(region) == ["KeyRejectedError"] * 2
        region.enable()
        assert outcomes(region) == [None] * 2
        remote = region.remote
    assert [peer.run(write_error, linked.handles_there[spec], remote) for spec, peer, _ in linked] == [
        "KeyRejectedError"
    ] * 2, "closing reaches them as well"


@pytest.mark.req("LNX-52")
def test_a_registration_that_fails_leaves_nothing_on_any_link(open_linked):
    """The key is in use; whoever has it goes on, over both links."""
    linked = open_linked()
    with linked.domain.register(np.zeros(1, np.int64), Access.REMOTE, key=5) as region:
        before = linked.domain.stats()["regions"]
        for _ in range(100):
            with pytest.raises(pyfab.KeyInUseError):
                linked.domain.register(np.zeros(1), Access.REMOTE, key=5)
        assert linked.domain.stats()["regions"] == before
        for spec, peer, _ in linked:
            assert peer.run(write_error, linked.handles_there[spec], region.remote) is None
