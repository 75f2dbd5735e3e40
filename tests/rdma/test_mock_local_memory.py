"""How a device gets to memory of no region: `scripts/mock-verbs-tests` runs it."""

from __future__ import annotations

import mmap
import time
from contextlib import ExitStack, contextmanager

import mock_device as mock
import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer

pytestmark = pytest.mark.skipif(not mock.RUNS, reason="needs the mock device (scripts/mock-verbs-tests)")
DEVICE = "verbs:mock0"
TIMEOUT = 60
MEDIUM = 48 * 1024  # bytes, which are copied rather than registered
LONG = 256 * 1024  # bytes


@contextmanager
def opened(far, size, **settings):
    """A domain and a way to bytes of `far`, which the devices know."""
    with pyfab.Domain(DEVICE, **settings) as domain, domain.endpoint() as endpoint:
        way = Way(domain, endpoint, far, size)
        way.connect()
        yield way


class Way:
    def __init__(self, domain, endpoint, far, size):
        self.domain, self._endpoint = domain, endpoint
        self._there = endpoint.av.insert(far.address)
        self._exposed = far.expose(np.zeros(size, np.uint8))

    def connect(self):
        """Messages do the first transfers of a region, until the devices are connected."""
        end, before = time.monotonic() + TIMEOUT, mock.asked()["read"]
        while mock.asked()["read"] == before:
            assert time.monotonic() < end
            self.read(8)

    def begin(self, data, at=0):
        return self._endpoint.write(data, self._there, self._exposed.remote[at : at + data.size])

    def write(self, data):
        self.begin(data).result(TIMEOUT)
        assert (self.content()[: data.size] == data).all()

    def begin_read(self, into):
        return self._endpoint.read(into, self._there, self._exposed.remote[: into.size])

    def read(self, size):
        into = np.zeros(size, np.uint8)
        self.begin_read(into).result(TIMEOUT)
        return into

    def content(self):
        return self._exposed.content()

    def registered(self):
        """What the device has of this process, and was ever given."""
        (counts,) = self.domain.stats()["registrations"].values()
        return counts["held"], counts["made"]


@pytest.fixture(scope="module")
def far():
    with Peer(DEVICE) as peer:
        yield peer


def test_memory_stays_with_the_device_until_it_goes(far):
    with opened(far, LONG, mr_cache=True) as way:
        pages = mmap.mmap(-1, LONG)
        data = np.frombuffer(pages, np.uint8)
        for value in range(1, 4):
            data[:] = value
            way.write(data)
        assert way.registered() == (1, 1)
        del data
        pages.close()
        assert way.registered() == (0, 1)


@pytest.mark.parametrize("settings, fork", [({}, 2), ({"mr_cache": "auto"}, 0)], ids=["default", "fork"])
def test_without_a_cache_nothing_stays_and_medium_transfers_are_copied(far, settings, fork):
    """A cache is for those who ask, and "auto" makes none where fork() takes registered memory from children."""
    with mock.faults(f"fork_status={fork}"), opened(far, 4 * LONG, **settings) as way:
        way.write(np.full(LONG, 1, np.uint8))
        assert way.registered() == (0, 1)
        reads = mock.asked()["read"]
        for value in range(2, 20):
            way.write(np.full(MEDIUM, value, np.uint8))
            assert (way.read(MEDIUM) == value).all()
        assert way.registered() == (0, 1)
        assert mock.asked()["read"] - reads >= 10 * MEDIUM, "devices do it"
        # More at once than there are slots.
        rows = [np.full(5000, 1 + row, np.uint8) for row in range(200)]
        for done in [way.begin(row, 5000 * number) for number, row in enumerate(rows)]:
            done.result(TIMEOUT)
        assert (way.content()[: 200 * 5000] == np.concatenate(rows)).all()
        assert way.registered()[0] == 0


def test_memory_of_a_region_is_not_copied(far):
    with opened(far, LONG) as way:
        data = np.full(LONG, 3, np.uint8)
        with way.domain.register(data, pyfab.Access.REMOTE):
            before = way.registered()[1]
            for at in range(3):
                way.write(data[at : at + MEDIUM])
            assert way.registered() == (1, before + 1)


def test_memory_that_was_kept_makes_room_for_other_memory(far):
    with opened(far, LONG, mr_cache=True) as way, mock.faults(f"mr_limit={mock.objects()['mr'] + 2}"):
        arrays = [np.full(LONG, value, np.uint8) for value in range(8)]
        for data in arrays:
            way.write(data)
        held, made = way.registered()
        assert made == len(arrays)
        assert held <= 2


def test_memory_that_a_pool_takes_back_and_gives_again_is_new_to_the_device(far):
    """The same addresses have other pages then."""
    size = 96 << 20  # more than the pool keeps
    with opened(far, LONG, mr_cache=True) as way, way.domain.numpy_memory():
        places = set()
        for value in range(1, 4):
            data = np.zeros(size, np.uint8)
            places.add(data.ctypes.data)
            data[:LONG] = value
            way.write(data[:LONG])
            assert way.registered() == (1, value)
            del data
        assert len(places) == 1


def test_small_puts_to_many_peers_need_no_slots():
    """An endpoint has 256 of them. A device takes the bytes of small puts with the requests."""
    count, size = 120, 200
    with ExitStack() as stack:
        domain = stack.enter_context(pyfab.Domain(DEVICE))
        endpoint = stack.enter_context(domain.endpoint())
        ways = [Way(domain, endpoint, stack.enter_context(Peer(DEVICE)), count * size) for _ in range(4)]
        for way in ways:
            way.connect()
        before = mock.asked()["written"]
        with mock.faults("late_us=2000000"):
            data = np.random.default_rng(1).integers(0, 256, count * size, np.uint8)
            puts = [way.begin(data[at : at + size], at) for way in ways for at in range(0, data.size, size)]
            assert not any(put.done() for put in puts), "none has to wait for another one's slot"
            for put in puts:
                put.result(TIMEOUT)
        assert mock.asked()["written"] - before == len(ways) * data.size
        assert all((way.content() == data).all() for way in ways)


@pytest.mark.parametrize("size", [100, 2000, MEDIUM])
def test_memory_that_is_gone_is_an_error(far, tmp_path, size):
    """A file was cut short under its mapping."""
    with opened(far, LONG) as way:
        way.write(np.full(size, 1, np.uint8))
        path = tmp_path / "short"
        path.write_bytes(bytes(LONG))
        data = np.memmap(path, np.uint8, "r+")
        path.write_bytes(b"")
        with pytest.raises(pyfab.BoundsError):
            way.begin(data[:size]).result(TIMEOUT)
        with pytest.raises(pyfab.BoundsError):
            way.begin_read(data[:size]).result(TIMEOUT)
        way.write(np.full(size, 2, np.uint8))
