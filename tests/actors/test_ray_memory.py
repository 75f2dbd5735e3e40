"""What the transport for Ray keeps in one process, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyfab
import pytest

pytest.importorskip("ray")
torch = pytest.importorskip("torch")

import pyfab.ray  # noqa: E402  where there is a Ray


@pytest.fixture
def transport() -> Iterator[Any]:
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        made = pyfab.ray.TensorTransport()
        made._here = endpoint
        yield made
        assert not made._shown, "regions of nobody's objects are left"


def test_a_refused_object_leaves_nothing_open(transport: Any) -> None:
    gaps = torch.zeros(4, 4)[:, 1]
    with pytest.raises(pyfab.InvalidArgumentError, match="contiguous"):
        transport.extract_tensor_transport_metadata("one", [torch.zeros(5), gaps])
    assert not transport._shown


def test_an_object_that_is_shown_again_is_open_once(transport: Any) -> None:
    tensor = torch.zeros(5)
    for _ in range(2):
        told = transport.extract_tensor_transport_metadata("one", [tensor, tensor[2:]])
    assert [tuple(place) for place in told.places] == [(0, 0, 20), (0, 8, 20)]
    transport.garbage_collect("one", told, [])


def test_what_ray_gives_up_is_not_remembered_for_ever(transport: Any) -> None:
    tensor = torch.arange(5)
    told = transport.extract_tensor_transport_metadata("one", [tensor])
    for number in range(3000):
        transport.abort_transport(f"never asked for {number}", None)
    assert len(transport._aborted) <= 1024
    transport.abort_transport("one", None)
    with pytest.raises(pyfab.PeerLostError, match="given up"):
        transport.recv_multiple_tensors("one", told, None)
    (found,) = transport.recv_multiple_tensors("one", told, None)
    assert torch.equal(found, tensor)
    transport.abort_transport("one", None)
    transport.garbage_collect("one", told, [])
    assert "one" not in transport._aborted
