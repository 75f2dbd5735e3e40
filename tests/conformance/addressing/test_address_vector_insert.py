"""Address vectors: attributes, flags of insertion, and ids that users give to what they insert."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pyfab
import pytest
from addresses import BAD, NOTAVAIL, read, some, v4, v6
from pyfab import AVFlag, AVType, InsertFlag


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
