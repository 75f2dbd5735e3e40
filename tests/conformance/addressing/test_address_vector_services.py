"""Insertion by node and service, and of ranges of nodes and services that stand for many addresses."""

from __future__ import annotations

import socket

import pyfab
import pytest
from addresses import NOTAVAIL, v4, v6
from pyfab import InsertFlag
from pyfab.core.addressing import resolver as resolving


@pytest.fixture
def resolver(monkeypatch):
    """Knows every name as 10.9.x.y; records what it was asked."""
    asked = []

    def getaddrinfo(node, service, *_):
        asked.append((node, service))
        if "invalid" in node:
            raise socket.gaierror(-2, "Name or service not known")
        host = f"10.9.0.{len(asked)}"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, int(service or 0)))]

    monkeypatch.setattr(resolving, "getaddrinfo", getaddrinfo)
    return asked


class TestSymmetric:
    @pytest.mark.req("AV-5")
    def test_it_takes_next_to_no_memory_and_is_right(self, domain):
        """10,000 nodes with 8 ports; some removed, some that do not fit the pattern."""
        with domain.address_vector(symmetric=True) as av, domain.address_vector() as plain:
            assert av.insert_symmetric("10.1.0.0", 10_000, "5000", 8) == list(range(80_000))
            plain.insert([address for _, address in av])
            assert list(av) == list(plain)
            assert av.insert(v4("9.9.9.9:9")) == 80_000
            av.remove([3, 40_000])
            assert 3 not in av and 40_000 not in av
            assert av.insert(v4("8.8.8.8:8")) == 3
            assert av.lookup(3) == v4("8.8.8.8:8")
            assert av.lookup(4) == v4("10.1.0.0:5004")
            assert len(av) == 80_000

    @pytest.mark.req("AV-5")
    def test_what_does_not_conform_is_kept_as_it_is(self, domain):
        addresses = [v4(f"10.0.{i % 3}.{i * 7 % 256}:{1000 + i % 5}") for i in range(500)]
        with domain.address_vector(symmetric=True, ep_per_node=4) as av:
            assert av.insert(addresses) == list(range(500))
            assert [address for _, address in av] == addresses

    @pytest.mark.req("AV-27", "AV-34")
    def test_the_order(self, av):
        handles = av.insert_symmetric("10.1.1.1", 2, "5000", 2)
        assert [av.straddr(av.lookup(handle)) for handle in handles] == [
            f"fi_sockaddr_in://10.1.1.{node}:{port}" for node in (1, 2) for port in (5000, 5001)
        ]

    @pytest.mark.req("AV-28")
    def test_carry_of_ipv4(self, av):
        av.insert_symmetric("10.1.1.254", 3, "80", 1)
        assert [address for _, address in av] == [v4("10.1.1.254:80"), v4("10.1.1.255:80"), v4("10.1.2.0:80")]
        with pytest.raises(pyfab.InsertError) as caught:
            av.insert_symmetric("255.255.255.255", 2, "80", 1)
        assert caught.value.count == 1

    @pytest.mark.req("AV-29")
    @pytest.mark.parametrize("symmetric", [False, True])
    def test_carry_of_ipv6(self, symmetric):
        with (
            pyfab.Domain("tcp", addr_format="sockaddr_in6", tcp_listen="[::1]") as domain,
            domain.address_vector(symmetric=symmetric) as av,
        ):
            av.insert_symmetric("::ffff:ff", 2, "80", 1)
            av.insert_symmetric("2001::ffff:ffff:ffff:ffff", 2, "80", 1)
            assert [address for _, address in av] == [
                v6(f"[{host}]:80")
                for host in ("::ffff:ff", "::ffff:100", "2001::ffff:ffff:ffff:ffff", "2001:0:0:1::")
            ]

    @pytest.mark.req("AV-30")
    def test_names_of_several_nodes_end_in_a_number(self, av, resolver):
        with pytest.raises(pyfab.InvalidArgumentError):
            av.insert_symmetric("alpha", 2, "80", 1)
        assert resolver == [] and len(av) == 0
        assert av.insert_symmetric("alpha", 1, "80", 1) == [0]

    @pytest.mark.req("AV-31")
    def test_numbers_keep_their_width(self, av, resolver):
        av.insert_symmetric("node08", 3, "80", 2)
        assert [node for node, _ in resolver] == ["node08", "node09", "node10"]
        assert len(av) == 6

    @pytest.mark.req("AV-32")
    def test_each_port_is_the_one_meant(self, av):
        av.insert_symmetric("localhost", 1, "5000", 3)
        assert [address for _, address in av] == [v4(f"127.0.0.1:{port}") for port in (5000, 5001, 5002)]

    @pytest.mark.req("AV-33", "AV-34")
    def test_ports_beyond_the_last(self, av):
        codes = [-9, -9]
        av.insert_symmetric("10.0.0.1", 1, "65535", 2, flags=InsertFlag.SYNC_ERR, context=codes)
        assert codes == [0, 22]
        assert [address for _, address in av] == [v4("10.0.0.1:65535")]
        for service in ("http", "x80", "-1"):
            with pytest.raises(pyfab.InvalidArgumentError):
                av.insert_symmetric("10.0.0.1", 1, service, 2)


class TestServices:
    @pytest.mark.req("AV-25")
    def test_by_node_and_service(self, av):
        assert av.insert_service("127.0.0.1", "7000") == 0
        assert av.insert_service("fi_sockaddr_in://127.0.0.1:7001") == 1
        assert [address for _, address in av] == [v4("127.0.0.1:7000"), v4("127.0.0.1:7001")]
        with pytest.raises(pyfab.InvalidArgumentError):
            av.insert_service("fi_sockaddr_in://127.0.0.1:7000", "7000")

    @pytest.mark.req("AV-26")
    def test_a_name_that_nobody_knows(self, av):
        out = [5]
        with pytest.raises(pyfab.FabricError) as caught:
            av.insert_service("no-such-host.invalid", "80", fi_addr=out)
        assert caught.value.name == "FI_ENODATA"
        assert len(av) == 0 and out == [NOTAVAIL]

    @pytest.mark.req("AV-25")
    def test_a_link_without_sockets(self):
        with (
            pyfab.Domain("shm") as domain,
            domain.address_vector() as av,
            pytest.raises(pyfab.NotSupportedError),
        ):
            av.insert_service("127.0.0.1", "80")

    @pytest.mark.req("AV-21")
    def test_strings(self):
        with (
            pyfab.Domain("tcp", addr_format="str", tcp_listen="127.0.0.1") as domain,
            domain.address_vector() as av,
        ):
            texts = ["fi_sockaddr_in://127.0.0.1:7000", "fi_sockaddr_in6://[::1]:80"]
            assert av.insert(texts) == [0, 1]
            assert [address for _, address in av] == texts
            assert av.insert(texts[0]) == 2 and av.straddr(texts[0]) == texts[0]
            handles, errors = av.insert(["nonsense", "fi_sockaddr_in://1.2.3.4"], sync_err=True)
            assert handles == [NOTAVAIL] * 2 and all(errors)
