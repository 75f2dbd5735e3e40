"""Batches on their way to a GPU, and memory of a GPU that a program hands to the library by mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, ShardedStore

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SAMPLES, WIDTH, BATCH = 1024, 16384, 32
TIMEOUT = 60
BUSY = 20_000_000  # clock cycles that the GPU is kept busy before each copy: some 10 ms


def numbered(first: int, count: int) -> dict[str, Any]:
    """Samples whose every element is the sample's number."""
    numbers = np.arange(first, first + count, dtype=np.int32)
    return {"values": np.repeat(numbers[:, None], WIDTH, axis=1)}


def wrong_samples(store: ShardedStore, group: pyfab.Group, kind: type, **options: Any) -> int:
    """How many samples of an epoch are others on the GPU, whose copies begin long after the next batches were asked for."""
    order, same = (GlobalShuffle(SAMPLES, BATCH, seed=1, rank=group.rank, size=group.size) for _ in range(2))
    expected = [torch.as_tensor(numbers, device="cuda") for numbers in same]
    wrong = []
    for numbers, batch in zip(expected, kind(store, order, depth=2, **options), strict=True):
        assert all(tensor.is_pinned() for tensor in batch.values())
        torch.cuda._sleep(BUSY)
        there = batch["values"].to("cuda", non_blocking=True)
        wrong.append((there != numbers[:, None]).any(dim=1).sum())
    return int(sum(wrong))


def lent_memory_waits_for_the_gpu(group: pyfab.Group) -> None:
    from pyfab.torch import ShardedLoader

    class Hasty(ShardedLoader):
        """Fills memory again without regard to the GPU."""

        def _wait_for(self, slot: int) -> None:
            pass

    half = SAMPLES // group.size
    with ShardedStore(group, numbered(group.rank * half, half)) as store:
        for options in ({}, {"copy": False}):
            assert wrong_samples(store, group, ShardedLoader, **options) == 0, options
        assert wrong_samples(store, group, Hasty, copy=False) > 0


@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_memory_that_is_lent_is_filled_again_after_the_copies_to_the_gpu(links):
    pyfab.spawn(lent_memory_waits_for_the_gpu, 2, links=links, timeout=TIMEOUT)


def test_a_model_on_the_gpu_learns_from_the_memory_of_all_ranks():
    pyfab.spawn(learns, 2, links="shm", timeout=TIMEOUT)


def learns(group: pyfab.Group) -> None:
    from pyfab.torch import ShardedLoader

    generator = np.random.default_rng(group.rank)
    x = generator.standard_normal((2048, 8), np.float32)
    truth = np.arange(8, dtype=np.float32)
    with ShardedStore(group, {"x": x, "y": x @ truth}) as store:
        order = GlobalShuffle(len(store), 64, seed=2, rank=group.rank, size=group.size)
        loader = ShardedLoader(store, order, copy=False)
        weights = torch.zeros(8, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weights], lr=0.1)
        for _ in range(3):
            for batch in loader:
                x_there, y_there = (batch[name].to("cuda", non_blocking=True) for name in ("x", "y"))
                loss = ((x_there @ weights - y_there) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        assert loss.item() < 1e-3
        np.testing.assert_allclose(weights.detach().cpu().numpy(), truth, atol=0.05)


@pytest.fixture
def ends():
    with (
        pyfab.Domain("shm") as here,
        pyfab.Domain("shm") as there,
        here.endpoint() as initiator,
        there.endpoint() as target,
    ):
        yield initiator, target


def test_the_gpu_reads_what_peers_put_into_page_locked_memory(ends):
    initiator, target = ends
    peer = initiator.av.insert(target.address)
    landing = torch.zeros(1 << 20, dtype=torch.int64, pin_memory=True)
    with target._domain.register(landing, pyfab.Access.REMOTE) as region:
        for turn in range(20):
            initiator.write(np.full(landing.numel(), turn), peer, region.remote).result(TIMEOUT)
            assert (landing.to("cuda", non_blocking=True) == turn).all().item(), turn


def test_the_gpu_reads_what_peers_put_into_mapped_memory(ends):
    initiator, target = ends
    peer = initiator.av.insert(target.address)
    memory = target._domain.alloc((1 << 20,), np.int64)
    locked = torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
    assert int(locked) == 0
    try:
        landing = torch.from_numpy(memory)
        assert landing.is_pinned()
        with target._domain.register(memory, pyfab.Access.REMOTE) as region:
            for turn in range(20):
                initiator.write(np.full(len(memory), turn), peer, region.remote).result(TIMEOUT)
                assert (landing.to("cuda", non_blocking=True) == turn).all().item(), turn
    finally:
        torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)


def _cupy() -> Any:
    return pytest.importorskip("cupy").arange(64)


def _jax() -> Any:
    jax = pytest.importorskip("jax")
    array = jax.numpy.arange(64)
    if array.device.platform == "cpu":
        pytest.skip("JAX has no GPU")
    return array


ON_THE_GPU = {"torch": lambda: torch.arange(64, device="cuda"), "cupy": _cupy, "jax": _jax}


@pytest.mark.parametrize("make", ON_THE_GPU.values(), ids=ON_THE_GPU)
def test_memory_of_the_gpu_is_refused_with_the_way_out(ends, make):
    initiator, target = ends
    there = make()
    peer = initiator.av.insert(target.address)
    with pytest.raises(pyfab.NotSupportedError, match=r"memory of a device \(CUDA.*dma-buf"):
        target._domain.register(there, pyfab.Access.REMOTE)
    with target._domain.register(np.zeros(64, np.int64), pyfab.Access.REMOTE) as region:
        for move in (initiator.write, initiator.read):
            with pytest.raises(pyfab.NotSupportedError, match=r"memory of a device \(CUDA"):
                move(there, peer, region.remote)
    with pytest.raises(pyfab.NotSupportedError, match=r"memory of a device \(CUDA"):
        initiator.send(there, peer)
