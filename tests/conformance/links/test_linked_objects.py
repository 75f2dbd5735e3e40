"""Addresses, regions and receives of linked domains: one object for the user, whichever link leads to a peer."""

from __future__ import annotations

import errno
import gc
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

import numpy as np
import pyfab
import pytest
from pyfab import Access, AtomicOp, MRMode
from pyfab.testing import Peer
from support import TIMEOUT, collect, drain, insert

ONE = np.ones(1, np.int64)


def link_to(endpoint, peer):
    return endpoint.report(peer)[0].partition(".")[0]


class Linked:
    """A linked endpoint with a peer over shared memory, one over tcp, and both at once in `handles`."""

    def __init__(self, stack, **settings):
        self.peers = {spec: stack.enter_context(Peer(spec, **settings)) for spec in ("shm", "tcp")}
        self.domain = stack.enter_context(pyfab.Domain("shm+tcp", **settings))
        self.endpoint = stack.enter_context(self.domain.endpoint())
        self.handles = {spec: self.endpoint.av.insert(peer.address) for spec, peer in self.peers.items()}
        self.handles_there = {
            spec: peer.run(insert, self.endpoint.address) for spec, peer in self.peers.items()
        }

    def __iter__(self):
        for spec, peer in self.peers.items():
            yield spec, peer, self.handles[spec]


@pytest.fixture
def open_linked():
    with ExitStack() as stack:
        yield lambda **settings: Linked(stack, **settings)


@pytest.fixture(scope="module")
def shared_linked():
    with ExitStack() as stack:
        yield Linked(stack)


@pytest.fixture
def linked(shared_linked):
    drain(shared_linked.endpoint.cq)
    return shared_linked


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


# --- choosing a link


@pytest.mark.req("LNX-25")
@pytest.mark.parametrize("by_variable", [True, False])
def test_shared_memory_can_be_switched_off(monkeypatch, by_variable):
    """For one process or for all; the spec stays the same."""
    settings = {} if by_variable else {"lnx_disable_shm": True}
    if by_variable:
        monkeypatch.setenv("FI_LNX_DISABLE_SHM", "1")
    with pyfab.Domain("shm+tcp", **settings) as domain, domain.endpoint() as endpoint:
        assert domain.info.spec == "tcp:lo"
        with Peer("shm+tcp", **settings) as like, Peer("shm+tcp", lnx_disable_shm=0) as other:
            for peer in (like, other):
                handle = endpoint.av.insert(peer.address)
                place = peer.expose(np.zeros(4))
                endpoint.write(np.ones(4), handle, place.remote).result(TIMEOUT)
                assert link_to(endpoint, handle) == "tcp"
                assert place.content().all()
    with pyfab.Domain("shm") as domain:
        assert domain.info.spec == "shm", "which is no linked one"
    monkeypatch.setenv("FI_LNX_DISABLE_SHM", "0")
    with pyfab.Domain("shm+tcp") as domain:
        assert domain.info.spec == "shm+tcp:lo"


@pytest.mark.parametrize("switch", ["lnx_disable_shm", "lnx_use_srq"])
def test_switches_are_on_or_off(monkeypatch, switch):
    variable = f"FI_{switch.upper()}"
    for bad in ("maybe", "2", "-1"):
        with pytest.raises(pyfab.InvalidArgumentError, match=f"{switch} is"):
            pyfab.Domain("shm+tcp", **{switch: bad})
        monkeypatch.setenv(variable, bad)
        with pytest.raises(pyfab.InvalidArgumentError, match=f"{variable} is"):
            pyfab.Domain("shm+tcp")
        with pyfab.Domain("shm+tcp", **{switch: "0"}):
            pass  # what is said comes before the environment
        monkeypatch.delenv(variable)


def exchange(group):
    with group.window(shape=group.size, dtype=np.int64) as window:
        for peer in group.peers:
            window[peer][group.rank] = 1 + group.rank
        window.fence()
        return [link.link for link in group.links()], window[group.rank][:].tolist()


@pytest.mark.req("LNX-26")
@pytest.mark.parametrize("links", ["shm", "shm+tcp"])
def test_jobs_of_one_node_need_no_network(monkeypatch, links):
    monkeypatch.setenv("FI_LNX_PROV_LINKS", links)
    for rank, (used, got) in enumerate(pyfab.spawn(exchange, 2, links=None)):
        assert used == ["shm.0"]
        assert got == ([0, 2] if rank == 0 else [1, 0])


@pytest.mark.req("LNX-29")
def test_a_full_link_takes_no_other():
    """The peer has both links, and does not look: sends are refused until it does, none goes over tcp, all keep their order."""
    count, message = 500, np.zeros(512, np.int64)
    with (
        Peer("shm+tcp", progress="manual") as peer,
        pyfab.Domain("shm+tcp") as domain,
        domain.completion_queue(size=16) as queue,
        domain.endpoint(cq=queue) as endpoint,
    ):
        handle = endpoint.av.insert(peer.address)
        peer.run(insert, endpoint.address)
        sent = 0

        def send_next():
            message[0] = sent
            try:
                endpoint.send(message.copy(), handle)
            except pyfab.FabricError as refusal:
                if refusal.errno != errno.EAGAIN:
                    raise
                return False
            return True

        while True:
            if send_next():
                sent += 1
            elif not queue.read(max=16):
                break  # full, and nothing completes any more
        assert 0 < sent < count
        assert link_to(endpoint, handle) == "shm"
        peer.start(receive_numbers, count)
        while sent < count:
            if send_next():
                sent += 1
            else:
                collect(queue, 1)
        assert peer.finish() == list(range(count))
        assert link_to(endpoint, handle) == "shm"


def receive_numbers(target, count):
    landing = np.zeros(512, np.int64)
    return [int(landing[0]) for _ in range(count) if target.endpoint.recv(landing).result(TIMEOUT)]


ENVIRONMENT = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
def now():
    table, found = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ"), []
    while table[len(found)] is not None:
        found.append(table[len(found)])
    return sorted(found)
before = now()
import pyfab
with pyfab.Domain() as domain, domain.endpoint() as endpoint:
    endpoint.send(b"x", endpoint.av.insert(endpoint.address))
    assert len(domain.info.links) == 2
assert now() == before
"""


@pytest.mark.req("LNX-41")
def test_the_environment_is_only_read():
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "FI_LNX_PROV_LINKS": "shm+tcp",
        "FI_LNX_USE_SRQ": "1",
    }
    subprocess.run([sys.executable, "-c", ENVIRONMENT], env=environment, check=True, timeout=TIMEOUT)


# --- receiving


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
