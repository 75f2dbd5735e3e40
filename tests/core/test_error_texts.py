"""What errors say to a reader: peers, keys and types as they are shown elsewhere, each code once, and what to do."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from pyfab import Access


@pytest.fixture(scope="module")
def domain():
    with pyfab.Domain("shm+tcp") as domain:
        yield domain


@pytest.fixture(scope="module")
def to_self(domain):
    """An endpoint with itself as peer 0."""
    with domain.endpoint() as endpoint:
        assert endpoint.av.insert(endpoint.address) == 0
        yield endpoint


def test_a_region_that_nobody_kept(domain, to_self):
    remote = domain.register(np.zeros(4), Access.REMOTE).remote
    error = to_self.write(np.zeros(4), 0, remote).exception(10)
    assert isinstance(error, pyfab.KeyRejectedError)
    assert f" of key {remote.key:#x} to peer 0 " in str(error)  # as the repr of a region has it
    assert "keep that, and not its `remote` alone" in str(error)


@pytest.mark.parametrize("what", ["message", "region"])
def test_another_authorization_key(what):
    """Links tell one code for it and for the key of a region."""
    with (
        pyfab.Domain("tcp", auth_key=b"one") as domain,
        domain.endpoint() as endpoint,
        pyfab.Domain("tcp", auth_key=b"two") as other,
        other.endpoint() as there,
    ):
        peer = endpoint.av.insert(there.address)
        if what == "message":
            error = endpoint.send(np.zeros(4), peer).exception(10)
            assert "region" not in str(error) and "give both the same auth_key" in str(error)
        else:
            remote = other.register(np.zeros(4), Access.REMOTE).remote
            error = endpoint.write(np.zeros(4), peer, remote).exception(10)
            assert "no open region with this key, or did not take this side's auth_key" in str(error)
        assert isinstance(error, pyfab.KeyRejectedError)


def test_keys_are_shown_as_regions_show_them(domain):
    with domain.register(np.zeros(4), Access.REMOTE) as region:
        assert f"key={region.key:#x} " in repr(region)
        with pytest.raises(pyfab.KeyInUseError, match=f"^key {region.key:#x} is in use"):
            domain.register(np.zeros(4), Access.REMOTE, key=region.key)


def test_a_receive_from_anybody(to_self):
    waiting = to_self.recv(np.zeros(4))
    with pytest.raises(pyfab.OperationTimeout, match="receive of 32 bytes with any peer is not complete"):
        waiting.result(0)
    waiting.cancel()
    assert "from any peer failed: canceled" in str(waiting.exception(10))


@pytest.mark.parametrize("thing", [5, object()])
def test_what_is_no_memory(domain, to_self, thing):
    kind = type(thing).__name__
    with pytest.raises(pyfab.InvalidArgumentError, match=f"^cannot register an object of type {kind}: pass"):
        domain.register(thing, Access.REMOTE)
    with pytest.raises(pyfab.InvalidArgumentError, match=f"^an object of type {kind} is no memory: pass"):
        to_self.write(thing, 0, (0, 1))


def test_arrays_in_fortran_order(domain, to_self):
    array = np.zeros((100, 200), order="F")
    with domain.register(np.zeros(8), Access.REMOTE) as region:
        with pytest.raises(
            pyfab.InvalidArgumentError, match=r"in Fortran order.*ascontiguousarray\(a\), or a\.T"
        ):
            to_self.write(array, 0, region.remote)
        with pytest.raises(pyfab.InvalidArgumentError, match=r"not C-contiguous"):
            to_self.write(array[::2], 0, region.remote)
    with pytest.raises(pyfab.InvalidArgumentError, match=r"in Fortran order.*register a\.T"):
        domain.register(array, Access.REMOTE)
    with domain.register(array.T, Access.REMOTE) as region:
        assert region.nbytes == array.nbytes


def test_an_error_in_an_error_has_no_second_code(domain):
    with domain.endpoint() as endpoint, pytest.raises(pyfab.InsertError) as raised:
        endpoint.av.insert([endpoint.address, b"no address"])
    assert "first number 1: an address of 10 bytes is not valid" in str(raised.value)
    assert str(raised.value).count("[FI_") == 1
