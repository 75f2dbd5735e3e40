"""Tensors of torch: types that NumPy lacks, gaps, gradients, and shards of torch's own kind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyfab
import pytest
from pyfab.weights import Publisher, Reader

torch = pytest.importorskip("torch")


@pytest.fixture
def endpoint() -> Iterator[pyfab.Endpoint]:
    with pyfab.Domain("shm") as domain, domain.endpoint() as opened:
        yield opened


def test_a_model_is_published_and_pulled(endpoint):
    one, other = (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)) for _ in range(2))
    publisher = Publisher(endpoint, one.state_dict(), checksums=True)
    with torch.no_grad():
        one[0].weight += 1  # in place, so the publisher has it
    publisher.publish(1)
    reader = Reader(endpoint, [publisher.card])
    assert reader.pull(dict(other.named_parameters())) == 1
    assert reader.pull(other.state_dict()) == 1
    for name, tensor in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "bool", "complex64", "int64"])
def test_types_and_gaps(endpoint, dtype):
    dtype = getattr(torch, dtype)
    x = (torch.arange(24).reshape(4, 6) % 7).to(dtype)
    publisher = Publisher(endpoint, [x.T, x[1, 2], x[:0]])
    publisher.publish(1)
    reader = Reader(endpoint, [publisher.card])
    gaps = torch.zeros(6, 8, dtype=dtype)[:, ::2]
    number = torch.zeros((), dtype=dtype)
    reader.pull([gaps, number, x[:0]])
    assert torch.equal(gaps.to(torch.complex128), x.T.to(torch.complex128))
    assert number == x[1, 2] == 1
    if not dtype.is_complex:
        wide = [torch.zeros(6, 4, dtype=torch.float64)]
        reader.pull(wide, plan=reader.plan(wide, convert=True))
        assert torch.equal(wide[0], x.T.to(torch.float64))


def test_a_dtensor_is_a_shard():
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    tensors = pytest.importorskip("torch.distributed.tensor")
    from pyfab.weights._tensors import leaves_of

    torch.distributed.init_process_group("fake", rank=2, world_size=4, store=fake.FakeStore())
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (4,))
        whole = torch.arange(40.0).reshape(10, 4)
        spread = tensors.distribute_tensor(whole, mesh, [tensors.Shard(0)], src_data_rank=None)
        (leaf,) = leaves_of({"x": spread}).values()
        assert leaf.kind == ("float32", 4, (10, 4))
        assert leaf.box == ((6, 9), (0, 4))  # rows of 3, 3, 3 and 1
        memory = np.zeros(leaf.nbytes, np.uint8)
        leaf.give(memory)
        np.testing.assert_array_equal(memory.view(np.float32).reshape(3, 4), whole[6:9].numpy())
    finally:
        torch.distributed.destroy_process_group()
