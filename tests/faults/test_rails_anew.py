"""A process that comes back under the address of a dead one, over several rails: what it is sent happens once, like all else."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import ExitStack

import numpy as np
import psutil
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab.testing import Peer
from rails import RAILS, WHY_NOT
from test_killed import free_port, insert

pytestmark = pytest.mark.skipif(RAILS is None, reason=WHY_NOT)
TIMEOUT = 60
ONE = np.ones(1, np.int64)


def wait_for_loss(target, handle):
    """Until both rails are known to be lost: what is posted from then on has never been sent."""
    end = time.monotonic() + TIMEOUT
    while len(re.findall("joining|down|set aside", report := str(target.endpoint.report(handle)))) < 2:
        assert time.monotonic() < end, report


def count(target, handle, remote, number):
    """Fetches the counter and adds one, so many times: what was found, up to the first error."""
    found = []
    for _ in range(number):
        value = np.full(1, -1, np.int64)
        operation = target.endpoint.fetch_atomic(pyfab.AtomicOp.SUM, ONE, value, handle, remote)
        if error := operation.exception(TIMEOUT):
            return [*found, type(error).__name__]
        found.append(int(value[0]))
    return found


def wait_for_calls(initiator, port):
    """Until the process has called over both rails: the kernel takes the calls of a target that is stopped."""
    end = time.monotonic() + TIMEOUT
    process = psutil.Process(initiator.pid)
    while sum(bool(each.raddr) and each.raddr.port == port for each in process.net_connections("tcp")) < 2:
        assert time.monotonic() < end


@pytest.mark.slow
@litmus
def test_a_process_that_comes_back_under_its_address_counts_once():
    """Both rails come to the new process at once. None of them may go on with what belonged to the former one."""
    settings = {"tcp_port": free_port(), "peer_deadline": 5}
    for _ in range(rounds(6)):
        with ExitStack() as stack:
            initiator = stack.enter_context(Peer(RAILS, where="process", peer_deadline=5))
            former = stack.enter_context(Peer(RAILS, where="process", **settings))
            handle = initiator.run(insert, former.address)
            remote = former.expose(np.zeros(1, np.int64), alloc=False).remote
            assert initiator.run(count, handle, remote, 1) == [0]
            os.kill(initiator.pid, signal.SIGSTOP)  # it notices nothing until the new process is there
            former.kill()
            target = stack.enter_context(Peer(RAILS, where="process", **settings))
            remote = target.expose(np.zeros(1, np.int64), alloc=False).remote
            os.kill(target.pid, signal.SIGSTOP)
            os.kill(initiator.pid, signal.SIGCONT)
            initiator.run(wait_for_loss, handle)
            initiator.start(count, handle, remote, 100)
            wait_for_calls(initiator, settings["tcp_port"])
            os.kill(target.pid, signal.SIGCONT)
            assert initiator.finish() == list(range(100))
