"""Tensors between actors of Ray, by one-sided gets from the memory of the actor that made them.

pyfab.ray.register()  # before the classes of actors

@ray.remote
class Source:
    @ray.method(tensor_transport="pyfab")
    def weights(self):
        return self.model.state_dict()

sink.load.remote(source.weights.remote())  # the tensors do not go through Ray's object store
"""

# ruff: noqa: ARG002  Ray says what it calls these methods with.

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyfab.core.deadline import Deadline
from pyfab.core.domain import Domain
from pyfab.core.endpoint import Endpoint, Operation
from pyfab.core.enums import Access
from pyfab.core.errors import InvalidArgumentError, OperationTimeout, PeerLostError
from pyfab.core.region import MemoryRegion, RemoteRegion
from pyfab.meeting.rendezvous_ray import KeyValueStore, links_of_this_node

try:
    import ray
    import torch
    from ray.experimental.rdt.tensor_transport_manager import (
        CommunicatorMetadata,
        FetchRequest,
        TensorTransportManager,
        TensorTransportMetadata,
    )
except ImportError as missing:
    raise ImportError(
        "pyfab.ray needs Ray 2.60 or later and PyTorch: pip install 'pyfab-rdma[ray]'"
    ) from missing

__all__ = ["NAME", "TensorTransport", "register"]

NAME = "PYFAB"
"""The name for `ray.method(tensor_transport=…)`, in capitals or not."""

_registered = False
_LOOK = 0.05  # seconds of waiting for a transfer between looks whether Ray has given it up
_MOST_PEERS = 1024  # actors whose endpoints are kept in the address vector
_MOST_ABORTED = 1024  # objects that Ray has given up and nobody has asked for since

_Key = tuple[int, int]
"""Address and bytes of a storage."""


def register() -> None:
    """Makes ``tensor_transport="pyfab"`` known to Ray. To be called by the process that makes the actors, before their classes.

    The tensors lie on the CPU. Actors on one node use shared memory, on several nodes tcp at the address that Ray uses. All
    actors of the cluster prove a random key, which lies in the key-value store of the cluster.
    """
    global _registered
    if not _registered:
        ray.experimental.register_tensor_transport(NAME, ["cpu"], TensorTransport, torch.Tensor)
        _registered = True


class _Place(NamedTuple):
    """Where a tensor lies: which of the regions, and which of its bytes."""

    region: int
    start: int
    stop: int


@dataclass
class Metadata(TensorTransportMetadata):  # type: ignore[misc]
    """What Ray hands from the actor that has the tensors to those that get them."""

    address: bytes = b""
    regions: list[bytes] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass
class Fetch(FetchRequest):  # type: ignore[misc]
    """Gets that are under way. The tensors are whole once they are waited for."""

    operations: list[Operation] = field(default_factory=list)


class _Shown:
    """A storage that others may get, and by how many objects it is used."""

    def __init__(self, region: MemoryRegion) -> None:
        self.region = region
        self.remote: bytes = region.remote.to_bytes()
        self.uses = 0


class TensorTransport(TensorTransportManager):  # type: ignore[misc]
    """What Ray calls in each process. Used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._here: Endpoint | None = None
        self._shown: dict[_Key, _Shown] = {}
        self._objects: dict[str, list[_Key]] = {}  # the storages of an object
        self._peers: OrderedDict[bytes, int] = OrderedDict()  # handles by address, those used last behind
        # Objects that Ray has given up. It tells both sides, also where nobody gets the object, so the last ones are kept.
        self._aborted: OrderedDict[str, None] = OrderedDict()

    # --- what it is

    def tensor_transport_backend(self) -> str:
        """Its name."""
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        """Only the actor that gets the tensors does something."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """A get that Ray has given up ends nobody."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Whether the actor's process can use it."""

        def usable(_: Any) -> bool:
            try:
                from pyfab.ray import NAME as name
            except ImportError:
                return False
            return bool(name)

        system = actor.__ray_call__.options(concurrency_group="_ray_system")
        return bool(ray.get(system.remote(usable)))

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        """Nothing: what is needed is in the metadata of the object."""
        return CommunicatorMetadata()

    def _endpoint(self) -> Endpoint:
        with self._lock:
            if self._here is None:
                key = KeyValueStore("tensor transport").set_once("key", secrets.token_bytes(32))
                self._here = Domain(**links_of_this_node(), auth_key=key).endpoint()
            return self._here

    # --- the actor that has the tensors

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        """Opens the memory of an object's tensors to the others. Views of one storage cost one registration."""
        storages, places = _laid_out(rdt_object)
        with self._lock:
            endpoint = self._endpoint() if storages else None
            with contextlib.ExitStack() as undo:
                for key, storage in storages.items():
                    self._show(key, storage)
                    undo.callback(self._let_go, key)
                former, self._objects[obj_id] = self._objects.get(obj_id, []), list(storages)
                undo.pop_all()
            for key in former:
                self._let_go(key)
            return Metadata(
                tensor_meta=[(tensor.shape, tensor.dtype) for tensor in rdt_object],
                tensor_device="cpu" if rdt_object else None,
                address=b"" if endpoint is None else endpoint.address,
                regions=[self._shown[key].remote for key in storages],
                places=places,
            )

    def _show(self, key: _Key, storage: Any) -> None:
        """Opens a storage to the others, for one more object."""
        if key not in self._shown:
            memory = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            domain: Any = self._endpoint()._domain
            self._shown[key] = _Shown(domain.register(memory, Access.REMOTE_READ))
        self._shown[key].uses += 1

    def _let_go(self, key: _Key) -> None:
        """Closes a storage, unless other objects use it."""
        shown = self._shown[key]
        shown.uses -= 1
        if not shown.uses:
            del self._shown[key]
            shown.region.close()

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Metadata, tensors: list[Any]) -> None:
        """Nobody gets the object any more."""
        with self._lock:
            self._aborted.pop(obj_id, None)
            for key in self._objects.pop(obj_id, []):
                self._let_go(key)

    def send_multiple_tensors(self, *_: Any) -> None:
        """Is not called, as the transport is one-sided."""
        raise InvalidArgumentError("tensors go by gets of the actor that wants them")

    # --- the actor that gets them

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> Fetch:
        """Starts to get an object's tensors, into `target_buffers` or new ones. Does not wait."""
        told = tensor_transport_metadata
        tensors = target_buffers or [torch.empty(shape, dtype=dtype) for shape, dtype in told.tensor_meta]
        fetch = Fetch(obj_id=obj_id, tensors=tensors)
        if not told.regions:
            return fetch
        with self._lock:
            self._check(obj_id)
            endpoint, peer = self._endpoint(), self._peer(told.address)
        regions = [RemoteRegion.from_bytes(region) for region in told.regions]
        for tensor, place in zip(tensors, told.places, strict=True):
            if place.region >= 0:
                source = regions[place.region].bytes(place.start, place.stop)
                fetch.operations.append(endpoint.read(tensor, peer, source))
        return fetch

    def _peer(self, address: bytes) -> int:
        peer = self._peers.pop(address, None)
        if peer is None:
            if len(self._peers) >= _MOST_PEERS:
                self._endpoint().av.remove(self._peers.popitem(last=False)[1])
            peer = self._endpoint().av.insert(address)
        self._peers[address] = peer
        return peer

    def wait_fetch_complete(self, fetch_request: Fetch, timeout: float = -1) -> list[Any]:
        """The tensors. TimeoutError after `timeout` seconds, which is forever if negative; what is under way goes on then.

        PeerLostError, within the domain's `peer_deadline`, if the actor that has them is gone.
        """
        deadline = Deadline(None if timeout < 0 else timeout)
        for operation in fetch_request.operations:
            while True:
                try:
                    operation.result(deadline.remaining(at_most=_LOOK))
                    break
                except OperationTimeout:
                    with self._lock:
                        self._check(fetch_request.obj_id)
                    if deadline.over:
                        raise
        with self._lock:
            self._aborted.pop(fetch_request.obj_id, None)  # it came too late
        tensors: list[Any] = fetch_request.tensors
        return tensors

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Gets an object's tensors."""
        started = self.fetch_multiple_tensors(
            obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
        )
        return self.wait_fetch_complete(started)

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Lets whoever waits for the object go."""
        with self._lock:
            self._aborted[obj_id] = None
            if len(self._aborted) > _MOST_ABORTED:
                self._aborted.popitem(last=False)

    def _check(self, obj_id: str) -> None:
        if obj_id in self._aborted:
            del self._aborted[obj_id]
            raise PeerLostError(f"Ray has given up the transfer of object {obj_id}")


def _laid_out(tensors: list[Any]) -> tuple[dict[_Key, Any], list[_Place]]:
    """The storages of tensors, and the place of each tensor in them. InvalidArgumentError for one that cannot be got."""
    storages: dict[_Key, Any] = {}
    numbers: dict[_Key, int] = {}
    places = []
    for tensor in tensors:
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise InvalidArgumentError(
                f"a tensor of shape {tuple(tensor.shape)} on {tensor.device}: tensors that go by pyfab lie on the CPU, in"
                " one piece: tensor.cpu().contiguous()"
            )
        nbytes = tensor.numel() * tensor.element_size()
        if not nbytes:
            places.append(_Place(-1, 0, 0))
            continue
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), storage.nbytes()
        storages.setdefault(key, storage)
        start = tensor.data_ptr() - key[0]
        places.append(_Place(numbers.setdefault(key, len(numbers)), start, start + nbytes))
    return storages, places
