"""Windows with the methods of mpi4py's `MPI.Win`, so that tests written for those run against pyfab's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyfab
from mpi4py import MPI
from pyfab import AtomicOp

OPERATIONS = [  # an Op cannot be hashed
    (MPI.SUM, AtomicOp.SUM),
    (MPI.PROD, AtomicOp.PROD),
    (MPI.MAX, AtomicOp.MAX),
    (MPI.MIN, AtomicOp.MIN),
    (MPI.REPLACE, AtomicOp.ATOMIC_WRITE),
    (MPI.NO_OP, AtomicOp.ATOMIC_READ),
]
GROUPS: dict[Any, pyfab.Group] = {}  # by communicator: opened once


def group_of(comm: Any) -> pyfab.Group:
    key = comm.handle
    if key not in GROUPS:
        GROUPS[key] = pyfab.Group(comm.Get_rank(), comm.Get_size(), rendezvous=comm)
    return GROUPS[key]


def kind_of(op: Any) -> AtomicOp:
    return next(mine for theirs, mine in OPERATIONS if theirs == op)


def local(spec: Any) -> Any:
    """The array that a message specification names: buffer, (buffer, datatype) or (buffer, count, datatype)."""
    if spec is None:
        return np.zeros(0, np.uint8)
    if not isinstance(spec, (list, tuple)):
        spec = (spec, MPI.BYTE)
    buffer, datatype = spec[0], spec[-1]
    dtype = np.dtype(datatype.typechar) if datatype != MPI.BYTE else np.dtype(np.uint8)
    if buffer is None:
        return np.zeros(0, dtype)
    buffer = MPI.buffer(buffer)  # also of what only has an array interface
    count = spec[1] if len(spec) == 3 else buffer.nbytes // dtype.itemsize
    if count == 0:
        return np.zeros(0, dtype)
    return np.frombuffer(buffer, np.uint8)[: count * dtype.itemsize].view(dtype)


def one_element(spec: Any) -> None:
    if (size := local(spec).size) != 1:
        raise ValueError(f"message: {size} elements, expecting one")


class Request:
    """What is left of an operation that was begun."""

    def __init__(self, operation: Any = None) -> None:
        self.operation = operation

    def Wait(self) -> bool:
        if self.operation is not None:
            self.operation.result()
        return True

    wait = Wait

    def Test(self) -> bool:
        return self.operation is None or self.operation.done()

    test = Test


class Win:
    """One of pyfab's windows, over memory that the caller gives."""

    def __init__(self, window: Any, comm: Any, unit: int) -> None:
        self.window, self.comm, self.unit = window, comm, unit

    @classmethod
    def Create(cls, memory: Any, disp_unit: int = 1, info: Any = None, comm: Any = MPI.COMM_SELF) -> Win:
        array = np.zeros(1, np.uint8) if memory is None else np.frombuffer(memory, np.uint8)
        return cls(group_of(comm).window(array), comm, disp_unit)

    def Free(self) -> None:
        self.window.close()

    def Get_group(self) -> Any:
        return self.comm.Get_group()

    # --- synchronisation

    def Fence(self, assertion: int = 0) -> None:
        self.window.fence()

    def _ranks(self, group: Any) -> list[int]:
        if group.Get_size() == 0:
            return []
        return list(MPI.Group.Translate_ranks(group, None, self.comm.Get_group()))

    def Start(self, group: Any, assertion: int = 0) -> None:
        self.window.start(self._ranks(group))

    def Complete(self) -> None:
        self.window.complete()

    def Post(self, group: Any, assertion: int = 0) -> None:
        self.window.post(self._ranks(group))

    def Wait(self) -> None:
        self.window.wait()

    def Test(self) -> bool:
        return bool(self.window.test())

    def Lock(self, rank: int, lock_type: int = MPI.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        self.window.lock(rank, shared=lock_type == MPI.LOCK_SHARED)

    def Unlock(self, rank: int) -> None:
        self.window.unlock(rank)

    def Lock_all(self, assertion: int = 0) -> None:
        self.window.lock_all()

    def Unlock_all(self) -> None:
        self.window.unlock_all()

    def Flush(self, rank: int) -> None:
        self.window.flush(rank)

    def Flush_all(self) -> None:
        self.window.flush()

    def Flush_local(self, rank: int) -> None:
        self.window.flush_local(rank)

    def Flush_local_all(self) -> None:
        self.window.flush_local()

    def Sync(self) -> None:
        self.window.sync()

    # --- operations

    def _run(
        self, rank: int, target: Any, array: Any, act: Callable[[Any, Any], Any], *others: Any
    ) -> Request:
        """`act(remote, index)` on the elements that `target` names, which are as many and of the type of `array`."""
        if any(other.dtype != array.dtype or other.size != array.size for other in others):
            raise ValueError("message: the buffers differ in type or length")
        if rank == MPI.PROC_NULL or array.size == 0:
            return Request()
        displacement, count = target or 0, array.size
        if isinstance(target, (list, tuple)):
            displacement, count = target[0], target[1] if len(target) > 1 else count
        first, rest = divmod(displacement * self.unit, array.itemsize)
        if rest or count != array.size:
            raise NotImplementedError("a target of another shape than the origin")
        return Request(act(self.window[rank].view(array.dtype), slice(first, first + count)))

    def Rput(self, origin: Any, rank: int, target: Any = None) -> Request:
        values = local(origin)
        return self._run(rank, target, values, lambda remote, index: remote.put(values, index))

    def Rget(self, origin: Any, rank: int, target: Any = None) -> Request:
        out = local(origin)
        return self._run(rank, target, out, lambda remote, index: remote.get(out, index))

    def Raccumulate(self, origin: Any, rank: int, target: Any = None, op: Any = MPI.SUM) -> Request:
        values = local(origin)
        kind = kind_of(op)
        return self._run(rank, target, values, lambda remote, index: remote.accumulate(values, index, kind))

    def Rget_accumulate(
        self, origin: Any, result: Any, rank: int, target: Any = None, op: Any = MPI.SUM
    ) -> Request:
        values, out, kind = local(origin), local(result), kind_of(op)
        return self._run(
            rank,
            target,
            values,
            lambda remote, index: remote.fetch_accumulate(values, index, kind, out),
            out,
        )

    def Put(self, origin: Any, rank: int, target: Any = None) -> None:
        self.Rput(origin, rank, target)

    def Get(self, origin: Any, rank: int, target: Any = None) -> None:
        self.Rget(origin, rank, target)

    def Accumulate(self, origin: Any, rank: int, target: Any = None, op: Any = MPI.SUM) -> None:
        self.Raccumulate(origin, rank, target, op)

    def Get_accumulate(
        self, origin: Any, result: Any, rank: int, target: Any = None, op: Any = MPI.SUM
    ) -> None:
        self.Rget_accumulate(origin, result, rank, target, op)

    def Fetch_and_op(
        self, origin: Any, result: Any, rank: int, target_disp: int = 0, op: Any = MPI.SUM
    ) -> None:
        one_element(origin)
        self.Rget_accumulate(origin, result, rank, target_disp, op)

    def Compare_and_swap(
        self, origin: Any, compare: Any, result: Any, rank: int, target_disp: int = 0
    ) -> None:
        values, expected, out = local(origin), local(compare), local(result)
        one_element(origin)
        self._run(
            rank,
            target_disp,
            values,
            lambda remote, index: remote.compare_and_swap(expected, values, index, out),
            expected,
            out,
        )
