"""Address vectors: attributes, flags of insertion, services and symmetric ranges, printing, and handles taken apart."""

from __future__ import annotations

import gc
import itertools
import socket
import threading

import numpy as np
import pyfab
import pytest
from pyfab import AVFlag, AVType, InsertFlag
from pyfab.core.addressing import resolver as resolving

NOTAVAIL = pyfab.ADDR_NOTAVAIL
BAD = b"not an address"


@pytest.fixture(scope="module")
def domain():
    with pyfab.Domain("tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1") as domain:
        yield domain


@pytest.fixture
def av(domain):
    with domain.address_vector() as av:
        yield av


def v4(text: str) -> bytes:
    return pyfab.parse_addr(f"fi_sockaddr_in://{text}")


def v6(text: str) -> bytes:
    return pyfab.parse_addr(f"fi_sockaddr_in6://{text}")


def some(count: int, port: int = 5000) -> list[bytes]:
    return [v4(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}:{port}") for i in range(1, count + 1)]


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


class TestAttributes:
    @pytest.mark.req("AV-1", "AV-2", "AV-68")
    def test_they_read_back(self, domain):
        with domain.address_vector(
            AVType.MAP, count=7, ep_per_node=3, rx_ctx_bits=4, map_addr=4096, symmetric=True, user_id=True,
            asynchronous=True, duplicates="reject",
        ) as av:  # fmt: skip
            assert (av.type, av.count, av.ep_per_node, av.rx_ctx_bits) == (AVType.MAP, 7, 3, 4)
            assert (av.name, av.map_addr, av.read_only, av.symmetric) == (None, 4096, False, True)
            assert (av.user_id, av.asynchronous, av.duplicates) == (True, True, "reject")
            assert "AddressVector" in repr(av) and "<table>" in av._repr_html_()
        with domain.address_vector(AVType.UNSPEC) as av:
            assert av.type == AVType.TABLE

    @pytest.mark.req("AV-2")
    def test_a_map_gives_handles_that_work(self, domain):
        with domain.address_vector(AVType.MAP) as av:
            handles = av.insert(some(3))
            assert [av.lookup(handle) for handle in handles] == some(3)

    @pytest.mark.req("AV-3")
    def test_another_type_than_the_domain_has(self):
        with pyfab.Domain("shm", av_type=AVType.TABLE) as domain:
            with pytest.raises(pyfab.InvalidArgumentError):
                domain.address_vector(AVType.MAP)
            assert domain.address_vector().type == AVType.TABLE

    @pytest.mark.req("AV-1", "AV-3")
    def test_flags_say_the_same_as_the_keywords(self, domain):
        flags = AVFlag.EVENT | AVFlag.SYMMETRIC | AVFlag.USER_ID
        with domain.address_vector(flags=flags) as av:
            assert (av.asynchronous, av.symmetric, av.user_id, av.read_only) == (True, True, True, False)
        with pytest.raises(pyfab.InvalidArgumentError, match="read_only"):
            domain.address_vector(flags=AVFlag.READ)
        for unknown in (16, 1 << 40, AVFlag.READ | 32):
            with pytest.raises(pyfab.BadFlagsError):
                domain.address_vector(flags=unknown)

    @pytest.mark.req("AV-51")
    def test_more_bits_than_a_handle_has(self, domain):
        domain.address_vector(rx_ctx_bits=8)
        for bits in (9, 33, 64, -1):
            with pytest.raises(pyfab.InvalidArgumentError):
                domain.address_vector(rx_ctx_bits=bits)

    @pytest.mark.req("AV-64")
    def test_reading_only_needs_a_name(self, domain):
        with pytest.raises(pyfab.InvalidArgumentError):
            domain.address_vector(read_only=True)

    @pytest.mark.req("AV-8")
    def test_nothing_works_once_closed(self, domain):
        av = domain.address_vector()
        av.insert(some(2))
        av.close()
        av.close()
        for call in (
            lambda: av.insert(some(1)),
            lambda: av.insert([]),
            lambda: av.insert_service("127.0.0.1", "80"),
            lambda: av.insert_symmetric("127.0.0.1", 1, "80", 1),
            lambda: av.remove(0),
            lambda: av.lookup(0),
            lambda: av.straddr(some(1)[0]),
            lambda: list(av),
            lambda: av.set_user_id(0, 1),
            lambda: av.insert_auth_key(b"k"),
            lambda: av.lookup_auth_key(0),
            lambda: av.bind(domain.event_queue()),
        ):
            with pytest.raises(pyfab.ClosedError):
                call()
        assert "closed" in repr(av)


class TestInsert:
    @pytest.mark.req("AV-4")
    def test_the_expected_count_is_no_limit(self, domain):
        with domain.address_vector(count=1, ep_per_node=1) as av:
            assert av.insert([v4("10.0.0.1:80")] * 100_000) == list(range(100_000))

    @pytest.mark.req("AV-13", "AV-14")
    def test_the_handles_go_to_an_array_too(self, av):
        array = np.full(4, 77, np.uint64)
        with pytest.raises(pyfab.InsertError) as caught:
            av.insert([some(1)[0], BAD, some(2)[1]], fi_addr=array)
        assert list(map(int, array)) == [0, int(NOTAVAIL), 1, 77]
        assert caught.value.handles == [0, NOTAVAIL, 1]
        for flag in (InsertFlag.USER_ID,):
            with pytest.raises(pyfab.InvalidArgumentError):
                av.insert(some(1), flags=flag)
        assert len(av) == 2

    @pytest.mark.req("AV-13")
    def test_an_asynchronous_map_needs_the_array(self, domain):
        with domain.event_queue() as events:
            for kind in (AVType.MAP, AVType.TABLE):
                with domain.address_vector(kind, asynchronous=True) as av:
                    av.bind(events)
                    if kind == AVType.MAP:
                        for insert in (
                            lambda: av.insert(some(2)),
                            lambda: av.insert_service("127.0.0.1", "80"),
                        ):
                            with pytest.raises(pyfab.InvalidArgumentError, match="fi_addr"):
                                insert()
                        assert len(av) == 0
                        handles = [0, 0]
                        av.insert(some(2), fi_addr=handles)
                    else:
                        av.insert(some(2))
                    assert read(events).data == 2
                    if kind == AVType.MAP:
                        assert [av.lookup(handle) for handle in handles] == some(2)

    @pytest.mark.req("AV-15")
    def test_outcomes_in_the_context(self, av):
        codes = [-9] * 4
        handles = [5] * 3
        av.insert([some(1)[0], BAD, some(2)[1]], flags=InsertFlag.SYNC_ERR, context=codes, fi_addr=handles)
        assert codes == [0, 22, 0, -9]
        assert handles == [0, NOTAVAIL, 1]

    @pytest.mark.req("AV-16")
    def test_outcomes_without_a_place_for_them(self, av, domain):
        with pytest.raises(pyfab.InvalidArgumentError):
            av.insert(some(1), flags=InsertFlag.SYNC_ERR)
        with domain.address_vector(asynchronous=True) as other, domain.event_queue() as events:
            other.bind(events)
            with pytest.raises(pyfab.BadFlagsError):
                other.insert(some(1), flags=InsertFlag.SYNC_ERR, context=[0])

    @pytest.mark.req("AV-17")
    def test_more_changes_nothing(self, av):
        assert av.insert(some(2), flags=InsertFlag.MORE) == [0, 1]
        assert av.lookup(1) == some(2)[1]
        assert av.insert(some(3)[2:]) == [2]

    @pytest.mark.req("AV-18")
    @pytest.mark.parametrize("flags", [32, 1 << 40])
    def test_unknown_flags(self, av, flags):
        with pytest.raises(pyfab.BadFlagsError):
            av.insert(some(2), flags=flags)
        assert len(av) == 0

    @pytest.mark.req("AV-19")
    def test_none_at_all(self, av):
        assert av.insert([]) == []
        assert av.insert((), sync_err=True) == ([], [])
        assert av.insert_symmetric("127.0.0.1", 0, "80", 5) == []

    @pytest.mark.req("AV-20")
    def test_another_format(self, av):
        bad = [
            v6("[::1]:80"),
            v4("1.2.3.4:80")[:8],
            b"",
            bytes(16),
            v4("1.2.3.4:0"),
            "fi_sockaddr_in6://[::1]:80",
            7,
        ]
        handles, errors = av.insert([*bad, v4("1.2.3.4:80")], sync_err=True)
        assert handles == [NOTAVAIL] * len(bad) + [0]
        assert all(isinstance(error, pyfab.InvalidArgumentError) for error in errors[:-1])

    @pytest.mark.req("AV-22")
    def test_duplicates_on_request_refused(self, domain):
        with domain.address_vector(duplicates="reject") as av:
            assert av.insert(some(3)) == [0, 1, 2]
            with pytest.raises(pyfab.FabricError) as caught:
                av.insert(some(2)[1])
            assert caught.value.name == "FI_EALREADY"
            av.remove(1)
            assert av.insert(some(2)[1]) == 1

    @pytest.mark.req("AV-22")
    def test_a_thousand_times_again(self, av):
        av.insert(some(3))
        for _ in range(1000):
            av.remove(1)
            assert av.insert(some(2)[1]) == 1

    @pytest.mark.req("AV-23")
    def test_eight_threads(self, av):
        handles: list[list[int]] = []
        addresses = [some(1000, 6000 + thread) for thread in range(8)]

        def insert(mine):
            handles.append([av.insert(address) for address in mine])

        threads = [threading.Thread(target=insert, args=(mine,)) for mine in addresses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(itertools.chain(*handles)) == list(range(8000))
        assert sorted(av.lookup(handle) for handle in range(8000)) == sorted(itertools.chain(*addresses))

    @pytest.mark.req("AV-11", "AV-40")
    def test_the_lowest_free_of_many(self, av):
        addresses = some(20_000)
        av.insert(addresses)
        gone = [19_999, 64, 4096, 0, 12_345, 63, 4095]
        av.remove(gone)
        assert len(av) == 20_000 - len(gone) and all(handle not in av for handle in gone)
        assert av.insert(addresses[: len(gone) + 1]) == [*sorted(gone), 20_000]


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
        assert av.straddr(address, 100) == (full, len(full) + 1)

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


@pytest.fixture(params=["auto", "manual"])
def events(request):
    """(event queue, asynchronous vector) with the library's thread and without."""
    with (
        pyfab.Domain(
            "tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1", progress=request.param
        ) as domain,
        domain.address_vector(asynchronous=True) as av,
        domain.event_queue() as queue,
    ):
        yield queue, av


def read(queue: pyfab.EventQueue) -> pyfab.Event:
    """The next event, an error entry included."""
    try:
        event = queue.read(10)
    except pyfab.FabricError:
        event = queue.read_error()
    assert event is not None
    return event


class TestAsynchronous:
    @pytest.mark.req("AV-54")
    def test_without_a_queue(self, events):
        _, av = events
        for call in (
            lambda: av.insert(some(1)),
            lambda: av.insert_service("127.0.0.1", "80"),
            lambda: av.insert_symmetric("127.0.0.1", 1, "80", 1),
        ):
            with pytest.raises(pyfab.NoEventQueueError):
                call()

    @pytest.mark.req("AV-55")
    def test_what_can_be_bound(self, events):
        queue, av = events
        with pytest.raises(pyfab.InvalidArgumentError):
            av.bind(av._domain.counter())
        with pytest.raises(pyfab.BadFlagsError):
            av.bind(queue, flags=1)
        av.bind(queue)
        with pytest.raises(pyfab.InvalidArgumentError):
            av.bind(queue)

    @pytest.mark.req("AV-56", "AV-57", "AV-58", "AV-59", "AV-60", "AV-14", "AV-62")
    def test_errors_then_the_count(self, events):
        queue, av = events
        av.bind(queue)
        out = np.full(5, 7, np.uint64)
        good = some(3)
        assert av.insert([good[0], BAD, good[1], BAD, good[2]], context="mine", fi_addr=out) == 0
        for index in (1, 3):
            for _ in range(2):
                with pytest.raises(pyfab.FabricError) as caught:
                    queue.read(10)
                assert caught.value.name == "FI_EAVAIL"
            error = queue.read_error()
            assert (error.type.name, error.data, error.context, error.errno) == (
                "INSERTED",
                index,
                "mine",
                22,
            )
        event = queue.read(10)
        assert (event.errno, event.context, event.data) == (0, "mine", 3) and event.fid is av
        assert list(map(int, out)) == [0, int(NOTAVAIL), 1, int(NOTAVAIL), 2]
        assert queue.read() is None

    @pytest.mark.req("AV-58")
    def test_one_event_also_for_none(self, events):
        queue, av = events
        av.bind(queue)
        av.insert([], context=1)
        av.insert([BAD], context=2)
        assert [(event.context, event.errno, event.data) for event in (read(queue) for _ in range(3))] == [
            (1, 0, 0), (2, 22, 0), (2, 0, 0),
        ]  # fmt: skip

    @pytest.mark.req("AV-59")
    def test_indices_follow_the_calls(self, events, monkeypatch):
        queue, av = events
        av.bind(queue)
        let_go = threading.Event()

        def slow(*_):
            assert let_go.wait(10)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]

        monkeypatch.setattr(resolving, "getaddrinfo", slow)
        av.insert_symmetric("slow", 1, "80", 2, context="first")
        av.insert(some(1), context="second")
        let_go.set()
        assert {read(queue).context, read(queue).context} == {"first", "second"}
        assert [av.lookup(handle) for handle in range(3)] == [
            v4("10.0.0.1:80"),
            v4("10.0.0.1:81"),
            some(1)[0],
        ]

    @pytest.mark.req("AV-61")
    def test_the_rest_is_cancelled(self, domain):
        with (
            domain.address_vector(asynchronous=True, on_error="abort") as av,
            domain.event_queue() as queue,
        ):
            av.bind(queue)
            out = [7] * 4
            av.insert([some(1)[0], BAD, *some(3)[1:]], fi_addr=out)
            entries = [read(queue) for _ in range(4)]
            assert [(e.data, e.name) for e in entries] == [
                (1, "FI_EINVAL"), (2, "FI_ECANCELED"), (3, "FI_ECANCELED"), (1, "FI_SUCCESS"),
            ]  # fmt: skip
            assert out == [0, NOTAVAIL, NOTAVAIL, NOTAVAIL] and len(av) == 1

    @pytest.mark.req("AV-7", "AV-62")
    def test_the_vector_goes_before_its_events_are_read(self, domain):
        with domain.event_queue() as queue:
            av = domain.address_vector(asynchronous=True)
            av.bind(queue)
            av.insert(some(100), fi_addr=[0] * 100, context="still")
            av.close()
            del av
            gc.collect()
            assert (read(queue).context, queue.read()) == ("still", None)


class TestUserIds:
    @pytest.mark.req("AV-73")
    def test_an_id_for_each_insertion(self, av):
        ids = np.array([0xABC, 0xDEF], np.uint64)
        assert av.insert(some(2), flags=InsertFlag.USER_ID, fi_addr=ids) == [0, 1]
        assert list(ids) == [0, 1]
        assert [av._core.reported(handle) for handle in (0, 1)] == [0xABC, 0xDEF]
        assert av.insert(some(3)[2]) == 2 and av._core.reported(2) == 2
        av.remove(0)
        assert av.insert(some(1)[0]) == 0 and av._core.reported(0) == 0

    @pytest.mark.req("AV-74", "AV-75")
    def test_ids_set_later(self, domain, av):
        with domain.address_vector(user_id=True) as named:
            named.insert(some(2))
            assert named._core.reported(0) == NOTAVAIL
            named.set_user_id(0, 0xABC)
            assert [named._core.reported(handle) for handle in (0, 1)] == [0xABC, int(NOTAVAIL)]
            with pytest.raises(pyfab.InvalidArgumentError):
                named.insert(some(1), flags=InsertFlag.USER_ID, fi_addr=[1])
            with pytest.raises(pyfab.InvalidArgumentError):
                named.set_user_id(5, 1)
        av.insert(some(1))
        with pytest.raises(pyfab.InvalidArgumentError):
            av.set_user_id(0, 1)


class TestAuthKeys:
    @pytest.fixture
    def keyed(self):
        with pyfab.Domain("shm+tcp", av_auth_keys=True, auth_key_size=4) as domain:
            yield domain

    @pytest.mark.req("AV-76")
    def test_what_is_refused(self, keyed, av):
        with pytest.raises(pyfab.InvalidArgumentError):
            av.insert_auth_key(b"four")
        with keyed.address_vector() as mine:
            with pytest.raises(pyfab.BadFlagsError):
                mine.insert_auth_key(b"four", flags=1)
            for key in (b"", b"three"):
                with pytest.raises(pyfab.InvalidArgumentError):
                    mine.insert_auth_key(key)
            assert mine.insert_auth_key(b"four") == 0

    @pytest.mark.req("AV-78", "AV-79", "AV-81", "AV-13")
    def test_the_same_peer_under_two_keys(self, keyed):
        with keyed.address_vector() as av, keyed.endpoint() as endpoint:
            keys = [av.insert_auth_key(key) for key in (b"aaaa", b"bbbb")]
            address = endpoint.address
            with pytest.raises(pyfab.InvalidArgumentError):
                av.insert([address], flags=InsertFlag.AUTH_KEY)
            handles = [*keys, 77]
            with pytest.raises(pyfab.InsertError):
                av.insert([address] * 3, flags=InsertFlag.AUTH_KEY, fi_addr=handles)
            assert handles == [0, 1, NOTAVAIL]
            assert [av.lookup_auth_key(handle) for handle in handles[:2]] == [b"aaaa", b"bbbb"]
            assert av.lookup_auth_key(1, flags=InsertFlag.AUTH_KEY) == b"bbbb"
            assert av.lookup_auth_key(1, 2) == (b"bb", 4)
            assert av.lookup(1) == address
            plain = av.insert(address)
            with pytest.raises(pyfab.InvalidArgumentError):
                av.lookup_auth_key(plain)
            with pytest.raises(pyfab.InvalidArgumentError):
                av.lookup(plain + 1)
            with pytest.raises(pyfab.InvalidArgumentError):
                av.insert([address], flags=InsertFlag.USER_ID, fi_addr=[5])

    @pytest.mark.req("AV-77", "AV-80")
    def test_endpoints_take_the_key_that_is_there_when_they_are_enabled(self, keyed):
        memory = np.zeros(4)
        with (
            pyfab.Domain("shm+tcp", av_auth_keys=True) as other,
            keyed.register(memory, pyfab.Access.REMOTE, auth_key=b"aaaa") as region,
            keyed.address_vector() as av,
            other.address_vector() as good,
            other.address_vector() as bad,
        ):
            key = av.insert_auth_key(b"aaaa")
            good.insert_auth_key(b"aaaa")
            bad.insert_auth_key(b"bbbb")
            with keyed.endpoint(av) as target:
                av.insert_auth_key(b"bbbb")  # too late for the endpoint
                with other.endpoint(good) as first, other.endpoint(bad) as second:
                    first.write(np.ones(4), good.insert(target.address), region.remote).result(10)
                    with pytest.raises(pyfab.FabricError):
                        second.write(np.full(4, 2.0), bad.insert(target.address), region.remote).result(10)
                assert (memory == 1).all()
                with pytest.raises(pyfab.BusyError):
                    av.remove(key, flags=InsertFlag.AUTH_KEY)
            with pytest.raises(pyfab.InvalidArgumentError):
                av.remove(key)
            av.remove([key], flags=InsertFlag.AUTH_KEY)
            with pytest.raises(pyfab.InvalidArgumentError):
                av.lookup_auth_key(key, flags=InsertFlag.AUTH_KEY)
