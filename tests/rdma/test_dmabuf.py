"""Dma-bufs as memory of regions and operations: shared memory, TCP, and the device of PYFAB_TEST_LINKS where there is one.

Real ones come from whatever exports them here; a file stands in for them everywhere. `scripts/guest-tests rxe0
tests/rdma/test_dmabuf.py` runs this where there is vgem.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp

DEVICES = [spec for spec in os.environ.get("PYFAB_TEST_LINKS", "").split() if spec.startswith("verbs:")]
LINKS = [("shm", {}), ("shm", {"shm_copy": "cma"}), ("tcp", {}), *((device, {}) for device in DEVICES)]
TIMEOUT = 60
PAGE = os.sysconf("SC_PAGESIZE")
SIZE = 64 * PAGE

# Of <linux/udmabuf.h>, <linux/dma-heap.h>, <drm/drm.h> and <drm/drm_mode.h>.
UDMABUF_CREATE, DMA_HEAP_ALLOC, CREATE_DUMB, HANDLE_TO_FD = 0x40187542, 0xC0184800, 0xC02064B2, 0xC00C642D


def _file() -> int:
    fd = os.memfd_create("dma-buf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, SIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def _udmabuf() -> int:
    memory = _file()
    device = os.open("/dev/udmabuf", os.O_RDWR)
    try:
        return fcntl.ioctl(device, UDMABUF_CREATE, struct.pack("IIQQ", memory, 1, 0, SIZE))
    finally:
        os.close(device)
        os.close(memory)


def _heap() -> int:
    device = os.open("/dev/dma_heap/system", os.O_RDONLY)
    try:
        asked = struct.pack("QIIQ", SIZE, 0, os.O_RDWR | os.O_CLOEXEC, 0)
        return struct.unpack("QIIQ", fcntl.ioctl(device, DMA_HEAP_ALLOC, asked))[1]
    finally:
        os.close(device)


def _vgem() -> int:
    """A buffer of a graphics card that is none."""
    cards = [card for card in Path("/sys/class/drm").glob("card*") if "vgem" in card.resolve().parts]
    if not cards:
        raise FileNotFoundError("/dev/dri has no card of vgem")
    device = os.open(f"/dev/dri/{cards[0].name}", os.O_RDWR)
    try:
        asked = struct.pack("IIIIIIQ", SIZE // 1024, 1024, 8, 0, 0, 0, 0)
        handle = struct.unpack("IIIIIIQ", fcntl.ioctl(device, CREATE_DUMB, asked))[4]
        exported = struct.pack("IIi", handle, os.O_RDWR | os.O_CLOEXEC, -1)
        return struct.unpack("IIi", fcntl.ioctl(device, HANDLE_TO_FD, exported))[2]
    finally:
        os.close(device)


EXPORTERS = {"file": _file, "udmabuf": _udmabuf, "heap": _heap, "vgem": _vgem}


@pytest.fixture(params=EXPORTERS)
def exported(request: pytest.FixtureRequest) -> Iterator[int]:
    try:
        fd = EXPORTERS[request.param]()
    except OSError as error:
        pytest.skip(f"no {request.param} here: {error}")
    yield fd
    os.close(fd)


@pytest.fixture
def file() -> Iterator[int]:
    fd = _file()
    yield fd
    os.close(fd)


def _gpu() -> int:
    """Memory of a GPU, by CUDA's driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"no CUDA here: {error}")

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            pytest.skip(f"{name} ends with {status}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    address, fd = ctypes.c_uint64(), ctypes.c_int(-1)
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(SIZE + (2 << 20)))
    start = -(-address.value // PAGE) * PAGE
    dma_buf = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
    call(
        "cuMemGetHandleForAddressRange",
        ctypes.byref(fd),
        ctypes.c_uint64(start),
        ctypes.c_size_t(SIZE),
        dma_buf,
        ctypes.c_uint64(0),
    )
    return fd.value


def _for_devices_only() -> int:
    """A file as if its exporter kept it for devices."""
    file = _file()
    try:
        return os.open(f"/proc/self/fd/{file}", os.O_WRONLY)
    finally:
        os.close(file)


@pytest.fixture(params=[_for_devices_only, _gpu], ids=["file", "gpu"])
def hidden(request: pytest.FixtureRequest) -> Iterator[int]:
    """What cannot be mapped."""
    fd = request.param()
    yield fd
    os.close(fd)


@pytest.fixture(params=LINKS, ids=lambda link: "-".join([link[0], *link[1].values()]))
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[pyfab.Endpoint, pyfab.Endpoint]]:
    spec, settings = request.param
    with (
        pyfab.Domain(spec, **settings) as one,
        pyfab.Domain(spec, **settings) as other,
        one.endpoint() as here,
        other.endpoint() as there,
    ):
        yield here, there


def pattern(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def test_the_mapping_is_the_memory(exported):
    with pyfab.DmaBuf(exported) as whole, pyfab.DmaBuf(exported, 2 * PAGE, PAGE + 8) as part:
        assert whole.mapped
        assert (whole.nbytes, part.nbytes) == (SIZE, PAGE + 8)
        np.asarray(whole)[2 * PAGE :][: part.nbytes] = pattern(part.nbytes, 1)
        assert (np.asarray(part) == pattern(part.nbytes, 1)).all()
        with memoryview(part) as view:
            assert (view.nbytes, view.readonly) == (PAGE + 8, False)


def test_accesses_of_the_cpu_are_announced(exported, request):
    with pyfab.DmaBuf(exported) as memory:
        if "file" in request.node.callspec.id:
            with pytest.raises(pyfab.InvalidArgumentError, match="no dma-buf"), memory.cpu_access():
                pass
            return
        with memory.cpu_access(write=True):
            np.asarray(memory)[:] = 7
            with pytest.raises(pyfab.BusyError):
                memory.close()
        with memory.cpu_access():
            assert (np.asarray(memory) == 7).all()


def test_peers_reach_it_on_every_link(exported, ends):
    here, there = ends
    peer = here.av.insert(there.address)
    with pyfab.DmaBuf(exported) as memory:
        content = np.asarray(memory)
        content[:] = 0
        # An array in the mapping is as good as the DmaBuf.
        for shown in (memory, content[:]):
            with there._domain.register(shown, pyfab.Access.ALL) as region:
                for turn, size in enumerate((8, 4096, 5000, SIZE - 16, 8, SIZE - 16)):
                    data, back = pattern(size, turn), np.zeros(size, np.uint8)
                    here.write(data, peer, region.remote[8 : 8 + size]).result(TIMEOUT)
                    assert (content[8 : 8 + size] == data).all(), size
                    here.read(back, peer, region.remote[8 : 8 + size]).result(TIMEOUT)
                    assert (back == data).all(), size
                word = region.remote.bytes(0, 8).view(np.int64, (1,))
                before = content[:8].view(np.int64)[0]
                for op in (AtomicOp.SUM, AtomicOp.BXOR):  # by a device, where there is one, and by the CPU
                    old = np.zeros(1, np.int64)
                    here.fetch_atomic(op, np.array([5], np.int64), old, peer, word).result(TIMEOUT)
                    assert old[0] == before
                    before = content[:8].view(np.int64)[0]
                assert (content[SIZE - 8 :] == 0).all()


def test_it_is_local_memory_on_every_link(exported, ends):
    here, there = ends
    peer = here.av.insert(there.address)
    target = np.zeros(SIZE, np.uint8)
    with pyfab.DmaBuf(exported) as memory, there._domain.register(target, pyfab.Access.REMOTE) as region:
        content = np.asarray(memory)
        for registered in (False, True):
            own = here._domain.register(memory, pyfab.Access.LOCAL) if registered else None
            for turn, size in enumerate((8, 4096, 5000, SIZE, 8, SIZE)):
                content[:] = pattern(SIZE, turn)
                here.write(content[:size], peer, region.remote[:size]).result(TIMEOUT)
                assert (target[:size] == content[:size]).all(), size
                target[:size] ^= 255
                here.read(content[:size], peer, region.remote[:size]).result(TIMEOUT)
                assert (target[:size] == content[:size]).all(), size
            if own:
                own.close()


def test_messages_go_from_and_to_it(exported, ends):
    here, there = ends
    peer = here.av.insert(there.address)
    with pyfab.DmaBuf(exported) as memory:
        half = SIZE // 2
        source, landing = np.asarray(memory)[:half], np.asarray(memory)[half:]
        for turn, size in enumerate((8, 5000, half)):
            source[:] = pattern(half, turn)
            received = there.recv(landing[:size])
            here.send(source[:size], peer).result(TIMEOUT)
            assert received.result(TIMEOUT).nbytes == size
            assert (landing[:size] == source[:size]).all(), size


def test_a_device_that_takes_no_dma_bufs_takes_the_mapping(file):
    if not DEVICES:
        pytest.skip("asked for by PYFAB_TEST_LINKS=verbs:DEVICE (tests/rdma/README.md)")
    with (
        pyfab.Domain(DEVICES[0]) as domain,
        domain.endpoint() as endpoint,
        pyfab.DmaBuf(file) as memory,
        domain.register(memory, pyfab.Access.ALL) as region,
    ):
        me = endpoint.av.insert(endpoint.address)
        data = np.zeros(SIZE, np.uint8)
        for turn in range(2):
            data[:] = pattern(SIZE, turn)
            endpoint.write(data, me, region.remote).result(TIMEOUT)
            assert (np.asarray(memory) == data).all()
        (counts,) = domain.stats()["registrations"].values()
        assert counts["made"] >= 1


def test_what_only_devices_reach_is_refused_where_none_does(hidden, ends):
    here, there = ends
    with pyfab.DmaBuf(hidden) as memory:
        assert not memory.mapped
        assert memory.nbytes == SIZE
        with pytest.raises(pyfab.NotSupportedError, match="RDMA device whose driver registers dma-bufs"):
            there._domain.register(memory, pyfab.Access.REMOTE)
        peer = here.av.insert(there.address)
        with there._domain.register(np.zeros(SIZE, np.uint8), pyfab.Access.REMOTE) as region:
            with pytest.raises(pyfab.NotSupportedError, match="slices of the region"):
                here.write(memory, peer, region.remote)
            here.write(np.ones(SIZE, np.uint8), peer, region.remote).result(TIMEOUT)
        memory.close()


def test_what_is_not_mapped_is_no_buffer(hidden):
    with pyfab.DmaBuf(hidden, PAGE) as memory:
        for use in (memoryview, np.asarray, lambda it: it.cpu_access().__enter__()):
            with pytest.raises(pyfab.NotSupportedError, match="only RDMA devices reach it"):
                use(memory)
        assert repr(memory) == f"<DmaBuf {SIZE - PAGE} bytes, not mapped>"
    with pytest.raises(pyfab.NotSupportedError), pyfab.Domain("shm", coherent=False) as domain:
        domain.register(pyfab.DmaBuf(hidden), pyfab.Access.REMOTE)


def test_what_is_exported_for_reading_is_read_only(file):
    fd = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
    with pyfab.DmaBuf(fd) as memory, pyfab.Domain("shm") as domain:
        os.close(fd)  # it has its own
        assert memory.mapped
        assert not np.asarray(memory).flags.writeable
        domain.register(memory, pyfab.Access.REMOTE_READ).close()
        with pytest.raises(pyfab.AccessDeniedError, match="read-only"):
            domain.register(memory, pyfab.Access.REMOTE_WRITE)


def test_it_stays_as_long_as_somebody_uses_it(exported):
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        me = endpoint.av.insert(endpoint.address)
        memory = pyfab.DmaBuf(exported)
        own = memory.fd
        array = np.asarray(memory)
        with pytest.raises(pyfab.BusyError):
            memory.close()
        region = domain.register(memory, pyfab.Access.REMOTE)
        del array
        with pytest.raises(pyfab.BusyError):
            memory.close()
        with memory:  # lets go of it
            pass
        assert memory.closed
        endpoint.write(np.full(SIZE, 9, np.uint8), me, region.remote).result(TIMEOUT)
        assert (np.asarray(region) == 9).all()
        os.fstat(own)
        region.close()
        del region
        gc.collect()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(own)
        with pyfab.DmaBuf(exported) as again:
            assert (np.asarray(again) == 9).all()
            again.close()
            again.close()
        for use in (lambda: again.fd, lambda: again.nbytes, lambda: again.mapped, lambda: np.asarray(again)):
            with pytest.raises(pyfab.ClosedError):
                use()
        with pytest.raises(pyfab.ClosedError):
            domain.register(again, pyfab.Access.REMOTE)


@pytest.mark.parametrize(
    "offset, length, says",
    [
        (1, None, "multiple of the page size"),
        (-PAGE, None, "not negative"),
        (0, -1, "not negative"),
        (0, 0, f"it has {SIZE}"),
        (0, SIZE + 1, f"it has {SIZE}"),
        (PAGE, SIZE, f"it has {SIZE}"),
        (SIZE, None, f"it has {SIZE}"),
        (0, 2**63, "not negative"),
    ],
)
def test_a_part_that_is_none_is_refused(exported, offset, length, says):
    with pytest.raises(pyfab.InvalidArgumentError, match=says):
        pyfab.DmaBuf(exported, offset, length)


def test_a_file_that_is_none_is_refused():
    reader, writer = os.pipe()
    try:
        with pytest.raises(pyfab.InvalidArgumentError, match="has no size"):
            pyfab.DmaBuf(reader)
    finally:
        os.close(reader)
        os.close(writer)
    with pytest.raises(pyfab.InvalidArgumentError, match=f"{reader} is not open"):
        pyfab.DmaBuf(reader)
    with pytest.raises(pyfab.InvalidArgumentError):
        pyfab.DmaBuf(-1)
    with pytest.raises(TypeError):
        pyfab.DmaBuf("dma-buf")


def test_devices_alone_serve_what_is_not_mapped(tmp_path):
    """By a device that is made to take dma-bufs (dmabuf_device.c), with all that follows from it."""
    if not DEVICES:
        pytest.skip("asked for by PYFAB_TEST_LINKS=verbs:DEVICE (tests/rdma/README.md)")
    if not (compiler := shutil.which("cc")):
        pytest.skip("a library has to be compiled: apt-get install gcc")
    if "iwarp" in pyfab.getinfo(DEVICES[0])[0].fabric:
        pytest.skip("over iWARP puts and atomics need the target's CPU")
    folder, library = Path(__file__).parent, tmp_path / "device.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "dmabuf_device.c"], check=True)
    done = subprocess.run(
        [sys.executable, folder / "hidden_memory.py", DEVICES[0]],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
