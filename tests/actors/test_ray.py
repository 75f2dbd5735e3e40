"""Tensors and groups between actors of Ray: what arrives, what is let go, and what becomes of actors that are killed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pyfab
import pytest

ray = pytest.importorskip("ray")
torch = pytest.importorskip("torch")

import pyfab.ray  # noqa: E402  where there is a Ray

pytestmark = pytest.mark.timeout(900)
KINDS = ("float32", "float64", "bfloat16", "float16", "int8", "uint8", "int64", "bool", "complex64")
TIMEOUT = 240  # of which starting actors takes most on a busy machine


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    os.environ["RAY_AUTH_MODE"] = "disabled"  # else it leaves a file in the home folder
    paths = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    try:
        ray.init(
            num_cpus=8,
            include_dashboard=False,
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
            log_to_driver=False,
        )
    except Exception as error:  # where its processes cannot start
        pytest.skip(f"no Ray starts here: {error}")
    yield
    ray.shutdown()
    _, left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=TIMEOUT)
    assert not left


@pytest.fixture(autouse=True)
def _no_process_left() -> None:
    """Ray starts workers when it likes. They end with the cluster."""


pyfab.ray.register()
pyfab.ray.register()  # harmless


def transport() -> Any:
    from ray.experimental.rdt.util import get_tensor_transport_manager

    return get_tensor_transport_manager(pyfab.ray.NAME)


@ray.remote(num_cpus=1)
class Actor:
    """Has tensors, and says what it got."""

    @ray.method(tensor_transport="pyfab")
    def of_all_kinds(self) -> Any:
        plain = torch.arange(-50, 50).reshape(4, 25)
        return {kind: plain.to(getattr(torch, kind)) for kind in KINDS} | {
            "none": torch.empty(0, 3),
            "one": torch.tensor(7),
        }

    @ray.method(tensor_transport="pyfab")
    def views(self, count: int) -> Any:
        whole = torch.arange(count * 100)
        return [whole[100 * number : 100 * number + 10] for number in range(count)]

    @ray.method(tensor_transport="pyfab")
    def large(self, count: int, value: int) -> Any:
        return torch.full((count,), value, dtype=torch.int64)

    @ray.method(tensor_transport="pyfab")
    def with_gaps(self) -> Any:
        return torch.zeros(4, 4)[:, 1]

    def kinds_arrived(self, got: dict[str, Any]) -> list[str]:
        plain = torch.arange(-50, 50).reshape(4, 25)
        right = [kind for kind in KINDS if torch.equal(got[kind], plain.to(getattr(torch, kind)))]
        assert got["none"].shape == (0, 3) and got["one"].item() == 7
        return right

    def views_arrived(self, got: list[Any]) -> list[list[int]]:
        return [view.tolist() for view in got]

    def value(self, got: Any) -> tuple[int, int]:
        return int(got.min()), int(got.max())

    def regions(self) -> int:
        """Storages that others may get from here."""
        here = transport()
        return len(here._shown)

    def pid(self) -> int:
        return os.getpid()

    def meet(self, name: str, rank: int, size: int) -> list[int]:
        with (
            pyfab.Group.from_ray(name, rank, size, timeout=TIMEOUT) as group,
            group.window(np.full(3, rank)) as window,
        ):
            window.fence()
            told = [int(window[other][1]) for other in range(size)]
            window.fence()
        return told


@pytest.fixture(scope="module")
def actors() -> tuple[Any, Any]:
    """Two for all tests, as an actor takes seconds to start."""
    return Actor.remote(), Actor.remote()


def test_all_kinds_of_tensors_arrive(actors: tuple[Any, Any]) -> None:
    source, sink = actors
    assert ray.get(sink.kinds_arrived.remote(source.of_all_kinds.remote()), timeout=TIMEOUT) == list(KINDS)


def test_views_of_one_storage_are_one_region_and_go_with_their_object(actors: tuple[Any, Any]) -> None:
    source, sink = actors
    views = source.views.remote(2000)
    got = ray.get(sink.views_arrived.remote(views), timeout=TIMEOUT)
    assert got == [list(range(100 * number, 100 * number + 10)) for number in range(2000)]
    assert ray.get(source.regions.remote()) == 1
    del views
    deadline = time.monotonic() + TIMEOUT
    while ray.get(source.regions.remote()):
        assert time.monotonic() < deadline, "what nobody refers to is still open"


def test_many_at_once(actors: tuple[Any, Any]) -> None:
    source, sink = actors
    told = [sink.value.remote(source.large.remote(1 << 18, value)) for value in range(20)]
    assert ray.get(told, timeout=TIMEOUT) == [(value, value) for value in range(20)]


def test_a_tensor_with_gaps_is_refused_with_what_to_do(actors: tuple[Any, Any]) -> None:
    source, sink = actors
    with pytest.raises(Exception, match=r"tensor\.cpu\(\)\.contiguous\(\)"):
        ray.get(sink.value.remote(source.with_gaps.remote()), timeout=TIMEOUT)


def test_what_a_killed_actor_had_is_an_error(actors: tuple[Any, Any]) -> None:
    source, sink = actors
    kept = source.large.remote(1 << 20, 3)
    assert ray.get(sink.value.remote(kept), timeout=TIMEOUT) == (3, 3)
    victim = Actor.remote()
    lost = victim.large.remote(1 << 20, 4)
    assert ray.get(sink.value.remote(lost), timeout=TIMEOUT) == (4, 4)
    os.kill(ray.get(victim.pid.remote()), 9)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(sink.value.remote(lost), timeout=TIMEOUT)
    # Nobody else is ended by that.
    assert ray.get(sink.value.remote(kept), timeout=TIMEOUT) == (3, 3)


def test_a_transfer_that_ray_gives_up_ends() -> None:
    here = pyfab.ray.TensorTransport()
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        received = endpoint.recv(np.zeros(8, np.uint8))  # which nobody sends
        fetch = pyfab.ray.Fetch(obj_id="an object", tensors=[], operations=[received])
        with pytest.raises(TimeoutError):
            here.wait_fetch_complete(fetch, timeout=0.1)
        here.abort_transport("an object", here.get_communicator_metadata(None, None))
        with pytest.raises(pyfab.PeerLostError, match="given up"):
            here.wait_fetch_complete(fetch)


def test_actors_are_a_group(actors: tuple[Any, Any]) -> None:
    told = ray.get(
        [actor.meet.remote("a group", rank, 2) for rank, actor in enumerate(actors)], timeout=TIMEOUT
    )
    assert told == [[0, 1], [0, 1]]


@pytest.mark.slow
def test_a_hundred_killed_actors() -> None:
    sink = Actor.remote()
    for turn in range(100):
        victim = Actor.remote()
        pid = ray.get(victim.pid.remote())
        refs = [victim.large.remote(1 << 16, value) for value in range(8)]
        told = [sink.value.remote(ref) for ref in refs]
        os.kill(pid, 9)
        for value, answer in enumerate(told):
            try:
                assert ray.get(answer, timeout=TIMEOUT) == (value, value), f"turn {turn}"
            except ray.exceptions.RayError:
                continue
    assert ray.get(sink.regions.remote()) == 0
    ray.kill(sink)
