"""A `ShardedStore` for PyTorch: a map-style data set for any DataLoader, and a loader without worker processes.

dataset = pyfab.torch.ShardedDataset(store)
sampler = pyfab.torch.GlobalShuffle(len(dataset), batch_size=256)
loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=2)  # or
loader = pyfab.torch.ShardedLoader(store, sampler)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.buffers import array_of
from pyfab.core.errors import InvalidArgumentError
from pyfab.data import GlobalShuffle, Ragged
from pyfab.data._dtypes import NARROW, dtype_of, without_tensors
from pyfab.data._loader import B, Loader, Slot

try:
    import torch
    from torch.utils.data import Dataset, get_worker_info
    from torch.utils.data._utils.collate import default_collate_fn_map
except ImportError as missing:
    raise ImportError("pyfab.torch needs PyTorch: pip install torch") from missing

if TYPE_CHECKING:
    from pyfab.data import FieldInfo, ShardedStore

__all__ = ["GlobalShuffle", "Sample", "Samples", "ShardedDataset", "ShardedLoader"]


def tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a batch as tensors of the same memory; a ragged field becomes (values, cu_seqlens)."""
    return {name: _tensor(values) for name, values in batch.items()}


def _tensor(values: Any) -> Any:
    if isinstance(values, Ragged):
        return _of_array(values.values), torch.from_numpy(values.cu_seqlens)
    return _of_array(values)


def _of_array(values: NDArray[Any]) -> Any:
    """A tensor of the same memory, also of bfloat16 and float8, which torch does not take from NumPy."""
    if (
        values.dtype.isbuiltin == 1
    ):  # of NumPy itself; to ask for the name of a dtype takes longer than a tensor
        return torch.from_numpy(values)
    name = values.dtype.name
    if name not in NARROW:
        return torch.from_numpy(values)
    plain = values.view(np.int16 if values.itemsize == 2 else np.uint8)
    return torch.from_numpy(plain).view(getattr(torch, name))


def _check_dtypes(store: ShardedStore, names: Sequence[str] | None) -> None:
    """InvalidArgumentError, naming the fields, if torch has no tensors of their dtypes."""
    refused = [
        f"{field.name!r} is {field.numpy}" for field in store._chosen(names) if not _has_tensors(field.dtype)
    ]
    if refused:
        raise InvalidArgumentError(
            f"torch has no tensors of some fields: {', '.join(refused)}. Name the others in fields=, or store these as numbers"
            " that torch has: times as array.view('int64'), texts as Ragged.from_samples(texts), another byte order as"
            " array.astype(array.dtype.newbyteorder('='))"
        )


def _has_tensors(dtype: str) -> bool:
    try:
        _of_array(np.empty(0, dtype_of(dtype)))
    except (TypeError, ValueError, AttributeError):
        return False
    return True


class Samples(Sequence["Sample"]):
    """What `ShardedDataset.__getitems__` returns: the samples of a batch, which were read together.

    Item i is a `Sample`; the default collate function takes the whole batch as it is, without a copy.
    """

    def __init__(self, batch: Mapping[str, Any], count: int, shared: Mapping[str, Any] | None = None) -> None:
        self.batch = batch
        self._count = count
        # In a worker, the shared tensors whose memory the batch was read to: these are sent on.
        self._shared = shared
        self._rows = _Rows(batch)

    def tensors(self) -> dict[str, Any]:
        """The batch as `tensors` gives it."""
        made = tensors(self.batch)
        for name, tensor in (self._shared or {}).items():
            made[name] = (tensor, made[name][1]) if isinstance(made[name], tuple) else tensor
        return made

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        return Sample(self, range(self._count)[index])

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample, repeat(self, self._count), range(self._count))


class _Rows(dict[str, "list[Any]"]):
    """Tensors of single samples, by field: made for a whole batch when one is asked for, and each given away once."""

    def __init__(self, batch: Mapping[str, Any]) -> None:
        self._batch = batch

    def __missing__(self, name: str) -> list[Any]:
        values = self._batch[name]
        if isinstance(values, Ragged):
            rows = torch.unsafe_split_with_sizes(_of_array(values.values), values.lengths.tolist())
        elif values.ndim > 1:
            rows = torch.unsafe_split(_of_array(values).flatten(0, 1), values.shape[1])
        elif values.dtype.kind in "biu":
            rows = _of_array(values).unbind()
        else:  # views of one tensor would all have a gradient once one of them has; integers have none
            rows = [_of_array(values[index, ...]) for index in range(len(values))]
        self[name] = made = list(rows)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _Rows, (self._batch,)  # another process makes tensors of its own

    def again(self, name: str, index: int) -> Any:
        """Another tensor of a sample, as whoever got the first one may have changed its shape."""
        values = self._batch[name]
        return _of_array(values[index] if isinstance(values, Ragged) else values[index, ...])


class Sample(Mapping[str, Any]):
    """One sample of a batch: its fields as tensors, which share the batch's memory."""

    __slots__ = ("_rows", "index", "samples")

    def __init__(self, samples: Samples, index: int) -> None:
        self.samples, self.index = samples, index
        self._rows = samples._rows

    def __getitem__(self, name: str) -> Any:
        index = self.index
        rows = self._rows[name]
        row = rows[index]
        if row is None:
            return self._rows.again(name, index)
        rows[index] = None
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(self.samples.batch)

    def __len__(self) -> int:
        return len(self.samples.batch)


def _collate(batch: Any, *, collate_fn_map: Any = None) -> dict[str, Any]:
    """Collates samples: those of one gather stay as they are, others are put together again."""
    del collate_fn_map
    if isinstance(batch, Samples):
        return batch.tensors()
    together: dict[str, Any] = {}
    for name in batch[0]:
        first = batch[0].samples.batch[name]
        if isinstance(first, Ragged):
            rows = [sample.samples.batch[name][sample.index] for sample in batch]
            together[name] = _tensor(Ragged.from_samples(rows, first.values.dtype))
        else:
            together[name] = torch.stack([sample[name] for sample in batch])
    return together


default_collate_fn_map.update({Sample: _collate})


class ShardedDataset(Dataset):  # type: ignore[misc, unused-ignore]
    """The samples of a store for `torch.utils.data.DataLoader`.

    Whatever works on data sets works on it: `Subset`, `random_split`, collate functions of your own, workers started in any way.
    A batch is read by one gather. Without `transform`, the default collate function gives a dict of tensors of the very memory
    that the batch was read to, so nothing is copied; in a worker it is shared memory. A ragged field gives (values, cu_seqlens).
    transform: called with each sample, a mapping of tensors; what it returns is collated as usual. fields: names of those that
    are read, by default all; InvalidArgumentError names those of which torch has no tensors.

    Worker processes open their own way to the memory of the ranks when they first read, and inherit none.
    """

    def __init__(
        self,
        store: ShardedStore,
        transform: Callable[[Any], Any] | None = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        self.store, self.transform = store, transform
        _check_dtypes(store, fields)
        self.fields = None if fields is None else tuple(fields)

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        return f"ShardedDataset({self.store!r})"

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: Any) -> Sequence[Any]:
        indices = np.asarray(indices, np.int64)
        shared = self._shared(indices) if get_worker_info() is not None and self.transform is None else None
        out = (
            None
            if shared is None
            else {name: array_of(without_tensors(tensor)) for name, tensor in shared.items()}
        )
        samples = Samples(self.store.gather(indices, out, fields=self.fields), len(indices), shared)
        return samples if self.transform is None else [self.transform(sample) for sample in samples]

    def _shared(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        """Shared memory for a worker's tensors, so that the batch is read to where the main process finds it."""
        out = {}
        for field, count in self.store._engine(self.fields).sizes(indices):
            empty = _of_array(np.empty((0, *field.shape), field.numpy))
            if count:
                storage = torch.UntypedStorage._new_shared(count * field.row)
                empty = empty.new_empty(0).set_(storage, 0, (count, *field.shape))
            out[field.name] = empty
        return out


class ShardedLoader(Loader[B]):
    """A `pyfab.data.Loader` whose batches are dicts of tensors; a ragged field gives (values, cu_seqlens).

    InvalidArgumentError names fields of which torch has no tensors; `fields=` leaves them out. pin_memory: whether batches are
    in page-locked memory, so that `tensor.to("cuda", non_blocking=True)` overlaps; by default, if there is CUDA; where there is
    none, True warns and changes nothing. With `copy=False`, the memory of a batch is filled again only after the copies from it
    to the GPU; these must be on the stream that is current when the next batch is asked for.
    """

    def __init__(
        self,
        store: ShardedStore,
        sampler: GlobalShuffle | Any,
        depth: int = 4,
        pin_memory: bool | None = None,
        copy: bool = True,
        *,
        batch: type[B] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(store, sampler, depth, copy=copy, batch=batch, **options)
        _check_dtypes(store, self._fields)
        here = torch.cuda.is_available()
        if pin_memory and not here:
            warnings.warn(
                "pin_memory=True: torch finds no GPU, so batches are in ordinary memory (torch.cuda.is_available())",
                RuntimeWarning,
                stacklevel=2,
            )
        self.pin_memory = here and pin_memory is not False

    @property
    def batch_sampler(self) -> Any:
        """The sampler, where training frameworks look for it."""
        return self.sampler

    def _given(self, batch: Any) -> Any:
        given = tensors(batch)
        if not (self.pin_memory and self.copy):
            return given
        return {
            name: tuple(part.pin_memory() for part in value)
            if isinstance(value, tuple)
            else value.pin_memory()
            for name, value in given.items()
        }

    def _new(self, field: FieldInfo, count: int) -> NDArray[Any]:
        if not self.pin_memory:
            return super()._new(field, count)
        pinned = torch.empty(count * field.row, dtype=torch.uint8, pin_memory=True)
        array: NDArray[Any] = pinned.numpy().view(field.numpy).reshape((count, *field.shape))
        return array

    def _taken_back(self, slot: Slot) -> None:
        if self.pin_memory and not self.copy:
            slot.event = torch.cuda.Event()
            slot.event.record()

    def _wait_for(self, slot: Slot) -> None:
        event, slot.event = slot.event, None
        if event is not None:
            event.synchronize()
