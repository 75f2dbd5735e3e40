"""What type checkers make of programs; nothing here runs.

mypy and pyright look at it (`scripts/lint`). Every line with an "ignore" is a wrong use: if it were accepted, they would complain
of an ignore that is not needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyfab
from numpy.typing import NDArray
from pyfab._core import Completion, Fetch
from pyfab.data import GlobalShuffle, Loader, ShardedStore
from pyfab.torch import ShardedLoader
from typing_extensions import assert_type


def windows(group: pyfab.Group) -> None:
    with group.window(np.zeros(5)) as window:
        assert_type(window, pyfab.Window)
        array = window[1]
        assert_type(array, pyfab.RemoteArray)
        assert_type(array.put([1.0], 3), pyfab.Operation)
        assert_type(array.put([1.0]).result(timeout=1), Completion)
        assert_type(array.fetch_add(1, 3), Fetch)
        assert_type(array.fetch_add(1, 3, out=np.zeros(1)), pyfab.Operation)
        assert_type(array.take([1, 2]), Fetch)
        assert_type(array.take([1, 2], np.zeros(2)), pyfab.Operation)
        assert_type(array.shape, tuple[int, ...])
        window["1"]  # type: ignore[index]
        window[1:2]  # type: ignore[index]
        window[1] = np.zeros(5)  # type: ignore[index]
        array.putt([1.0])  # type: ignore[attr-defined]
        array.get([1.0, 2.0])  # type: ignore[arg-type]
        array.accumulate(1, 3, "sum")  # type: ignore[arg-type]
        array.put([1.0], timeout=1)  # type: ignore[call-arg]
        window.fence(last=1)  # type: ignore[arg-type]
    group.window(np.zeros(5), access="remote")  # type: ignore[arg-type]
    group.window([1, 2])  # type: ignore[arg-type]
    assert_type(group.split(1), pyfab.Group | None)
    group.split(1).barrier()  # type: ignore[union-attr]
    assert_type(group.gather(1), list[Any] | None)
    group.allreduce(1, "sum")  # type: ignore[arg-type]
    group.alltoall()  # type: ignore[call-arg]


def endpoints(domain: pyfab.Domain, endpoint: pyfab.Endpoint, remote: pyfab.RemoteRegion) -> None:
    region = domain.register(np.zeros(3), pyfab.Access.REMOTE)
    assert_type(region.remote, pyfab.RemoteRegion)
    assert_type(endpoint.write(np.zeros(3), 0, remote), pyfab.Operation)
    assert_type(endpoint.av.insert(endpoint.address), int)
    assert_type(endpoint.av.insert([endpoint.address]), list[int])
    endpoint.put(np.zeros(3), 0, remote, timeout="1")  # type: ignore[arg-type]
    endpoint.put(np.zeros(3), "peer", remote)  # type: ignore[arg-type]
    endpoint.put(np.zeros(3), 0, region)  # type: ignore[arg-type]
    endpoint.write(np.zeros(3), 0)  # type: ignore[call-arg]
    endpoint.tsend(np.zeros(3), 0)  # type: ignore[call-arg]
    domain.register(np.zeros(3), "rw")  # type: ignore[arg-type]


class Labelled(NamedTuple):
    label: NDArray[np.int64]


def loaders(store: ShardedStore, sampler: GlobalShuffle) -> None:
    for batch in Loader(store, sampler):
        assert_type(batch, dict[str, Any])
    for labelled in Loader(store, sampler, batch=Labelled):
        assert_type(labelled, Labelled)
        print(labelled.text)  # type: ignore[attr-defined]
    for first in Loader(store, sampler, transform=lambda batch: int(batch["label"][0])):
        assert_type(first, int)
    for tensors in ShardedLoader(store, sampler, batch=Labelled):
        assert_type(tensors, Labelled)
    Loader(store, sampler, batch=Labelled(np.zeros(1, np.int64)))  # type: ignore[arg-type]
