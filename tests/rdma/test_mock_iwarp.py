"""Gets over iWARP, where the peer's device writes the answers: `scripts/mock-verbs-tests` runs it, over a device like those."""

from __future__ import annotations

import time

import mock_device as mock
import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer

pytestmark = pytest.mark.skipif(not mock.RUNS, reason="needs the mock device (scripts/mock-verbs-tests)")
DEVICE = "verbs:mock0"
TIMEOUT = 60
ROW = 1024  # bytes
ROWS = 1024


@pytest.fixture(autouse=True)
def iwarp(monkeypatch):
    monkeypatch.setenv("PYFAB_MOCK_VERBS", "iwarp=1")


@pytest.fixture
def initiator():
    with Peer(DEVICE) as here:
        yield here


@pytest.fixture
def target():
    with Peer(DEVICE) as there:
        yield there


def shown(target, value):
    """The address of the target, and a megabyte of it."""
    return target.address, target.expose(np.full((ROWS, ROW), value, np.uint8)).remote


def get(here, shown, rows, columns=ROW, seconds=20):
    """Gets into a part of a region until the device does one, or for so long. Returns the answer and the counts of the device."""
    address, remote = shown
    handle = here.endpoint.av.insert(address)
    with here.endpoint._domain.register(np.zeros((ROWS, columns), np.uint8), pyfab.Access.LOCAL) as region:
        into = np.asarray(region)[1 : 1 + rows]
        end, before = time.monotonic() + seconds, mock.asked()["read"]
        while mock.asked()["read"] == before and time.monotonic() < end:
            into[:] = 0
            here.endpoint.read(into, handle, remote[:rows, :columns]).result(TIMEOUT)
        return into.copy(), mock.objects() | mock.asked()


SHAPES = {"small": (1, 100), "slot": (4, ROW), "medium": (48, ROW), "long": (512, ROW)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_devices_do_gets(initiator, target, shape):
    got, device = initiator.run(get, shown(target, 7), *shape)
    assert (got == 7).all()
    assert device["read"] == got.size


def test_a_peer_may_write_its_answers_only(initiator, target):
    """No more of a region is open to it than a get fills, and not longer; what other peers answer is not open to it at all."""
    with Peer(DEVICE) as other:
        before = initiator.run(objects)
        after_small = initiator.run(get, shown(target, 7), 1)[1]
        assert after_small["longest_writable"] <= 256 * 1024, "slots"
        after_medium = initiator.run(get, shown(target, 7), 48)[1]
        assert after_medium["longest_writable"] <= 512 * 1024, "larger slots"
        after_long = initiator.run(get, shown(target, 7), 512)[1]
        assert after_long["longest_writable"] == 512 * ROW
        assert after_long["mr"] == after_medium["mr"]
        after_other = initiator.run(get, shown(other, 7), 512)[1]
        assert [each["pd"] - before["pd"] for each in (after_long, after_other)] == [1, 2]


def objects(_here):
    return mock.objects()


def test_without_a_protection_domain_messages_do_gets(initiator, target):
    initiator.run(set_faults, "refuse=alloc_pd:1/1")
    got, device = initiator.run(get, shown(target, 7), 512, seconds=0.5)
    assert (got == 7).all()
    assert device["read"] == 0


def set_faults(_here, faults):
    mock.set_faults(faults)
