"""Addresses as text, and handles that hold a receive context or a group."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from addresses import NOTAVAIL, some, v4


class TestAddresses:
    TABLE = (
        "fi_sockaddr_in://1.2.3.4:80",
        "fi_sockaddr_in://255.255.255.255:65535",
        "fi_sockaddr_in://0.0.0.0:0",
        "fi_sockaddr_in6://[::1]:80",
        "fi_sockaddr_in6://[2001:db8::ff00:42:8329]:443",
        "fi_sockaddr_in6://[fe80::1%3]:9",
        "fi_sockaddr_ib://[fe80::2:c903:1]:0xffff:0x1:0x0",
        "fi_sockaddr_ib://[::]:0x7fff:0x106:0x2",
    )

    @pytest.mark.req("AV-43")
    @pytest.mark.parametrize("text", TABLE)
    def test_text_and_back(self, av, text):
        assert av.straddr(pyfab.parse_addr(text)) == text
        with pyfab.Domain("tcp", addr_format="str") as domain, domain.address_vector() as strings:
            assert strings.straddr(text) == text

    @pytest.mark.req("AV-42", "AV-43")
    def test_bundles_and_rubbish(self, av):
        with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint:
            text = av.straddr(endpoint.address)
            assert text.startswith("fi_bundle://") and pyfab.parse_addr(text) == endpoint.address
        for rubbish in (b"", b"\x02", b"\x02\x00\x00", bytes(40), bytes(range(200))):
            assert av.straddr(rubbish) == ""
        for text in ("", "fi_", "fi_sockaddr_in://", "fi_sockaddr_in://1.2.3.4:99999", "fi_sockaddr_in6://::1:80",
                     "fi_sockaddr_ib://[::]:1", "fi_bundle://0", "fi_bundle://zz", "fi_bundle://00"):  # fmt: skip
            with pytest.raises(pyfab.InvalidArgumentError):
                pyfab.parse_addr(text)

    @pytest.mark.req("AV-42", "AV-44")
    def test_printing_into_little_room(self, av):
        address = v4("1.2.3.4:80")
        full = "fi_sockaddr_in://1.2.3.4:80"
        assert av.straddr(address, 10) == (full[:9], len(full) + 1)
        assert av.straddr(address, 0) == ("", len(full) + 1)
        assert av.straddr(address, len(full)) == (full[:-1], len(full) + 1), "room for the terminating zero"
        for size in (len(full) + 1, 100):
            assert av.straddr(address, size) == (full, len(full) + 1)
        assert len(av) == 0, "and nothing had to be inserted"

    @pytest.mark.req("AV-39")
    def test_looking_up_into_little_room(self, av):
        av.insert(v4("1.2.3.4:80"))
        assert av.lookup(0, 4) == (v4("1.2.3.4:80")[:4], 16)
        assert av.lookup(0, 16) == (v4("1.2.3.4:80"), 16)


class TestHandles:
    @pytest.mark.req("AV-45")
    def test_receive_contexts(self):
        assert pyfab.rx_addr(5, 3, 4) == 0x3000000000000005
        assert pyfab.rx_addr(pyfab.rx_addr(5, 3, 4), 2, 4) == 0x2000000000000005

    @pytest.mark.req("AV-46")
    def test_limits_of_receive_contexts(self):
        assert pyfab.rx_addr(7, 0, 0) == 7
        for index, bits in ((1, 0), (16, 4), (-1, 4), (0, 33), (0, -1)):
            with pytest.raises(pyfab.InvalidArgumentError):
                pyfab.rx_addr(7, index, bits)
        for index in range(16):
            assert pyfab.rx_addr(NOTAVAIL, index, 4) >> 60 == index

    @pytest.mark.req("AV-41")
    def test_looking_up_a_receive_context(self, domain):
        with domain.address_vector(rx_ctx_bits=3) as av:
            handle = av.insert(some(2))[1]
            assert {av.lookup(pyfab.rx_addr(handle, index, 3)) for index in range(8)} == {some(2)[1]}
            assert pyfab.rx_addr(handle, 5, 3) in av

    @pytest.mark.req("AV-48")
    def test_a_group_replaces_the_one_before(self):
        assert pyfab.group_addr(9, 5) == 9 | 5 << 32
        assert pyfab.group_addr(pyfab.group_addr(9, 5), 2) == pyfab.group_addr(9, 2)
        assert pyfab.group_addr(pyfab.group_addr(9, 5), 0) == 9
        assert pyfab.group_addr(pyfab.rx_addr(9, 3, 4), 1) == pyfab.rx_addr(9 | 1 << 32, 3, 4)

    @pytest.mark.req("AV-49", "AV-52")
    def test_limits_of_groups(self):
        assert pyfab.group_addr(0, 2**24 - 1) >> 32 == 2**24 - 1
        for group in (2**24, -1):
            with pytest.raises(pyfab.InvalidArgumentError):
                pyfab.group_addr(0, group)
        with pytest.raises(pyfab.InvalidArgumentError):
            pyfab.group_addr(pyfab.ADDR_UNSPEC, 1)


def test_handles_may_be_integers_of_numpy():
    with (
        pyfab.Domain("tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1") as domain,
        domain.address_vector() as av,
    ):
        handles = np.zeros(2, np.uint64)
        av.insert(some(2), fi_addr=handles)
        assert handles[1] in av
        assert 1.0 not in av
        av.remove(handles[0])
        assert handles[0] not in av
        assert len(av) == 1
        with pytest.raises(pyfab.InvalidArgumentError):
            av.remove(None)
