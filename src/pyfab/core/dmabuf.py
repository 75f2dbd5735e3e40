"""Memory of devices that the kernel shares as a file."""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
from pyfab import _core
from pyfab.core.errors import BusyError, ClosedError, InvalidArgumentError, NotSupportedError

__all__ = ["DmaBuf", "mapped_core"]


def mapped_core(core: _core.DmaBufCore) -> _core.DmaBufCore:
    """The same memory as a buffer. NotSupportedError if it is not mapped."""
    if core.hidden:
        raise NotSupportedError(
            "the exporter of the dma-buf does not let processors map it: only RDMA devices reach it; register it, and name"
            " it in operations by slices of the region, region[0:n]"
        )
    return core


class DmaBuf(_core.Exporter):
    """A dma-buf that this process opened: memory, for instance of a GPU, that its driver exported as a file.

    fd: its file descriptor. It is duplicated; the caller closes the original. offset, length: the part to use, in bytes. The
    offset is a multiple of the page size; without a length it is all that follows. InvalidArgumentError if the part is not within
    the dma-buf.

    If the exporter lets processors reach the memory, it is `mapped`: a buffer of bytes, for NumPy as well, and memory like any
    other. Otherwise it is no buffer, and only RDMA devices reach it. Then register it, and pass slices of the region,
    `region[0:n]`, as local memory. An operation that needs a processor there fails with BoundsError (docs/verbs.md).

    close() raises BusyError while arrays or regions use the memory. If you leave the `with` block, or drop the object, the memory
    stays until the last of them has gone. Safe from any thread.
    """

    def __init__(self, fd: int, offset: int = 0, length: int | None = None) -> None:
        numbers = (
            operator.index(fd),
            operator.index(offset),
            0 if length is None else operator.index(length),
        )
        if min(numbers) < 0 or numbers[0] >= 2**31 or max(numbers) >= 2**63:
            raise InvalidArgumentError(
                f"fd={fd}, offset={offset}, length={length}: they are a file descriptor and numbers of bytes, not negative"
            )
        self._core: _core.DmaBufCore | None = _core.DmaBufCore(fd, offset, length)

    def _opened(self) -> _core.DmaBufCore:
        core = self._core
        if core is None:
            raise ClosedError("the DmaBuf is closed")
        return core

    @property
    def fd(self) -> int:
        """The duplicate of the file descriptor. It ends with this object."""
        return self._opened().fd

    @property
    def nbytes(self) -> int:
        """Bytes of the mapped memory."""
        return self._opened().nbytes

    @property
    def mapped(self) -> bool:
        """Whether processors reach the memory. If so, this object is a buffer."""
        return not self._opened().hidden

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core is None

    @contextlib.contextmanager
    def cpu_access(self, *, write: bool = False) -> Iterator[None]:
        """A context manager for loads of this process, and for stores if `write`: caches then agree (DMA_BUF_IOCTL_SYNC).

        It waits for devices that work on the memory. pyfab's own copies do not call it. If the exporter needs it, call it also
        around what peers do. InvalidArgumentError if the file is no dma-buf. NotSupportedError if the memory is not mapped.
        """
        core = self._only_buffer()
        core.access(write, True)
        try:
            yield
        finally:
            core.access(write, False)

    def _only_buffer(self) -> _core.DmaBufCore:
        return mapped_core(self._opened())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        array = np.frombuffer(memoryview(self._only_buffer()), np.uint8)
        return np.array(array, dtype=dtype) if copy or (dtype is not None and dtype != array.dtype) else array

    def __len__(self) -> int:
        return self.nbytes

    def close(self) -> None:
        """Closes the mapping and the file descriptor. BusyError while arrays, memoryviews or regions use the memory."""
        core, self._core = self._core, None
        if core is None:
            return
        user = weakref.ref(core)  # arrays, memoryviews and regions keep the core alive
        del core
        self._core = user()
        if self._core is not None:
            raise BusyError("arrays, memoryviews or regions still use the DmaBuf; close or drop them first")

    def __enter__(self) -> DmaBuf:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._core = None

    def __repr__(self) -> str:
        core = self._core
        if core is None:
            return "<DmaBuf closed>"
        return f"<DmaBuf {core.nbytes} bytes, {'not mapped' if core.hidden else 'mapped'}>"
