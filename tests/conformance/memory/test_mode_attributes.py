"""One call that registers: all its arguments in one object, failures, and other threads meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pyfab
import pytest
from modes import ONE, error_of
from pyfab import Access, AtomicOp, MRFlag, MRMode, RMAEvent
from support import TIMEOUT, Reserved


@pytest.mark.req("MR-3")
def test_all_arguments_in_one_object():
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        endpoint.av.insert(endpoint.address)
        for access in (Access.REMOTE_READ, Access.REMOTE_WRITE, Access.REMOTE):
            outcomes = []
            for register in (
                lambda memory, rights=access: domain.register(memory, rights, key=9),
                lambda memory, rights=access: domain.register([memory], rights, key=9),
                lambda memory, rights=access: domain.register(pyfab.MRAttr(memory, rights, key=9)),
                lambda memory, rights=access: domain.register(
                    pyfab.MRAttr([memory], rights, key=9, offset=0, flags=MRFlag(0), auth_key=b"", context=1)
                ),
            ):
                with register(np.arange(8)) as region:
                    starts = (
                        endpoint.write(ONE, 0, (0, 9)),
                        endpoint.read(ONE.copy(), 0, (0, 9)),
                        endpoint.atomic(AtomicOp.SUM, ONE, 0, (0, 9)),
                        endpoint.write(ONE, 0, (60, 9)),
                    )
                    outcomes.append([region.key, region.nbytes, *(type(error_of(start)) for start in starts)])
            assert all(outcome == outcomes[0] for outcome in outcomes)
        for wrong in (
            pyfab.MRAttr(np.zeros(8), Access.REMOTE, offset=4),
            pyfab.MRAttr([], Access.REMOTE),
            pyfab.MRAttr(np.zeros(8), 64),
        ):
            with pytest.raises(pyfab.InvalidArgumentError):
                domain.register(wrong)


@pytest.mark.slow
@pytest.mark.req("MR-10")
@pytest.mark.parametrize("mode", [MRMode.SCALABLE, MRMode.ALLOCATED | MRMode.MMU_NOTIFY])
def test_failing_calls_leave_nothing(mode):
    reserved = Reserved(1)
    with pyfab.Domain("shm", mr_mode=mode) as domain, domain.register(np.zeros(8), Access.REMOTE, key=1):
        before = domain.stats()["regions"]
        for turn in range(10_000):
            key, memory = 2, [np.zeros(8), np.zeros(0)]
            if turn % 3 == 0:
                key, memory = 1, np.zeros(8)
            elif turn % 3 == 1 and mode:
                memory = reserved.range
            with pytest.raises(pyfab.FabricError):
                domain.register(memory, Access.REMOTE, key=key)
        assert domain.stats()["regions"] == before
        domain.register(np.zeros(8), Access.REMOTE, key=2).close()
    reserved.unmap()


@pytest.fixture
def only_given_away():
    """The interpreter takes its lock from nobody: another thread runs only while a call has let go of it."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(10 * TIMEOUT)
    yield
    sys.setswitchinterval(former)


@pytest.mark.req("MR-84")
@pytest.mark.usefixtures("only_given_away")
def test_other_threads_run_while_memory_is_registered():
    """The look at the pages goes through all mappings below them, of which there are many here."""
    memory, below = Reserved(1), Reserved(20_000)
    memory.back()
    assert below.address < memory.address
    for page in range(0, 20_000, 2):
        below.back(page, 1)
    turns, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)  # gives the lock back

    def ran_during(call):
        before = turns[0]
        result = call()
        return turns[0] != before, result

    def until_one_ran(attempt):
        deadline = time.monotonic() + TIMEOUT
        while not attempt():
            assert time.monotonic() < deadline

    def register():
        ran, region = ran_during(lambda: domain.register(memory.range, Access.REMOTE))
        region.close()
        return ran

    def refresh():
        """What else takes the region waits for it."""
        while not stop.is_set():
            region.refresh()

    def bind():
        with suppress(pyfab.FabricError):  # there is room for a few
            region.bind(counter, RMAEvent.REMOTE_WRITE)

    thread = threading.Thread(target=count)
    with (
        pyfab.Domain("shm", mr_mode=MRMode.ALLOCATED | MRMode.MMU_NOTIFY) as domain,
        domain.counter() as counter,
    ):
        thread.start()
        try:
            until_one_ran(register)
            with domain.register(memory.range, Access.REMOTE) as region:
                until_one_ran(lambda: ran_during(region.refresh)[0])
                refreshing = threading.Thread(target=refresh)
                refreshing.start()
                for call in (lambda: region.remote, bind, region.enable):
                    until_one_ran(lambda call=call: ran_during(call)[0])
                stop.set()
                refreshing.join()
        finally:
            stop.set()
            thread.join()
    memory.unmap()
    below.unmap()
