"""What programs choose of a device, and what is asked of it then: `scripts/mock-verbs-tests` runs it over the mock device."""

from __future__ import annotations

import mock_device as mock
import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer
from pyfab.tools import doctor

pytestmark = pytest.mark.skipif(not mock.RUNS, reason="needs the mock device (scripts/mock-verbs-tests)")
DEVICE = "verbs:mock0"
TIMEOUT = 60


@pytest.fixture(scope="module")
def peer():
    with Peer(DEVICE) as there:
        yield there


@pytest.mark.parametrize(
    "state, hugepages, says, mend",
    [
        (2, "", "the kernel leaves registered memory", ""),
        (0, "", "may no longer see", "export RDMAV_FORK_SAFE=1"),
        (1, "", "huge pages of hugetlbfs cannot be registered", "export RDMAV_HUGEPAGES_SAFE=1"),
        (1, "1", "also in huge pages", ""),
    ],
)
def test_doctor_tells_what_fork_does_to_registered_memory(monkeypatch, state, hugepages, says, mend):
    monkeypatch.setenv("RDMAV_HUGEPAGES_SAFE", hugepages)
    with mock.faults(f"fork_status={state}"):
        check = doctor._tried("rdma and fork()", doctor._CHECKS["rdma and fork()"])
    assert says in check.found
    assert (check.state, check.mend) == ("limited" if mend else "ok", mend)


def asked_for(peer, **settings):
    """What the device was asked for when a connection was made."""
    with pyfab.Domain(DEVICE, **settings) as domain, domain.endpoint() as here:
        handle, exposed = here.av.insert(peer.address), peer.expose(np.zeros(8))
        here.write(np.ones(8), handle, exposed.remote).result(TIMEOUT)
        return [mock.asked()[name] for name in ("traffic_class", "retries", "ack_timeout")]


def test_packets_are_sent_as_the_program_chooses(peer):
    assert asked_for(peer)[1:] == [7, 17]
    assert asked_for(peer, verbs_traffic_class=106, verbs_retries=3, verbs_ack_timeout=14) == [106, 3, 14]
    # A device gives up before the deadline: 8 * 4.096 us * 2^14 is 0.54 s.
    assert asked_for(peer, peer_deadline=1)[1:] == [7, 14]


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"verbs_traffic_class": 256}, 'verbs_traffic_class is "256"; it must be a number from 0 to 255'),
        ({"verbs_traffic_class": "high"}, "a number from 0 to 255"),
        ({"verbs_retries": -1}, "a number from 0 to 7"),
        ({"verbs_retries": 2**40}, "a number from 0 to 7"),
        ({"verbs_ack_timeout": 0}, "a number from 1 to 31"),
        (
            {"verbs_ack_timeout": 19},
            r"tries for 17.* s, and a peer is lost after peer_deadline, 10.* at most 18",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_what_can(settings, says):
    with pytest.raises(pyfab.InvalidArgumentError, match=says):
        pyfab.Domain(DEVICE, **settings)
