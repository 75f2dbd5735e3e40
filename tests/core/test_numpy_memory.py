"""Arrays that NumPy makes in memory that peers map: they behave as any others, and peers load and store them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyfab
import pytest
from pyfab.core.memory.mapped import shared_memory_of


@pytest.fixture(scope="module")
def domain():
    with pyfab.Domain("shm") as opened:
        yield opened


def is_mapped(array: np.ndarray) -> bool:
    return shared_memory_of(array) is not None


def mappings() -> int:
    """Mappings of this process of what peers may map."""
    return Path("/proc/self/maps").read_text().count("pyfab-memory")


def peers_map(domain: pyfab.Domain, array: np.ndarray) -> bool:
    """Whether another domain maps the array when it puts into it, and gets back what it put."""
    region = domain.register(array, pyfab.Access.REMOTE)
    with (
        region,
        domain.endpoint() as there,
        pyfab.Domain("shm", shm_copy="mapped") as other,
        other.endpoint() as here,
    ):
        peer, before = here.av.insert(there.address), mappings()
        content = np.random.default_rng(1).integers(0, 100, array.shape).astype(array.dtype)
        here.write(content, peer, region.remote).result(10)
        found = mappings()
        back = np.empty_like(content)
        here.read(back, peer, region.remote).result(10)
        assert (array == content).all()
        assert (back == content).all()
    return found > before


MADE: dict[str, Callable[[], np.ndarray]] = {
    "by arithmetic": lambda: np.arange(10.0) * 2,
    "zeroed": lambda: np.zeros((300, 500)),
    "copied": lambda: np.linspace(0, 1, 7, dtype=np.float32).copy(),
    "from a list": lambda: np.array([1, 2, 3]),
    "a view's base": lambda: np.ones((4, 100_000))[1:3],
    "resized": lambda: np.resize(np.arange(5), 100_000),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_new_arrays_are_mapped_by_peers(domain, made):
    with domain.numpy_memory():
        array = made()
    assert is_mapped(array)
    assert (array == made()).all()
    assert peers_map(domain, array)


def test_only_arrays_made_within_it_in_this_thread_are_concerned(domain):
    others: list[np.ndarray] = []
    before = np.zeros(100)
    with domain.numpy_memory():
        with domain.numpy_memory():
            inner = np.zeros(100)
        outer = np.zeros(100)
        thread = threading.Thread(target=lambda: others.append(np.zeros(100)))
        thread.start()
        thread.join()
    after = np.zeros(100)
    assert [is_mapped(array) for array in (before, inner, outer, *others, after)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert not peers_map(domain, after)
    with pytest.raises(ZeroDivisionError), domain.numpy_memory():
        raise ZeroDivisionError
    assert not is_mapped(np.zeros(100))


def test_zeros_are_zero_in_memory_that_was_used_before(domain):
    with domain.numpy_memory():
        for size in (1, 100, 20_000, 3 << 20):
            for _ in range(3):
                np.full(size, 7, np.uint8)
                assert not np.zeros(size, np.uint8).any()


def test_an_array_in_place_grows_and_shrinks(domain):
    with domain.numpy_memory():
        array = np.arange(1000)
    array.resize(200_000, refcheck=False)
    assert is_mapped(array)
    assert (array[:1000] == np.arange(1000)).all()
    assert not array[1000:].any()
    array.resize(10, refcheck=False)
    assert (array == np.arange(10)).all()


def test_arrays_outlive_their_domain():
    with pyfab.Domain("shm") as domain, domain.numpy_memory():
        array = np.arange(5)
    assert (array * 2 == [0, 2, 4, 6, 8]).all()
    with pytest.raises(pyfab.ClosedError):
        domain.numpy_memory()


def test_a_child_of_fork_shares_them_and_makes_its_own(domain):
    with domain.numpy_memory():
        shared = np.zeros(100_000)
        child = os.fork()
        if child == 0:
            own = np.full(100_000, 5.0)
            shared[0] = own.sum() if is_mapped(own) else -1
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert shared[0] == 500_000
    assert not shared[1:].any()
