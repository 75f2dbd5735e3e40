"""Ports without an IP address, whose queue pairs are connected by an exchange over tcp: `scripts/mock-verbs-tests` runs it.

What such a port needs of strangers' bytes is in tests/cpp/providers/verbs/exchange and tests/fuzz/exchange_fuzz.cpp.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import mock_device as mock
import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp, EventType
from pyfab.testing import Peer

pytestmark = pytest.mark.skipif(not mock.RUNS, reason="needs the mock device (scripts/mock-verbs-tests)")
DEVICE = "verbs:mock0"
TIMEOUT = 60
SIZE = 64 * 1024  # bytes: large enough for devices to move them at the first use of a region
SOON = 20  # seconds: what takes no longer does not wait for a deadline of LATE
LATE = 120
HANDSHAKE = 4  # seconds: less than a handshake may take


@pytest.fixture(params=["gid", "lid"])
def without_address(request, monkeypatch):
    """Processes that start now have a port that is reached by its GID (RoCE), or by its LID (InfiniBand), alone."""
    monkeypatch.setenv("PYFAB_MOCK_VERBS", f"no_address={request.param}")


@pytest.fixture
def deadline():
    return LATE


@pytest.fixture
def here(deadline):
    """An endpoint whose port has an IP address, and which takes exchanges all the same."""
    with (
        pyfab.Domain(DEVICE, verbs_connect="exchange", peer_deadline=deadline) as domain,
        domain.endpoint() as endpoint,
    ):
        yield endpoint


@contextlib.contextmanager
def exchanging(**settings) -> Iterator[Peer]:
    with Peer(DEVICE, verbs_connect="exchange", **settings) as there:
        yield there


def place_of(target):
    """Where the endpoint of the target takes exchanges."""
    host = target.domain.info.src_addr
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] != "0A":
            continue
        address, port = fields[1].split(":")
        inode = fields[9]
        if socket.inet_ntoa(struct.pack("<I", int(address, 16))) == host and inode in own_sockets():
            return host, int(port, 16)
    raise AssertionError(f"nothing of this process listens on {host}")


def own_sockets():
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            link = str(entry.readlink())
            if link.startswith("socket:["):
                found.add(link[8:-1])
    return found


def security_of(target):
    return target.domain.stats()["security"]


def how_port_is_told(_target):
    info = pyfab.getinfo(DEVICE)[0]
    return info.src_addr, info.nic.state, info.fabric


def do_everything(target, address, block, word):
    """A put, a get, updates and messages; what the devices moved, and how the peer is reached."""
    here = target.endpoint
    handle = here.av.insert(address)
    here.write(np.full(SIZE, 7, np.uint8), handle, block).result(TIMEOUT)
    back = np.zeros(SIZE, np.uint8)
    here.read(back, handle, block).result(TIMEOUT)
    assert (back == 7).all()
    old = np.zeros(1, np.int64)
    for turn in range(3):
        here.fetch_atomic(AtomicOp.SUM, np.ones(1, np.int64), old, handle, word).result(TIMEOUT)
        assert old[0] == turn
    here.send(np.arange(9), handle).result(TIMEOUT)
    here.send(np.arange(SIZE), handle).result(TIMEOUT)
    asked = mock.asked()
    return asked["written"], asked["read"], here.report(handle)


def take_messages(target):
    small, large = np.zeros(9, np.int64), np.zeros(SIZE, np.int64)
    for into in (small, large):
        target.endpoint.recv(into).result(TIMEOUT)
    return bool((small == np.arange(9)).all() and (large == np.arange(SIZE)).all())


@pytest.mark.usefixtures("without_address")
def test_ports_without_an_address_do_what_others_do():
    with Peer(DEVICE) as one, Peer(DEVICE, auth_key=None) as other:
        block, word = other.expose(np.zeros(SIZE, np.uint8)), other.expose(np.zeros(1, np.int64))
        other.start(take_messages)
        written, read, report = one.run(do_everything, other.address, block.remote, word.remote)
        assert other.finish()
        assert written >= SIZE and read >= SIZE  # by the devices, whose peer's processor does nothing
        assert "(by exchange)" in report[2] and "by messages" not in report[1]
        assert (block.content() == 7).all() and word.content()[0] == 3


@pytest.mark.usefixtures("without_address")
def test_such_a_port_is_told_as_one():
    with Peer(DEVICE) as one:
        address, state, fabric = one.run(how_port_is_told)
        assert (address, state.endswith(", no IP address")) == ("", True)
        assert fabric in ("roce", "infiniband")


def test_authorization_keys_are_proven_over_it():
    with exchanging(auth_key=b"red") as peer:
        exposed = peer.expose(np.zeros(8, np.uint8))
        for key, let_in in ((b"red", True), (b"blue", False)):
            with (
                pyfab.Domain(DEVICE, verbs_connect="exchange", auth_key=key) as domain,
                domain.endpoint() as end,
            ):
                put = end.write(np.ones(8, np.uint8), end.av.insert(peer.address), exposed.remote)
                error = put.exception(TIMEOUT)
                assert error is None if let_in else isinstance(error, pyfab.KeyRejectedError)


def test_messages_arrive_where_receives_are_shared(here):
    with exchanging(verbs_srq=64) as peer:
        peer.start(take_messages)
        handle = here.av.insert(peer.address)
        here.send(np.arange(9), handle).result(TIMEOUT)
        here.send(np.arange(SIZE), handle).result(TIMEOUT)
        assert peer.finish()


def test_the_settings_of_packets_hold():
    def chosen(**settings):
        with pyfab.Domain(DEVICE, verbs_connect="exchange", **settings) as domain, domain.endpoint() as end:
            end.write(np.ones(8, np.uint8), end.av.insert(peer.address), exposed.remote).result(TIMEOUT)
            return [mock.asked()[name] for name in ("traffic_class", "retries", "ack_timeout")]

    with exchanging() as peer:
        exposed = peer.expose(np.zeros(8, np.uint8))
        assert chosen(verbs_traffic_class=106, verbs_retries=3, verbs_ack_timeout=14) == [106, 3, 14]
        assert chosen(verbs_gid_index=0) == [0, 7, 17]


def test_a_port_with_an_address_calls_one_without(monkeypatch):
    """The way of the called side counts. The other way round there is none, and the error says what to do."""
    monkeypatch.setenv("PYFAB_MOCK_VERBS", "no_address=gid")
    with Peer(DEVICE) as without, pyfab.Domain(DEVICE) as domain, domain.endpoint() as end:
        exposed = without.expose(np.zeros(8, np.uint8))
        end.write(np.ones(8, np.uint8), end.av.insert(without.address), exposed.remote).result(TIMEOUT)
        assert exposed.content().all()
        assert 'pass verbs_connect="exchange" there too' in without.run(why_not, end.address)


def why_not(target, address):
    """Why the address is not reached; empty if it is."""
    try:
        target.endpoint.send(np.ones(1), target.endpoint.av.insert(address)).result(TIMEOUT)
    except pyfab.FabricError as error:
        return str(error)
    return ""


def test_a_peer_that_is_killed_is_lost_at_once():
    """The end of the tcp connection tells it, long before the deadline, though nothing is under way."""
    with (
        exchanging() as peer,
        pyfab.Domain(DEVICE, verbs_connect="exchange", peer_deadline=LATE) as domain,
        domain.event_queue() as events,
        domain.endpoint() as here,
    ):
        here.bind(events)
        handle, exposed = here.av.insert(peer.address), peer.expose(np.zeros(SIZE, np.uint8))
        here.write(np.ones(SIZE, np.uint8), handle, exposed.remote).result(TIMEOUT)
        peer.kill()
        event = events.read(SOON)
        assert event is not None and (event.type, event.peer) == (EventType.PEER_LOST, handle)


@pytest.fixture
def owing(here):
    """A peer that does not run, its word, and what it owes: updates that its processor has to do."""
    with exchanging() as peer:
        handle, word = here.av.insert(peer.address), peer.expose(np.zeros(1, np.int64))
        here.write(np.ones(1, np.int64), handle, word.remote).result(TIMEOUT)
        peer.suspend()
        try:
            yield (
                peer,
                word,
                [here.atomic(AtomicOp.MIN, np.ones(1, np.int64), handle, word.remote) for _ in range(9)],
            )
        finally:
            if not peer.over:
                peer.resume()


def test_what_a_peer_owes_fails_when_it_is_killed(owing):
    peer, _, owed = owing
    killed = time.monotonic()
    peer.kill()
    assert all(isinstance(each.exception(TIMEOUT), pyfab.PeerLostError) for each in owed)
    assert time.monotonic() - killed < SOON


@pytest.mark.parametrize("deadline", [1])
def test_a_peer_that_stops_is_lost_at_the_deadline(owing, here):
    peer, word, owed = owing
    assert all(isinstance(each.exception(TIMEOUT), pyfab.PeerLostError) for each in owed)
    peer.resume()
    handle = here.av.insert(peer.address)
    here.write(np.full(1, 77), handle, word.remote).result(TIMEOUT)
    assert word.content()[0] == 77


def test_a_stopped_peer_that_is_called_is_unreachable_at_the_deadline():
    """Its kernel takes the tcp connection, and nobody answers over it."""
    with (
        exchanging() as peer,
        pyfab.Domain(DEVICE, verbs_connect="exchange", peer_deadline=1) as domain,
        domain.endpoint() as here,
    ):
        exposed = peer.expose(np.zeros(8, np.uint8))
        peer.suspend()
        put = here.write(np.ones(8, np.uint8), here.av.insert(peer.address), exposed.remote)
        assert isinstance(put.exception(TIMEOUT), (pyfab.UnreachableError, pyfab.PeerLostError))
        peer.resume()


def test_called_sides_let_go_of_callers_that_are_killed():
    with exchanging(peer_deadline=LATE) as called, exchanging() as caller:
        exposed = called.expose(np.zeros(SIZE, np.uint8))
        before = called.run(counts_of_objects)
        caller.run(put_once, called.address, exposed.remote)
        assert called.run(counts_of_objects)["qp"] == before["qp"] + 2
        caller.kill()
        until(lambda: called.run(counts_of_objects) == before)


def until(holds):
    over = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < over
        time.sleep(0.02)


def counts_of_objects(_target):
    found = mock.objects()
    return {"qp": found["qp"], "cq": found["cq"], "descriptors": len(own_sockets())}


def put_once(target, address, remote):
    data = np.ones(remote.nbytes, np.uint8)
    target.endpoint.write(data, target.endpoint.av.insert(address), remote).result(TIMEOUT)


def test_a_peer_is_found_again_after_its_end(here):
    with exchanging() as peer:
        exposed = peer.expose(np.zeros(SIZE, np.uint8))
        handle = here.av.insert(peer.address)
        for _ in range(3):
            here.write(np.ones(SIZE, np.uint8), handle, exposed.remote).result(TIMEOUT)
            here.av.remove(handle)
            handle = here.av.insert(peer.address)


RUBBISH = {
    "other protocol": b"GET / HTTP/1.0\r\n\r\n",
    "zeros": bytes(200),
    "another version": struct.pack("<4sBBH", b"pfx1", 9, 1, 68),
    "an answer": struct.pack("<4sBBH", b"pfx1", 1, 2, 36) + bytes(36),
    "a card of nobody": struct.pack("<4sBBH", b"pfx1", 1, 1, 68) + bytes(68),
}


@pytest.mark.parametrize("what", RUBBISH)
def test_who_says_what_is_no_call_is_gone_at_once(here, what):
    with exchanging(peer_deadline=LATE) as called:
        place = called.run(place_of)
        with socket.create_connection(place, TIMEOUT) as stranger:
            stranger.sendall(RUBBISH[what])
            assert ended(stranger)
        until(lambda: called.run(security_of)["broken_protocols"] == 1)
        exposed = called.expose(np.zeros(8, np.uint8))
        here.write(np.ones(8, np.uint8), here.av.insert(called.address), exposed.remote).result(TIMEOUT)


def ended(stranger, within=SOON):
    stranger.settimeout(within)
    try:
        return stranger.recv(1) == b""
    except ConnectionError:
        return True


CARD = struct.pack(
    "<IIHBBBBBx16sI", 0x77, 5, 0, 5, 3, 1, 1, 7, bytes([0xFE, 0x80] + [0] * 12 + [0x6D, 0x6B]), 0
)


def call_to(endpoint_id, purpose=1, token=0):
    private = struct.pack("<4sBBH16sQ", b"pfv1", 1, purpose, 0, endpoint_id, token)
    return struct.pack("<4sBBH", b"pfx1", 1, 1, 68) + private + CARD


def id_in(address):
    """The id of the endpoint: behind version and kind of its part of the address."""
    at = address.index(bytes([130, 1]), address.index(b"verbs"))
    return address[at + 2 : at + 18]


def test_a_caller_of_somebody_else_is_refused():
    with exchanging(peer_deadline=LATE) as called, contextlib.ExitStack() as opened:
        place = called.run(place_of)
        for said in (call_to(bytes(16)), call_to(id_in(called.address), purpose=2, token=77)):
            stranger = opened.enter_context(socket.create_connection(place, TIMEOUT))
            stranger.sendall(said)
            stranger.settimeout(SOON)
            answer = stranger.recv(100)
            assert answer[:8] == struct.pack("<4sBBH", b"pfx1", 1, 3, 8)
            assert answer[8:14] == b"pfv1" + bytes([1, 2])  # never
            assert ended(stranger)
        assert called.run(counts_of_objects)["qp"] == 0


def test_who_lies_of_its_queue_pair_holds_one_until_its_deadline(here):
    """Its call is whole, and nothing comes over the queue pair that it names."""
    with exchanging(peer_deadline=1) as called:
        place = called.run(place_of)
        exposed = called.expose(np.zeros(8, np.uint8))
        with socket.create_connection(place, TIMEOUT) as stranger:
            stranger.sendall(call_to(id_in(called.address)))
            stranger.settimeout(SOON)
            assert stranger.recv(100)[:8] == struct.pack("<4sBBH", b"pfx1", 1, 2, 36)
            assert called.run(counts_of_objects)["qp"] == 1
            here.write(np.ones(8, np.uint8), here.av.insert(called.address), exposed.remote).result(TIMEOUT)
            assert ended(stranger)
        until(lambda: called.run(counts_of_objects)["qp"] == 1)  # of the stream of this side


def test_more_after_a_call_ends_it():
    with exchanging(peer_deadline=LATE) as called:
        with socket.create_connection(called.run(place_of), TIMEOUT) as stranger:
            stranger.sendall(call_to(id_in(called.address)))
            stranger.settimeout(SOON)
            assert stranger.recv(100)
            stranger.sendall(b"?")
            assert ended(stranger, HANDSHAKE)
        until(lambda: called.run(counts_of_objects)["qp"] == 0)  # what ends here ends there a little later


@pytest.mark.parametrize("said", [b"", b"pfx1"], ids=["silent", "half"])
def test_strangers_who_say_no_call_are_few_and_others_get_in(here, said):
    """A flood pushes out itself: those from one place are at most 128, and all have gone at their deadline."""
    with exchanging(peer_deadline=2) as called, contextlib.ExitStack() as opened:
        place = called.run(place_of)
        before = called.run(counts_of_objects)
        flood = []
        for _ in range(300):
            flood.append(opened.enter_context(socket.create_connection(place, TIMEOUT)))
            flood[-1].sendall(said)
        exposed = called.expose(np.zeros(8, np.uint8))
        here.write(np.ones(8, np.uint8), here.av.insert(called.address), exposed.remote).result(TIMEOUT)
        held = called.run(counts_of_objects)
        assert held["descriptors"] - before["descriptors"] <= 128 + 2
        assert held["qp"] - before["qp"] <= 2
        assert called.run(security_of)["dropped_callers"] >= 300 - 128
        assert all(ended(stranger) for stranger in flood)
        until(lambda: 1 <= called.run(security_of)["late_handshakes"] <= 128)


def test_no_descriptor_for_a_call_is_no_end():
    """The door waits until there is one again."""
    with exchanging(peer_deadline=LATE) as called, exchanging() as caller:
        exposed = called.expose(np.zeros(8, np.uint8))
        called.run(take_descriptors, True)
        caller.start(put_once, called.address, exposed.remote)
        until(lambda: called.run(security_of)["limits"] != 0)
        called.run(take_descriptors, False)
        caller.finish()
        assert exposed.content().all()


_taken: list[int] = []


def take_descriptors(_target, all_of_them):
    if not all_of_them:
        while _taken:
            os.close(_taken.pop())
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while True:
            _taken.append(os.dup(0))


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"verbs_connect": "ip"}, 'verbs_connect is "ip"; it must be auto, cm or exchange'),
        ({"verbs_connect": "exchange", "verbs_gid_index": 9}, r"no GID of mock0; there is 0 \(RoCE v2\)"),
        ({"verbs_connect": "exchange", "verbs_listen": "0.0.0.0"}, "no address that peers could call"),
        ({"verbs_connect": "exchange", "verbs_listen": "192.0.2.77"}, "an address of this machine"),
        ({"verbs_connect": "exchange", "verbs_listen": "a:b:c"}, "verbs_listen: "),
    ],
)
def test_settings_that_cannot_be_are_refused_with_what_can(settings, says):
    with pytest.raises(pyfab.FabricError, match=says), pyfab.Domain(DEVICE, **settings) as domain:
        domain.endpoint()


def test_a_device_without_an_address_refuses_rdma_cm(monkeypatch):
    monkeypatch.setenv("PYFAB_MOCK_VERBS", "no_address=gid")
    with pytest.raises(pyfab.FabricError, match='verbs_connect is "cm", but mock0 has no IP address'):
        Peer(DEVICE, verbs_connect="cm")


def test_the_place_of_exchanges_is_chosen():
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with (
        pyfab.Domain(DEVICE, verbs_connect="exchange", verbs_listen=f"127.0.0.1:{port}") as domain,
        domain.endpoint(contexts=2),
        exchanging() as peer,
    ):
        for number in range(2):
            socket.create_connection(("127.0.0.1", port + number), TIMEOUT).close()
        assert peer.address
