"""Registration behind the caller's back, told by events; persistent memory; and what else counts as a buffer."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import platform
import struct
import sys
import threading
from typing import ClassVar

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab import Access, Delivery, EventType, MRFlag, MRMode
from pyfab.testing import Peer
from support import TIMEOUT, Reserved

SPECS = ["shm", "tcp", "shm+tcp"]


@pytest.fixture(params=SPECS)
def domain(request):
    with pyfab.Domain(request.param, mr_mode=MRMode.ALLOCATED) as domain:
        yield domain


def told(events):
    event = events.read(timeout=TIMEOUT)
    assert event is not None
    return event


# --- asynchronous registration


@pytest.mark.req("MR-44", "MR-49")
def test_registration_is_synchronous_without_a_queue(domain):
    class Context:
        pass

    context = Context()
    references = sys.getrefcount(context)
    with (
        domain.event_queue() as events,
        domain.register(np.zeros(8), Access.REMOTE, context=context) as region,
    ):
        assert region.enabled
        assert region.key != pyfab.KEY_NOTAVAIL
        assert events.read() is None
        assert sys.getrefcount(context) == references


@pytest.mark.req("MR-44", "MR-45")
def test_each_registration_tells_once(domain):
    with domain.event_queue() as events, domain.endpoint() as endpoint:
        endpoint.av.insert(endpoint.address)
        domain.bind(events)
        contexts = [object() for _ in range(50)]
        regions = [
            domain.register(np.zeros(8), Access.REMOTE, key=number, context=context)
            for number, context in enumerate(contexts)
        ]
        seen = [told(events) for _ in regions]
        assert [event.fid for event in seen] == regions
        assert [event.context for event in seen] == contexts
        assert all(event.type == EventType.REGISTERED and event.errno == 0 for event in seen)
        assert events.read() is None
        for number, region in enumerate(regions):
            assert region.key == number
            endpoint.write(np.ones(8), 0, region.remote).result(TIMEOUT)
            region.close()
        domain.bind(None)
        domain.register(np.zeros(8), Access.REMOTE).close()
        assert events.read() is None


@pytest.mark.req("MR-45")
def test_what_is_refused_at_once_tells_nothing(domain):
    with domain.event_queue() as events:
        with domain.register(np.zeros(8), Access.REMOTE, key=1):
            domain.bind(events)
            for _ in range(100):
                with pytest.raises(pyfab.KeyInUseError):
                    domain.register(np.zeros(8), Access.REMOTE, key=1)
        assert events.read() is None


@pytest.fixture
def manual():
    """Where nothing is registered before somebody makes progress."""
    with (
        pyfab.Domain("shm", mr_mode=MRMode.ALLOCATED, progress="manual") as domain,
        domain.event_queue() as events,
    ):
        domain.bind(events)
        yield domain, events


@pytest.mark.req("MR-18", "MR-19", "MR-48")
def test_a_region_that_is_still_registering(manual):
    domain, events = manual
    memory = np.zeros(8)
    region = domain.register(memory, Access.REMOTE, key=5)
    assert region.key == pyfab.KEY_NOTAVAIL
    for use in (lambda: region.desc, lambda: region.remote, region.raw_attr, region.enable):
        with pytest.raises(pyfab.FabricError) as failure:
            use()
        assert failure.value.name == "FI_EOPBADSTATE"
    with pytest.raises(pyfab.BusyError):
        region.close()
    assert not region.enabled
    domain.progress()
    assert told(events).fid is region
    assert region.key == 5
    assert region.desc > 0
    assert region.enabled
    region.close()
    assert events.read() is None


@pytest.mark.req("MR-48")
def test_leaving_a_block_waits_for_the_registration(manual):
    domain, events = manual
    with domain.register(np.zeros(8), Access.REMOTE, key=5):
        pass
    assert told(events).type == EventType.REGISTERED
    with domain.register(np.zeros(8), Access.REMOTE, key=5):
        pass


@pytest.mark.req("MR-47")
def test_a_failure_that_is_found_later_is_an_error_entry(domain):
    memory = Reserved(2)
    memory.back(0, 1)
    context = object()
    with domain.event_queue() as events:
        domain.bind(events)
        region = domain.register(memory.range, Access.REMOTE, key=3, context=context)
        for _ in range(2):  # until the entry is read, nothing else comes
            with pytest.raises(pyfab.FabricError) as failure:
                events.read(timeout=TIMEOUT)
            assert failure.value.name == "FI_EAVAIL"
        error = events.read_error()
        assert error.fid is region
        assert error.context is context
        assert error.name == "FI_EFAULT"
        assert events.read_error() is None
        assert events.read() is None
        assert not region.enabled
        assert region.key == pyfab.KEY_NOTAVAIL
        for use in (lambda: region.remote, lambda: region.desc, region.enable):
            with pytest.raises(pyfab.FabricError) as failure:
                use()
            assert failure.value.name == "FI_EOPBADSTATE"
        region.close()
        domain.register(np.zeros(8), Access.REMOTE, key=3)
        assert told(events).errno == 0
    memory.unmap()


@litmus
@pytest.mark.req("MR-46", "MR-48")
def test_events_name_regions_that_are_known(domain):
    """Many threads register, one drains: each event is of a region that somebody has."""
    threads = 8
    per_thread = rounds(12_000) // threads
    known: set[int] = set()
    failures: list[BaseException] = []

    def register():
        memory = np.zeros(8)
        try:
            for _ in range(per_thread):
                region = domain.register(memory, Access.REMOTE)
                known.add(id(region))
                kept.append(region)
        except BaseException as error:
            failures.append(error)

    kept: list[pyfab.MemoryRegion] = []
    with domain.event_queue() as events:
        domain.bind(events)
        workers = [threading.Thread(target=register) for _ in range(threads)]
        for worker in workers:
            worker.start()
        seen = [told(events).fid for _ in range(per_thread * threads)]
        for worker in workers:
            worker.join()
        assert not failures
        assert {id(region) for region in seen} == known
        assert len(known) == per_thread * threads
        assert events.read() is None
        for region in kept:
            region.close()


def test_a_queue_that_closes_ends_asynchronous_registration(domain):
    events = domain.event_queue()
    domain.bind(events)
    events.close()
    with domain.register(np.zeros(8), Access.REMOTE) as region:
        assert region.enabled
    with (
        pyfab.Domain("shm") as other,
        other.event_queue() as foreign,
        pytest.raises(pyfab.InvalidArgumentError),
    ):
        domain.bind(foreign)


# --- persistent memory


def map_file(target, path, flags):
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    target.kept["file"] = memory, target.domain.register(memory, Access.REMOTE, flags=flags)
    return target.kept["file"][1].remote


@pytest.mark.slow
@pytest.mark.req("MR-69")
@pytest.mark.parametrize("spec", SPECS)
def test_what_was_committed_is_in_the_file_after_the_target_was_killed(spec, tmp_path):
    path = tmp_path / "persistent"
    path.write_bytes(bytes(1 << 20))
    data = np.random.default_rng(1).integers(0, 256, 300_000, dtype=np.uint8)
    with pyfab.Domain(spec) as domain, domain.endpoint() as endpoint, Peer(spec) as peer:
        handle = endpoint.av.insert(peer.address)
        remote = peer.run(map_file, str(path), MRFlag.PMEM)
        commit = {"flags": Delivery.COMMIT}
        endpoint.write(data, handle, remote[1000:301_000], **commit).result(TIMEOUT)
        endpoint.write(data[:8], handle, remote[8:16], **commit).result(TIMEOUT)
        endpoint.atomic(pyfab.AtomicOp.SUM, np.array([77]), handle, (0, remote.key), **commit).result(TIMEOUT)
        peer.kill()
    with open(path, "rb") as file:
        content = np.frombuffer(file.read(), np.uint8)
    assert np.array_equal(content[1000:301_000], data)
    assert np.array_equal(content[8:16], data[:8])
    assert content[:8].view(np.int64) == 77


class Refused(ctypes.Structure):
    """A program for the kernel's filter of system calls (seccomp(2)): which msync() fails with EIO."""

    _fields_: ClassVar = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    def __init__(self, call, start, length):
        number, first, second, flags = 0, 16, 24, 32  # where the data that it looks at has them
        load, equal, at_least, has_bit, end = 0x20, 0x15, 0x35, 0x45, 0x06
        allow, fail = 0x7FFF0000, 0x00050000 | errno.EIO
        steps = [
            (load, number, 0, 0),
            (equal, call, 0, 9),
            (load, first, 0, 0),
            (equal, start & 0xFFFFFFFF, 0, 7),
            (load, first + 4, 0, 0),
            (equal, start >> 32, 0, 5),
            (load, second, 0, 0),
            (at_least, length, 0, 3),
            (load, flags, 0, 0),
            (has_bit, 4, 0, 1),  # MS_SYNC
            (end, fail, 0, 0),
            (end, allow, 0, 0),
        ]
        code = b"".join(struct.pack("=HBBI", code, yes, no, value) for code, value, yes, no in steps)
        super().__init__(len(steps), code)


def refuse_to_sync(target, offset, length):
    """From now on the kernel does not store the pages of these bytes of the mapped file; False: it has no such filter."""
    address = target.kept["file"][1].address + offset
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    filter_calls, msync = {"x86_64": (317, 26), "aarch64": (277, 227)}[platform.machine()]
    libc = ctypes.CDLL(None)
    no_new_privileges, set_filter, for_all_threads = 38, 1, 1
    return (
        libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
        and libc.syscall(
            filter_calls,
            set_filter,
            for_all_threads,
            ctypes.byref(Refused(msync, start, address + length - start)),
        )
        == 0
    )


@pytest.mark.slow
@pytest.mark.req("MR-69")
@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="numbers of system calls are not known"
)
@pytest.mark.parametrize("spec", SPECS)
def test_commit_has_the_kernel_store_the_pages(spec, tmp_path):
    """Killing the target takes no page from the file; what the kernel was asked for tells, because here it refuses."""
    path = tmp_path / "persistent"
    path.write_bytes(bytes(1 << 20))
    data = np.ones(20_000, np.uint8)
    with pyfab.Domain(spec) as domain, domain.endpoint() as endpoint, Peer(spec) as peer:
        handle = endpoint.av.insert(peer.address)
        remote = peer.run(map_file, str(path), MRFlag.PMEM)
        place, word = remote[100_008:120_008], (8, remote.key)
        one = np.ones(1, np.int64)
        commit = {"flags": Delivery.COMMIT}
        endpoint.write(data, handle, place, **commit).result(TIMEOUT)
        endpoint.atomic(pyfab.AtomicOp.SUM, one, handle, word, **commit).result(TIMEOUT)
        if not peer.run(refuse_to_sync, 100_008, 20_000):
            pytest.skip("system calls cannot be filtered here")
        error = endpoint.write(data, handle, place, **commit).exception(TIMEOUT)
        assert (error.errno, error.name) == (errno.EIO, "FI_EIO")
        endpoint.write(data, handle, place).result(TIMEOUT)
        endpoint.atomic(pyfab.AtomicOp.SUM, one, handle, word, **commit).result(TIMEOUT)
        assert peer.run(refuse_to_sync, 8, 8)
        error = endpoint.atomic(pyfab.AtomicOp.SUM, one, handle, word, **commit).exception(TIMEOUT)
        assert error.errno == errno.EIO and "the storage" in str(error)
        endpoint.atomic(pyfab.AtomicOp.SUM, one, handle, word).result(TIMEOUT)
        peer.kill()


@pytest.mark.req("MR-69")
@pytest.mark.parametrize("spec", SPECS)
def test_commit_needs_a_persistent_region(spec, tmp_path):
    path = tmp_path / "ordinary"
    path.write_bytes(bytes(4096))
    with pyfab.Domain(spec) as domain, domain.endpoint() as endpoint, Peer(spec) as peer:
        handle = endpoint.av.insert(peer.address)
        remote = peer.run(map_file, str(path), MRFlag(0))
        operation = endpoint.write(np.ones(8, np.uint8), handle, remote[:8], flags=Delivery.COMMIT)
        assert isinstance(operation.exception(TIMEOUT), pyfab.InvalidArgumentError)
        endpoint.write(np.ones(8, np.uint8), handle, remote[:8]).result(TIMEOUT)


# --- buffers of others


class Tensor:
    """Memory that only DLPack shows."""

    def __init__(self, array, device=None):
        self._array, self._device = array, device

    def __dlpack_device__(self):
        return self._device or self._array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)


@pytest.fixture
def to_self():
    with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint:
        endpoint.av.insert(endpoint.address)
        yield domain, endpoint


@pytest.mark.req("MR-81")
def test_a_tensor_registers_in_place(to_self):
    domain, endpoint = to_self
    array = np.zeros((4, 4), np.float32)
    with domain.register(Tensor(array), Access.REMOTE) as region:
        assert region.remote.shape == (4, 4)
        assert region.remote.dtype == np.float32
        endpoint.write(Tensor(np.ones(4, np.float32)), 0, region.remote[1]).result(TIMEOUT)
        assert array.sum(axis=1).tolist() == [0, 4, 0, 0]
        back = np.zeros((4, 4), np.float32)
        endpoint.read(Tensor(back), 0, region.remote).result(TIMEOUT)
        assert np.array_equal(back, array)


@pytest.mark.req("MR-81")
def test_torch_tensors_register_in_place(to_self):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    domain, endpoint = to_self
    weights = torch.zeros(4, 4, requires_grad=True)
    with domain.register(weights, Access.REMOTE) as region:
        endpoint.write(torch.ones(4), 0, region.remote[1]).result(TIMEOUT)
        assert weights.sum().item() == 4


class OnGpu:
    __cuda_array_interface__: ClassVar = {
        "shape": (4,),
        "typestr": "<f4",
        "data": (4096, False),
        "version": 3,
    }


class RefusingBuffer(mmap.mmap):
    """A buffer by its type, as arrays of CuPy and JAX are, which refuses when it is asked: it is closed."""

    def __dlpack_device__(self):
        return 2, 0


def refusing_buffer():
    memory = RefusingBuffer(-1, 64)
    memory.close()
    return memory


ON_DEVICES = {
    "cuda": Tensor(np.zeros(4), device=(2, 0)),
    "rocm": Tensor(np.zeros(4), device=(10, 1)),
    "cuda array": OnGpu(),
    "cuda buffer": refusing_buffer(),
}


@pytest.mark.parametrize("tensor", ON_DEVICES.values(), ids=ON_DEVICES.keys())
def test_memory_of_a_gpu_is_refused_with_the_reason(to_self, tensor):
    domain, endpoint = to_self
    with pytest.raises(pyfab.NotSupportedError, match="device"):
        domain.register(tensor, Access.REMOTE)
    with (
        domain.register(np.zeros(4), Access.REMOTE) as region,
        pytest.raises(pyfab.NotSupportedError, match="cpu"),
    ):
        endpoint.write(tensor, 0, region.remote)


@pytest.mark.req("MR-81")
def test_a_registered_bytearray_keeps_its_size(to_self):
    domain, _ = to_self
    memory = bytearray(64)
    with domain.register(memory, Access.REMOTE), pytest.raises(BufferError):
        memory.extend(b"more")
    memory.extend(b"more")


@pytest.mark.req("MR-81")
def test_registered_memory_outlives_its_name(to_self):
    domain, endpoint = to_self
    array = np.zeros(1 << 16)
    region = domain.register(array, Access.REMOTE)
    del array
    gc.collect()
    endpoint.write(np.ones(1 << 16), 0, region.remote).result(TIMEOUT)
    assert np.asarray(region).all()
    region.close()


@pytest.mark.req("MR-83")
def test_an_array_with_gaps_is_a_region_of_its_pieces(to_self):
    domain, endpoint = to_self
    memory = np.zeros((8, 8), np.int64)
    for view in (memory[1:7, 2:5], memory[:, 0], memory[::2], memory.T[:2], memory[2:4, ::-1]):
        memory[:] = 0
        with domain.register(view, Access.REMOTE) as region:
            assert region.remote.shape == view.shape
            assert region.nbytes == view.nbytes
            values = np.arange(1, view.size + 1).reshape(view.shape)
            endpoint.write(values, 0, region.remote).result(TIMEOUT)
            assert np.array_equal(view, values)
            assert np.count_nonzero(memory) == view.size
            endpoint.write(values[-1:] * 0 + 9, 0, region.remote[-1:]).result(TIMEOUT)
            assert (view[-1:] == 9).all()
    for wrong, why in (
        (np.zeros(200)[::2], "100 pieces"),
        (np.broadcast_to(np.zeros(4), (4, 4)), "more than once"),
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match=why):
            domain.register(wrong, Access.REMOTE_READ)
