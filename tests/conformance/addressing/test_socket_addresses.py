"""Domains whose addresses are those of sockets: peers are known by where they listen, before anybody met them."""

from __future__ import annotations

import socket

import numpy as np
import pyfab
import pytest
from pyfab import Access
from pyfab.testing import Peer, Target
from support import TIMEOUT

FORMATS = [
    ("sockaddr_in", "127.0.0.1"),
    ("sockaddr_in6", "[::1]"),
    ("str", "127.0.0.1"),
    ("bundle", "127.0.0.1"),
]


def port_of(address: bytes) -> int:
    return int.from_bytes(address[2:4], "big")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def insert(target: Target, address: object) -> int:
    return target.endpoint.av.insert(address)


def put_to(target: Target, handle: int, remote: pyfab.RemoteRegion, value: float) -> None:
    target.endpoint.write(np.full(4, value), handle, remote).result(TIMEOUT)


@pytest.mark.slow
@pytest.mark.req("AV-20", "AV-21")
@pytest.mark.parametrize("auth_key", [None, b"between us"], ids=["open", "keyed"])
@pytest.mark.parametrize("where", ["thread", "process"])
@pytest.mark.parametrize("addr_format, listen", FORMATS)
def test_both_sides_call_each_other(where, addr_format, listen, auth_key):
    options = {"addr_format": addr_format, "tcp_listen": listen, "auth_key": auth_key}
    with (
        Peer("tcp", where=where, **options) as peer,
        pyfab.Domain("tcp", **options) as domain,
        domain.endpoint() as endpoint,
    ):
        assert domain.info.addr_format == addr_format
        handle = endpoint.av.insert(peer.address)
        back = peer.run(insert, endpoint.address)
        exposed = peer.expose(np.zeros(4))
        mine = np.zeros(4)
        with domain.register(mine, Access.REMOTE) as region:
            operation = endpoint.write(np.ones(4), handle, exposed.remote)
            peer.run(put_to, back, region.remote, 2.0)
            operation.result(TIMEOUT)
            assert (exposed.content() == 1).all() and (mine == 2).all()
            # To oneself, by the same kind of address.
            self_handle = endpoint.av.insert(endpoint.address)
            endpoint.write(np.full(4, 3.0), self_handle, region.remote).result(TIMEOUT)
            assert (mine == 3).all()


@pytest.mark.req("AV-25")
@pytest.mark.parametrize("spec", ["tcp", "shm+tcp"])
def test_a_peer_is_reached_by_node_and_service(spec):
    with (
        pyfab.Domain("tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1", tcp_port=free_port()) as there,
        there.endpoint() as target,
        pyfab.Domain(spec) as domain,
        domain.endpoint() as endpoint,
    ):
        memory = np.zeros(4)
        with there.register(memory, Access.REMOTE) as region:
            text = target.av.straddr(target.address)
            for address in (target.address, bytearray(target.address), text):
                with pytest.raises(pyfab.InvalidArgumentError, match="addr_format='sockaddr_in'"):
                    endpoint.av.insert(address)
            handles = [
                endpoint.av.insert_service("localhost", str(port_of(target.address))),
                endpoint.av.insert_service(text),
            ]
            here = endpoint.av.straddr(endpoint.address)
            assert endpoint.av.lookup(endpoint.av.insert_service(here)) == endpoint.address
            for number, handle in enumerate(handles):
                endpoint.write(np.full(4, float(number)), handle, region.remote, data=7).result(TIMEOUT)
                assert (memory == number).all()
                assert endpoint.report(handle)[0] == "tcp.0"


@pytest.mark.parametrize("first_calls", [False, True], ids=["found before", "found after"])
def test_the_source_is_known_by_where_it_listens_once_it_was_found_there(first_calls):
    with (
        pyfab.Domain("tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1") as domain,
        domain.endpoint() as first,
        domain.endpoint() as second,
    ):
        memory = np.zeros(4)
        with domain.register(memory, Access.REMOTE) as region:
            second.av.insert(pyfab.parse_addr("fi_sockaddr_in://127.0.0.1:9"))
            source = second.av.insert(first.address)
            to = first.av.insert(second.address)

            def told_source():
                first.write(np.ones(4), to, region.remote, data=7).result(TIMEOUT)
                second.cq.wait(TIMEOUT)
                return second.cq.read()[0].source

            if first_calls:
                assert told_source() == pyfab.ADDR_NOTAVAIL  # it only says that it listens there
            second.write(np.ones(4), source, region.remote).result(TIMEOUT)
            assert second.cq.read()[0].data == 0  # the write of its own
            assert told_source() == source


def test_whose_id_is_an_address_is_nobody_as_a_source():
    with (
        pyfab.Domain("tcp", tcp_listen="127.0.0.1", tcp_port=free_port()) as domain,
        domain.endpoint() as first,
        pyfab.Domain("tcp", tcp_listen="127.0.0.1") as other,
        other.endpoint() as second,
    ):
        source, to = second.av.insert(first.address), first.av.insert(second.address)
        named, anybody = np.zeros(1), np.zeros(1)
        directed, open_to_all = second.recv(named, source), second.recv(anybody)
        first.send(np.ones(1), to).result(TIMEOUT)
        assert open_to_all.result(TIMEOUT).source == pyfab.ADDR_NOTAVAIL
        assert (anybody == 1).all()
        assert not directed.done()
        directed.cancel()


def test_an_endpoint_that_comes_back_at_its_port():
    port = free_port()
    options = {"addr_format": "sockaddr_in", "tcp_listen": "127.0.0.1", "tcp_port": port}
    with (
        pyfab.Domain("tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1") as domain,
        domain.endpoint() as endpoint,
    ):
        handle = endpoint.av.insert_service("127.0.0.1", str(port))
        for value in (1.0, 2.0):
            with pyfab.Domain("tcp", **options) as there, there.endpoint():
                memory = np.zeros(4)
                with there.register(memory, Access.REMOTE, key=5):
                    for _ in range(3):  # the first may still go to the one before, which is gone
                        operation = endpoint.write(np.full(4, value), handle, (0, 5))
                        if operation.exception(TIMEOUT) is None:
                            break
                    assert (memory == value).all()


@pytest.mark.parametrize(
    "spec, options",
    [
        ("shm", {"addr_format": "sockaddr_in"}),
        ("shm+tcp", {"addr_format": "str"}),
        ("tcp", {"addr_format": "sockaddr_in6", "tcp_listen": "127.0.0.1"}),
        ("tcp", {"addr_format": "sockaddr_un"}),
    ],
)
def test_formats_that_a_domain_does_not_have(spec, options):
    with pytest.raises(pyfab.InvalidArgumentError, match="addr_format"):
        pyfab.Domain(spec, **options)
