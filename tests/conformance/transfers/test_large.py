"""One operation moves more than 4 GiB, and every byte of it lands where it belongs."""

from __future__ import annotations

import mmap

import numpy as np
import psutil
import pytest
from pyfab import Access
from support import IN_PROCESS, TIMEOUT, Pair

SIZE = (4 << 30) + 4096 + 3
# Positions of marks in otherwise zero memory: a page here and there, and the borders where 32-bit arithmetic would fail.
MARKS = np.unique(
    np.concatenate(
        [np.arange(0, SIZE, (16 << 20) + 4099), [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, SIZE - 1]]
    )
)
VALUES = (MARKS % 255 + 1).astype(np.uint8)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


# One combination for each way in which bytes are moved; the two that are left out move them as others here do.
WAYS = [c for c in IN_PROCESS if c.name not in ("linked", "rails-encrypted")]


@pytest.fixture(scope="module", params=WAYS, ids=str)
def combination(request):
    return request.param


@pytest.fixture
def enough_memory():
    needed, free = SIZE * 3 // 2, psutil.virtual_memory().available
    if free < needed:
        pytest.skip(f"needs {needed >> 20} MiB of free memory, {free >> 20} MiB are available")


def sparse() -> np.ndarray:
    """Zeroed memory that takes no pages until it is written."""
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)  # faults cost more than the copy
    return np.frombuffer(memory, np.uint8)


def marked_alone(memory: np.ndarray) -> bool:
    return bool((memory[MARKS] == VALUES).all()) and np.count_nonzero(memory) == len(MARKS)


def expose_large(target, alloc, marked):
    memory = target.domain.alloc((SIZE,), np.uint8) if alloc else sparse()
    if marked:
        memory[MARKS] = VALUES
    target.kept["large"] = memory, target.domain.register(memory, Access.REMOTE)
    return target.kept["large"][1].remote


def check_large(target):
    return marked_alone(target.kept["large"][0])


def close_large(target):
    target.kept.pop("large")[1].close()


@pytest.mark.usefixtures("enough_memory")
def test_put_of_more_than_4_gib(pair: Pair):
    remote = pair.peer.run(expose_large, pair.combination.alloc, False)
    source = sparse()
    source[MARKS] = VALUES
    operation = pair.endpoint.write(source, pair.handle, remote)
    assert operation.result(4 * TIMEOUT).nbytes == SIZE
    assert pair.peer.run(check_large)
    pair.peer.run(close_large)


@pytest.mark.usefixtures("enough_memory")
def test_get_of_more_than_4_gib(pair: Pair):
    remote = pair.peer.run(expose_large, pair.combination.alloc, True)
    landing = sparse()
    operation = pair.endpoint.read(landing, pair.handle, remote)
    assert operation.result(4 * TIMEOUT).nbytes == SIZE
    pair.peer.run(close_large)
    assert marked_alone(landing)
