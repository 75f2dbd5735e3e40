"""Many callers of one endpoint, and many peers of one, over a device of the kernel.

FAB_CALLERS=1000 GUEST_MEMORY=10000 GUEST_TIMEOUT=1500 scripts/guest-tests rxe0 tests/rdma/test_storms.py -k callers
FAB_PEERS=500 GUEST_MEMORY=10000 GUEST_TIMEOUT=1500 scripts/guest-tests siw0 tests/rdma/test_storms.py -k peers
"""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
from pyfab.testing import Peer
from storms import call_at_once, exposed, have_descriptors, opened, put_to_all
from test_verbs import DEVICE, DEVICES

pytestmark = pytest.mark.skipif(
    not DEVICES, reason="asked for by PYFAB_TEST_LINKS=verbs:DEVICE (tests/rdma/README.md)"
)
CALLERS = int(os.environ.get("FAB_CALLERS", 80))
PEERS = int(os.environ.get("FAB_PEERS", 40))
PROCESSES = 4
PATIENCE = 900.0  # seconds: an emulated machine is slow


@pytest.mark.timeout(PATIENCE + 300)
def test_a_storm_of_callers_gets_in():
    """From four processes at once, all within the default deadlines."""
    with contextlib.ExitStack() as stack:
        called, *callers = [stack.enter_context(Peer(DEVICE)) for _ in range(1 + PROCESSES)]
        for each in (called, *callers):
            each.run(have_descriptors)
        remote = called.expose(np.zeros(8, np.uint8)).remote
        for each in callers:
            each.start(call_at_once, DEVICE, called.address, remote, CALLERS // PROCESSES, PATIENCE)
        lost = [error for each in callers for error in each.finish(PATIENCE)]
        assert not lost, f"{len(lost)} of {CALLERS}"


@pytest.mark.timeout(PATIENCE + 300)
def test_one_endpoint_has_many_peers():
    """The devices move bytes to each of them, wherever queues cannot grow."""
    have_descriptors()
    with (
        Peer(DEVICE) as initiator,
        opened(DEVICE, PEERS) as called,
        exposed(called) as (rows, where),
    ):
        initiator.run(have_descriptors)
        initiator.start(put_to_all, where, PATIENCE)
        assert initiator.finish(PATIENCE) == 0
        assert all((row == 1 + number % 255).all() for number, row in enumerate(rows))
