"""Objects that give an array of their memory when they are asked, and keep nothing of it themselves."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pyfab
import pytest


class Fleeting:
    """A tensor on the CPU whose array, with its dtype, lives no longer than somebody holds it."""

    def __init__(self) -> None:
        self.given: list[weakref.ref[Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def numpy(self) -> np.ndarray[Any, Any]:
        array = np.arange(4096, dtype=np.uint16).view(np.dtype([("element", "u2")]))
        self.given.append(weakref.ref(array))
        return array


@pytest.fixture(scope="module")
def domain():
    with pyfab.Domain("shm") as opened:
        yield opened


@pytest.fixture(scope="module")
def endpoint(domain):
    with domain.endpoint() as opened:
        yield opened


@pytest.mark.slow
def test_the_array_lives_as_long_as_the_operation(endpoint):
    tensor = Fleeting()
    receive = endpoint.recv(tensor)
    gc.collect()
    assert len(tensor.given) == 1
    array = tensor.given[0]()
    assert array is not None
    me = endpoint.av.insert(endpoint.address)
    endpoint.send(np.full(4096, 7, np.uint16), me).result(10)
    receive.result(10)
    assert (array["element"] == 7).all()
    del array, receive
    gc.collect()
    assert tensor.given[0]() is None


def test_its_dtype_may_be_made_for_it_alone(domain, endpoint):
    memory = np.zeros(4096, np.dtype([("element", "u2")]))
    me = endpoint.av.insert(endpoint.address)
    with domain.register(memory, pyfab.Access.REMOTE) as region:
        for _ in range(500):
            endpoint.put(Fleeting(), me, region.remote)
    assert (memory["element"] == np.arange(4096)).all()
