"""A storage of `torch.distributed.checkpoint` in the memory of other ranks.

writer = pyfab.checkpoint.torch.MemoryWriter(group, replicas=1)
dcp.save(state_dict, storage_writer=writer)

group = group.shrink()  # after a rank has died
with pyfab.checkpoint.torch.MemoryReader(group, writer) as reader:
    dcp.load(state_dict, storage_reader=reader)
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pickle
from collections import defaultdict
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyfab.checkpoint._checkpoint import Checkpoint
from pyfab.checkpoint._recovery import Recovered, recover
from pyfab.core.errors import ClosedError, InvalidArgumentError
from pyfab.group.group import Group
from pyfab.weights._tensors import Shard

try:
    import torch
    from torch.distributed.checkpoint import StorageReader, StorageWriter
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
    from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, SavePlan, WriteItemType
    from torch.distributed.checkpoint.storage import WriteResult
    from torch.futures import Future
except ImportError as missing:
    raise ImportError("pyfab.checkpoint.torch needs PyTorch: pip install torch") from missing

__all__ = ["MemoryReader", "MemoryWriter"]

_CALL = "dcp.save() with a MemoryWriter"
_OBJECTS, _METADATA = (
    "objects",
    "metadata",
)  # what a rank saves beside its tensors, which have numbers as names
_ROOM = 64 << 10  # bytes for pickles that are there at least; they may become twice as long as they are


class _Stored(NamedTuple):
    """Where an item is: the rank that saved it, what its tensor is called there and its shape, or which bytes of an object."""

    owner: int
    name: str
    shape: tuple[int, ...]
    offset: int = 0


class MemoryWriter(StorageWriter):  # type: ignore[misc, unused-ignore]
    """A storage writer for `dcp.save` and `dcp.async_save`: it keeps a state_dict in the memory of other ranks.

    It uses a `Checkpoint` of the group; the options are those of `Checkpoint`. When `dcp.save` returns, `replicas` other ranks
    hold the save. A save that was under way when a rank died, or that timed out, does not count at all. The first save reserves
    memory, and so does a save of other tensors than before, or after one that timed out; until that one is done, the old memory
    stays, with the last save. Python objects of the state may grow to twice their former size before new memory is needed.

    The processes are those of the process group that `dcp.save` uses. Its errors are torch's CheckpointException, which names the
    errors of all ranks. The thread that saves uses the group; with `dcp.async_save` it is a thread of torch. Nothing else may use
    the group meanwhile, so make a group for the writer alone.
    """

    def __init__(
        self,
        group: Group,
        replicas: int = 1,
        *,
        checksums: bool = False,
        block_size: int | None = None,
        timeout: float | None = 60,
    ) -> None:
        group._check()
        self._group = group
        self._options: dict[str, Any] = {
            "replicas": replicas,
            "checksums": checksums,
            "block_size": block_size,
            "timeout": timeout,
        }
        self._id: str | None = None
        self._closed = False
        self._checkpoint: Checkpoint | None = None
        self._former: Checkpoint | None = None  # the one before, until all of a save is in the present one
        self._kinds: Any = None  # of the tensors that the checkpoint was made for
        self._rooms: dict[str, NDArray[np.uint8]] = {}
        self._state: dict[str, Any] = {}
        self._version = 0
        self._needed = 0  # bytes that the metadata may take
        self._coordinates = False

    # --- what torch.distributed.checkpoint calls, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Sets the name of the next save, which `MemoryReader.checkpoint_id` returns."""
        self._id = None if checkpoint_id is None else os.fspath(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        """What the planner is told."""
        return StorageMeta(checkpoint_id=self._id)

    def set_up_storage_writer(self, is_coordinator: bool) -> None:
        """Whether this rank has the metadata."""
        if self._closed:
            raise ClosedError("the writer is closed")
        self._coordinates = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """With where this rank is among the collective calls of the group: after a save that timed out, ranks may differ."""
        control = self._group._control
        return dataclasses.replace(plan, storage_data=(control.coming, control.begun))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """With the last call that not all ranks have completed. The metadata says of each item about what the plans say."""
        self._needed = _ROOM + 2 * len(pickle.dumps(plans))
        calls = {plan.storage_data for plan in plans if plan.storage_data is not None}
        left = None
        if len(calls) > 1 or any(begun for _, begun in calls):
            left = max(coming for coming, _ in calls)
        return [dataclasses.replace(plan, storage_data=left) for plan in plans]

    def write_data(self, plan: SavePlan, planner: Any) -> Future[list[WriteResult]]:
        """Saves this rank's items; the coordinator waits for the metadata."""
        call = _CALL, f"take part in {_CALL}"
        if plan.storage_data is not None:
            self._group._control.catch_up(plan.storage_data, self._group.timeout)

        def begin() -> tuple[tuple[dict[str, Any], bytes, list[Any]], Any]:
            tensors, objects, stored = self._items(plan, planner)
            kinds = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
            sizes = {_OBJECTS: len(objects), _METADATA: self._needed if self._coordinates else 0}
            fits = kinds == self._kinds and all(
                size <= len(self._rooms.get(name, ())) for name, size in sizes.items()
            )
            return (tensors, objects, stored), [fits, self._done(), self._version]

        (tensors, objects, stored), told = self._group._make_together(begin, self._group.timeout, *call)
        self._version = max(version for _, _, version in told) + 1
        saves = {saves for _, saves, _ in told}
        done = len(saves) == 1 and None not in saves
        if done and saves != {0}:
            self._end_former()
        if not done or not all(fits for fits, _, _ in told):
            self._make_room(tensors, len(objects))
        self._rooms[_OBJECTS][: len(objects)] = np.frombuffer(objects, np.uint8)
        self._state = {**tensors, **self._rooms}
        if not self._coordinates:
            self._save()
        future: Future[list[WriteResult]] = Future()
        future.set_result(stored)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Saves the coordinator's items with the metadata, and waits until all ranks' items are held."""
        metadata.storage_data = {each.index: each.storage_data for of_rank in results for each in of_rank}
        metadata.storage_meta = self.storage_meta()
        data, room = pickle.dumps(metadata), self._rooms[_METADATA]
        if len(data) > len(room):
            raise InvalidArgumentError(
                f"the metadata takes {len(data)} bytes, and there is room for {len(room)}: save with a new MemoryWriter"
            )
        room[: len(data)] = np.frombuffer(data, np.uint8)
        self._save()
        assert self._checkpoint is not None
        self._checkpoint.wait()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No name leads here: the writer is given."""
        del checkpoint_id
        return False

    # --- how

    def _items(self, plan: SavePlan, planner: Any) -> tuple[dict[str, Any], bytes, list[WriteResult]]:
        """The tensors by name, the pickled objects one after the other, and what is told of all."""
        tensors: dict[str, Any] = {}
        objects = io.BytesIO()
        results = []
        for number, item in enumerate(plan.items):
            found = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                data = found.getbuffer()
                stored = _Stored(self._group.rank, _OBJECTS, (len(data),), objects.tell())
                objects.write(data)
                size = len(data)
            else:
                tensors[str(number)] = tensor = found.detach()
                stored = _Stored(self._group.rank, str(number), tuple(tensor.shape))
                size = tensor.numel() * tensor.element_size()
            results.append(WriteResult(item.index, size, tuple(stored)))
        return tensors, objects.getvalue(), results

    def _done(self) -> int | None:
        """How many saves to the present checkpoint are done; None if the last one has failed, or does not end."""
        if self._checkpoint is None:
            return 0
        timeout = self._group.timeout
        try:
            self._checkpoint.wait(None if timeout is None else timeout / 2)  # the others wait for this rank
        except Exception:  # the save has raised it before
            return None
        return self._checkpoint._saves

    def _make_room(self, tensors: dict[str, Any], objects: int) -> None:
        """A checkpoint for such tensors. The one before stays if it holds what was saved last."""
        if self._checkpoint is not None:
            self._checkpoint._give_up()
            if self._former is None:
                self._former = self._checkpoint
            else:  # nothing was ever wholly saved to it
                self._checkpoint.close()
        self._checkpoint = self._kinds = None
        sizes = {_OBJECTS: _ROOM + 2 * objects}
        if self._coordinates:
            sizes[_METADATA] = self._needed
        self._rooms = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
        # Tensors without memory, as each save brings its own.
        layout = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            for name, tensor in tensors.items()
        }
        self._checkpoint = Checkpoint(self._group, {**layout, **self._rooms}, **self._options)
        self._kinds = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}

    def _save(self) -> None:
        assert self._checkpoint is not None
        self._checkpoint.save(self._version, self._state)
        self._state = {}

    def _end_former(self) -> None:
        former, self._former = self._former, None
        if former is not None:
            former.close()

    def close(self) -> None:
        """Frees the memory. Do it after others have loaded from here. Local. Closing twice is harmless."""
        self._closed = True
        self._end_former()
        if self._checkpoint is not None:
            self._checkpoint.close()

    def __enter__(self) -> MemoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes; after an exception without waiting for what is under way."""
        if kind is not None and self._checkpoint is not None:
            self._checkpoint._give_up()
        self.close()

    def __repr__(self) -> str:
        return f"MemoryWriter({self._checkpoint or self._group})"


class MemoryReader(StorageReader):  # type: ignore[misc, unused-ignore]
    """A storage reader for `dcp.load`: the last save to a `MemoryWriter` that was done on all ranks.

    group: the remaining ranks, from `Group.shrink`, and new ones, as for `recover`. writer: that of the former group; new ranks
    pass None. Collective over `group`, as is `close`. Keep the writer open until then; make a new writer for the next save. The
    loading processes may be others, and more or fewer, than those that saved, as DCP allows.

    PeerLostError if more ranks have died than there are replicas. InvalidArgumentError if nothing was saved.
    """

    def __init__(self, group: Group, writer: MemoryWriter | None = None) -> None:
        self._recovered = _recovered(group, writer)
        self._metadata = self._read_metadata()
        self._wanted: str | None = None

    @property
    def checkpoint_id(self) -> str | None:
        """The name that was given to `dcp.save`."""
        found = self._metadata.storage_meta
        return None if found is None or found.checkpoint_id is None else str(found.checkpoint_id)

    def _read_metadata(self) -> Metadata:
        for owner in range(self._recovered.size):
            if _METADATA in (there := self._recovered.tensors(owner)):
                room = np.zeros(there[_METADATA][1], np.uint8)
                self._recovered.read({_METADATA: room}, owner)
                return pickle.loads(room.data)
        raise InvalidArgumentError("the checkpoint was not saved through a MemoryWriter")

    # --- what torch.distributed.checkpoint calls, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Sets the name of the save to load."""
        self._wanted = None if checkpoint_id is None else os.fspath(checkpoint_id)

    def read_metadata(self) -> Metadata:
        """Returns the metadata of the save. InvalidArgumentError if `reset` asked for a save of another name."""
        if self._wanted not in (None, self.checkpoint_id):
            raise InvalidArgumentError(
                f"checkpoint_id={self._wanted!r}: the last save is {self.checkpoint_id!r}; ask for that, or for none"
            )
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """The metadata is what `read_metadata` has."""
        del metadata, is_coordinator

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: Any) -> Future[None]:
        """Reads the items, those of each former rank together."""
        objects: dict[int, NDArray[np.uint8]] = {}
        batches: dict[tuple[int, int], dict[str, Any]] = defaultdict(dict)
        times: dict[tuple[int, str], int] = defaultdict(int)
        targets = []
        for item in plan.items:
            stored = _Stored(*self._metadata.storage_data[item.storage_index])
            if item.type == LoadItemType.BYTE_IO:
                if stored.owner not in objects:
                    (size,) = self._recovered.tensors(stored.owner)[_OBJECTS][1]
                    objects[stored.owner] = np.zeros(size, np.uint8)
                    self._recovered.read({_OBJECTS: objects[stored.owner]}, stored.owner)
                data = objects[stored.owner][stored.offset : stored.offset + stored.shape[0]]
                planner.load_bytes(item, io.BytesIO(data.tobytes()))
                continue
            target = planner.resolve_tensor(item).detach()
            targets.append((item, target))
            if target.numel():
                # Parts of one tensor are read one after the other, as a name stands for one array of a read.
                number = times[stored.owner, stored.name]
                times[stored.owner, stored.name] += 1
                batches[stored.owner, number][stored.name] = Shard(target, item.storage_offsets, stored.shape)
        for (owner, _), batch in batches.items():
            self._recovered.read(batch, owner, convert=True)
        for item, target in targets:
            planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No name leads here: the reader is given."""
        del checkpoint_id
        return False

    def close(self) -> None:
        """Waits until all ranks have loaded what they need. Collective."""
        self._recovered.close()

    def __enter__(self) -> MemoryReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes; after an exception without waiting for the others."""
        self._recovered.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"MemoryReader({self._recovered})"


def _recovered(group: Group, writer: MemoryWriter | None) -> Recovered:
    """What the present checkpoint has, or else the former one.

    A rank died while all made room, so some have no new checkpoint, or before anything was wholly saved to it. All ranks find the
    same, so all turn to the former one.
    """
    present, former = (None, None) if writer is None else (writer._checkpoint, writer._former)
    with contextlib.suppress(InvalidArgumentError):
        return recover(group, present or former)
    return recover(group, former or present)
