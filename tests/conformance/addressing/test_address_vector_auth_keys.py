"""Keys of authorization in an address vector, each of which names the same peers once more."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from addresses import NOTAVAIL
from pyfab import InsertFlag


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
