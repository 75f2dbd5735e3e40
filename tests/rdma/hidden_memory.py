"""What devices alone reach, over a device that takes dma-bufs: `python hidden_memory.py verbs:rxe0` (test_dmabuf.py)."""

from __future__ import annotations

import os
import sys

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp

TIMEOUT = 60
PAGE = os.sysconf("SC_PAGESIZE")
SIZE = 64 * PAGE
SIZES = (8, 100, 4096, 5000, SIZE)


class Hidden:
    """Memory that this process sees through its file alone, from the second page on."""

    def __init__(self) -> None:
        self.file = os.memfd_create("dma-buf")
        os.truncate(self.file, PAGE + SIZE)
        fd = os.open(f"/proc/self/fd/{self.file}", os.O_WRONLY)
        self.memory = pyfab.DmaBuf(fd, PAGE)
        os.close(fd)
        assert not self.memory.mapped

    def load(self, size: int) -> np.ndarray:
        return np.frombuffer(os.pread(self.file, size, PAGE), np.uint8)

    def store(self, data: np.ndarray) -> None:
        os.pwrite(self.file, data.tobytes(), PAGE)


def pattern(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def refused(operation: pyfab.Operation) -> None:
    with pytest.raises(pyfab.BoundsError):
        operation.result(TIMEOUT)


def as_target(here: pyfab.Endpoint, there: pyfab.Endpoint, peer: int) -> None:
    for sizes in (SIZES, SIZES[::-1]):
        hidden = Hidden()
        with there._domain.register(hidden.memory, pyfab.Access.ALL) as region:
            for turn, size in enumerate(sizes):  # the first one of each region as well
                data, back = pattern(size, turn), np.zeros(size, np.uint8)
                here.write(data, peer, region.remote[:size]).result(TIMEOUT)
                assert (hidden.load(size) == data).all(), size
                here.read(back, peer, region.remote[:size]).result(TIMEOUT)
                assert (back == data).all(), size
                here.put(data[::-1].copy(), peer, region.remote[:size])
                assert (hidden.load(size) == data[::-1]).all(), size
    hidden.store(np.zeros(8, np.uint8))
    with there._domain.register(hidden.memory, pyfab.Access.ALL) as region:
        word, one, old = (
            region.remote.bytes(0, 8).view(np.int64, (1,)),
            np.ones(1, np.int64),
            np.zeros(1, np.int64),
        )
        for turn in range(3):
            here.fetch_atomic(AtomicOp.SUM, one, old, peer, word).result(TIMEOUT)
            assert old[0] == turn
            refused(
                here.atomic(AtomicOp.BXOR, one, peer, word)
            )  # the CPU's, which takes nothing from the device
            refused(here.write(one.view(np.uint8), peer, region.remote[:8], data=1))
        here.inject(np.full(8, 5, np.uint8), peer, region.remote[:8])
        here.flush(peer, TIMEOUT)
        assert (hidden.load(8) == 5).all()


def as_local(here: pyfab.Endpoint, there: pyfab.Endpoint, peer: int) -> None:
    hidden, target = Hidden(), np.zeros(SIZE, np.uint8)
    with (
        here._domain.register(hidden.memory, pyfab.Access.LOCAL) as own,
        there._domain.register(target, pyfab.Access.REMOTE) as region,
    ):
        for turn, size in enumerate(SIZES):
            hidden.store(pattern(size, turn))
            here.write(own[:size], peer, region.remote[:size]).result(TIMEOUT)
            assert (target[:size] == hidden.load(size)).all(), size
            target[:size] ^= 255
            here.read(own[:size], peer, region.remote[:size]).result(TIMEOUT)
            assert (target[:size] == hidden.load(size)).all(), size
        before = hidden.load(SIZE)
        refused(here.send(own[:8], peer))
        refused(here.send(own[:SIZE], peer))
        refused(here.write(own[:8], peer, region.remote[:8], data=1))
        with pytest.raises(pyfab.BoundsError):
            here.inject(own[:8], peer, region.remote[:8])
        for size in (8, SIZE):
            received = here.recv(own[:size])
            sent = there.send(target[:size] ^ 255, there.av.insert(here.address))
            refused(received)
            sent.exception(TIMEOUT)  # a large one, which is fetched, fails here as well
        assert (hidden.load(SIZE) == before).all()
        with pytest.raises(pyfab.NotSupportedError, match="slices of the region"):
            here.write(own, peer, region.remote)


def both(here: pyfab.Endpoint, there: pyfab.Endpoint, peer: int) -> None:
    one, other = Hidden(), Hidden()
    with (
        here._domain.register(one.memory, pyfab.Access.LOCAL) as own,
        there._domain.register(other.memory, pyfab.Access.REMOTE) as region,
    ):
        for turn, size in enumerate(SIZES):
            one.store(pattern(size, turn))
            here.write(own[:size], peer, region.remote[:size]).result(TIMEOUT)
            assert (one.load(size) == other.load(size)).all(), size


def on_the_node(device: str) -> None:
    """Over shared memory processors move the bytes."""
    linked = f"shm+{device}"
    hidden, data = Hidden(), np.zeros(SIZE, np.uint8)
    with (
        pyfab.Domain(linked) as one,
        pyfab.Domain(linked) as other,
        one.endpoint() as here,
        other.endpoint() as there,
        other.register(hidden.memory, pyfab.Access.ALL) as region,
        one.register(hidden.memory, pyfab.Access.LOCAL) as own,
        other.register(data, pyfab.Access.ALL) as target,
    ):
        peer = here.av.insert(there.address)
        assert here.report(peer)[0].startswith("shm")
        for size in (8, SIZE):
            refused(here.write(data[:size], peer, region.remote[:size]))
            refused(here.read(data[:size], peer, region.remote[:size]))
            refused(here.write(own[:size], peer, target.remote[:size]))
        here.write(data, peer, target.remote).result(TIMEOUT)


def main(device: str) -> None:
    with (
        pyfab.Domain(device) as one,
        pyfab.Domain(device) as other,
        one.endpoint() as here,
        other.endpoint() as there,
    ):
        peer = here.av.insert(there.address)
        as_target(here, there, peer)
        as_local(here, there, peer)
        both(here, there, peer)
    on_the_node(device)


if __name__ == "__main__":
    main(sys.argv[1])
