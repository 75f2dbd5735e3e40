"""Memory lives as long as it is needed, closing has an order, and nothing is left behind."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pyfab
import pytest
from pyfab import Access, RMAEvent
from pyfab.testing import Peer
from support import TIMEOUT, Pair, without_tsan_fork

SPECS = ["shm", "tcp", "shm+tcp"]


# --- what keeps memory alive


def register_and_forget(target, alloc, count):
    """The region is all that is left of the array."""
    memory = target.domain.alloc(count, np.int64) if alloc else np.zeros(count, np.int64)
    memory[:] = 1
    region = target.kept["forgotten"] = target.domain.register(memory, Access.REMOTE)
    del memory
    gc.collect()
    return region.remote


def close_forgotten(target):
    total = int(np.asarray(target.kept["forgotten"]).view(np.int64).sum())
    target.kept.pop("forgotten").close()
    return total


@pytest.mark.req("MR-81")
@pytest.mark.parametrize("alloc", [True, False], ids=["alloc", "ordinary"])
def test_a_region_keeps_its_memory(pair, alloc):
    remote = pair.peer.run(register_and_forget, alloc, 1 << 20)
    landing = np.zeros(1 << 20, np.int64)
    pair.get(landing, remote)
    assert (landing == 1).all()
    pair.put(np.full(1 << 20, 2), remote)
    assert pair.peer.run(close_forgotten) == 2 << 20


@pytest.mark.slow
@pytest.mark.req("MR-81")
def test_memory_goes_with_the_region():
    class Array(np.ndarray):
        pass

    with pyfab.Domain("shm") as domain:
        array = np.zeros(8).view(Array)
        gone = weakref.ref(array)
        region = domain.register(array, Access.REMOTE)
        assert region.buffer is array
        del array
        gc.collect()
        assert gone() is not None
        region.close()
        gc.collect()
        assert gone() is None


@pytest.mark.req("MR-81")
def test_a_registered_bytearray_cannot_change_its_size():
    with pyfab.Domain("shm") as domain:
        memory = bytearray(64)
        with domain.register(memory, Access.REMOTE), pytest.raises(BufferError):
            memory.extend(b"more")
        memory.extend(b"more")
        assert len(memory) == 68


@pytest.mark.req("MR-81")
def test_a_registered_mmap_cannot_be_closed():
    with (
        pyfab.Domain("shm") as domain,
        mmap.mmap(-1, 4096) as memory,
        domain.register(memory, Access.REMOTE),
        pytest.raises(BufferError),
    ):
        memory.close()


def test_an_operation_keeps_its_buffers(pair):
    exposed = pair.expose(np.ones(1 << 20))

    class Array(np.ndarray):
        pass

    landing = np.zeros(1 << 20).view(Array)
    gone = weakref.ref(landing)
    operation = pair.endpoint.read(landing, pair.handle, exposed.remote)
    del landing, operation
    pair.endpoint.flush(timeout=TIMEOUT)
    pair.endpoint.cq.read(max=10)
    gc.collect()
    assert gone() is None


def test_allocated_memory_outlives_its_domain():
    with pyfab.Domain("shm") as domain:
        memory = domain.alloc((100, 3), np.int32)
        assert not memory.any()
    memory[:] = 5
    assert memory.sum() == 1500


# --- the order of closing


@pytest.mark.parametrize("spec", SPECS)
def test_a_domain_in_use_is_busy(spec):
    domain = pyfab.Domain(spec)
    endpoint = domain.endpoint()
    with pytest.raises(pyfab.BusyError):
        domain.close()
    endpoint.close()
    region = domain.register(np.zeros(8), Access.REMOTE)
    with pytest.raises(pyfab.BusyError):
        domain.close()
    region.close()
    domain.close()
    domain.close()


@pytest.mark.parametrize("spec", SPECS)
def test_leaving_a_with_block_closes_what_is_open(spec):
    with pyfab.Domain(spec) as domain:
        endpoint = domain.endpoint()
        region = domain.register(np.zeros(8), Access.REMOTE)
        counter = domain.counter()
    with pytest.raises(pyfab.ClosedError):
        endpoint.flush()
    with pytest.raises(pyfab.ClosedError):
        region.remote  # noqa: B018
    with pytest.raises(pyfab.ClosedError):
        counter.add(1)


@pytest.mark.req("MR-67")
def test_a_region_with_a_counter_is_busy():
    with pyfab.Domain("shm") as domain:
        region = domain.register(np.zeros(8), Access.REMOTE)
        counter = domain.counter()
        region.bind(counter, RMAEvent.REMOTE_WRITE)
        with pytest.raises(pyfab.BusyError):
            region.close()
        counter.close()
        region.close()
        with domain.counter() as counter, domain.register(np.zeros(8), Access.REMOTE) as region:
            region.bind(counter, RMAEvent.REMOTE_WRITE)  # leaving the block detaches it


def test_a_closed_endpoint_ends_its_operations():
    """Each ends as done or cancelled, none hangs, and nobody who waits is forgotten."""
    with (
        Peer("tcp", where="thread", progress="manual") as peer,
        pyfab.Domain("tcp") as domain,
        domain.endpoint() as endpoint,
    ):
        exposed = peer.expose(np.zeros(8))
        handle = endpoint.av.insert(peer.address)
        operations = [endpoint.write(np.ones(8), handle, exposed.remote) for _ in range(100)]
        errors: list[BaseException | None] = []
        waiting = threading.Thread(target=lambda: errors.append(operations[0].exception(TIMEOUT)))
        waiting.start()
        endpoint.close()
        waiting.join(TIMEOUT)
        assert not waiting.is_alive()
        assert all(isinstance(operation.exception(0), pyfab.CanceledError) for operation in operations)
        assert isinstance(errors[0], pyfab.CanceledError)


def test_an_endpoint_in_the_place_of_a_closed_one_is_woken(combination):
    """Nobody waits in the library, and deadlines are so far away that no timer helps a wake-up that went astray."""
    with Pair(combination, peer_deadline=10_000) as pair:
        exposed = pair.expose(np.zeros(8))
        finished = threading.Semaphore(0)
        for turn in range(10):
            with pair.domain.endpoint() as endpoint:
                handle = endpoint.av.insert(pair.peer.address)
                for _ in range(20):
                    operation = endpoint.write(np.full(8, float(turn)), handle, exposed.remote)
                    operation.add_done_callback(lambda _: finished.release())
                    assert finished.acquire(timeout=20), turn
        assert (exposed.content() == 9).all()


# --- nothing is left


OF_ALLOCATORS = (
    50  # mappings that they may take meanwhile; what leaks with each of 2000 calls shows by the hundred
)


class Resources:
    """Descriptors, threads and mappings of this process."""

    def __init__(self) -> None:
        gc.collect()
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.threads = len(os.listdir("/proc/self/task"))
        self.mappings = len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("where", ["thread", "process"])
def test_two_hundred_lives_leave_nothing(spec, where):
    with Peer(spec, where=where) as peer:
        exposed = {alloc: peer.expose(np.arange(512), alloc=alloc) for alloc in (True, False)}

        def life() -> None:
            with pyfab.Domain(spec) as domain, domain.endpoint() as endpoint:
                handle = endpoint.av.insert(peer.address)
                memory = domain.alloc(512, np.int64)
                with domain.register(memory, Access.REMOTE), domain.counter():
                    for place in exposed.values():
                        endpoint.read(memory, handle, place.remote).result(TIMEOUT)
                        endpoint.write(memory, handle, place.remote).result(TIMEOUT)
                assert memory[511] == 511

        for _ in range(10):
            life()
        before, there = Resources(), peer.run(resources)
        for _ in range(200):
            life()
        after = Resources()
        assert after.descriptors <= before.descriptors
        assert after.threads <= before.threads
        assert after.mappings <= before.mappings + OF_ALLOCATORS
        if where == "process":
            descriptors, threads, mappings = peer.run(resources)
            assert descriptors <= there[0] + 2  # connections closed by us that the peer has not noticed yet
            assert threads <= there[1]
            assert mappings <= there[2] + OF_ALLOCATORS
        for place in exposed.values():
            place.close()


def resources(_target):
    now = Resources()
    return now.descriptors, now.threads, now.mappings


@pytest.mark.slow
def test_registering_leaves_nothing(pair):
    memory = np.zeros(1 << 16)
    for turn in range(2200):
        if turn == 200:
            before = Resources()
        with pair.domain.register(memory, Access.ALL) as region:
            assert region.remote
    after = Resources()
    assert after.descriptors <= before.descriptors
    assert after.mappings <= before.mappings + OF_ALLOCATORS


@pytest.mark.req("MR-10")
def test_failed_registrations_leave_nothing(pair):
    pair.register(np.zeros(8), Access.REMOTE, key=99)
    for turn in range(2200):
        if turn == 200:
            before = Resources()
        with pytest.raises(pyfab.KeyInUseError):
            pair.domain.register(np.zeros(8), Access.REMOTE, key=99)
    after = Resources()
    assert after.descriptors <= before.descriptors
    assert after.mappings <= before.mappings + OF_ALLOCATORS


# --- the end of the process


def run_script(spec: str, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", f"spec = {spec!r}\n{text}"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


OPEN_EVERYTHING = """
import numpy as np, pyfab
domain = pyfab.Domain(spec)
endpoint = domain.endpoint()
me = endpoint.av.insert(endpoint.address)
memory = domain.alloc(1 << 20, np.uint8)
region = domain.register(memory, pyfab.Access.REMOTE)
counter = domain.counter()
region.bind(counter, pyfab.RMAEvent.REMOTE_WRITE)
operations = [endpoint.write(np.ones(1 << 20, np.uint8), me, region.remote) for _ in range(20)]
print("open", flush=True)
"""


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    "ending, code",
    [
        ("", 0),
        ("import sys; sys.exit(3)", 3),
        ("import os; os._exit(4)", 4),
        ("import threading; threading.Thread(target=endpoint.flush).start()", 0),
        ("operations[-1].add_done_callback(lambda operation: operation.exception(0))", 0),
    ],
    ids=["end of script", "sys.exit", "os._exit", "a thread that waits", "a callback"],
)
def test_the_interpreter_ends_with_everything_open(spec, ending, code):
    run = run_script(spec, OPEN_EVERYTHING + ending)
    assert (run.returncode, run.stdout, run.stderr) == (code, "open\n", "")


FORK = """
import os, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of forks with threads
endpoint.flush(timeout=60)
address, remote = endpoint.address, region.remote[:8]
child = os.fork()
if child == 0:
    calls = {
        "write": lambda: endpoint.write(memory, me, remote),
        "read": lambda: endpoint.read(memory, me, remote),
        "flush": lambda: endpoint.flush(timeout=1),
        "endpoint": lambda: domain.endpoint(),
        "register": lambda: domain.register(memory, pyfab.Access.REMOTE),
    }
    for name, call in calls.items():
        try:
            call()
        except pyfab.ClosedError:
            continue
        except BaseException as error:
            print(name, repr(error), flush=True)
        else:
            print(name, "no error", flush=True)
        os._exit(1)
    with pyfab.Domain(spec) as own, own.endpoint() as fresh:  # a child may open its own
        fresh.write(np.full(8, 9, np.uint8), fresh.av.insert(address), remote).result(60)
    del operations, endpoint, region, domain, counter
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (memory[:8] == 9).all()
endpoint.write(np.full(1 << 20, 2, np.uint8), me, region.remote).result(60)
assert (memory == 2).all()
assert counter.value == 22
"""


@without_tsan_fork
@pytest.mark.parametrize("spec", SPECS)
def test_a_forked_child_gets_an_error_and_the_parent_goes_on(spec):
    run = run_script(spec, OPEN_EVERYTHING + FORK)
    assert (run.returncode, run.stdout, run.stderr) == (0, "open\n", "")
