"""What counts as memory: buffers, DLPack tensors on the CPU, bare address ranges, and arrays with gaps as their pieces.

Beside memory: what counts as a whole number.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab._core import stretched_key
from pyfab.core.errors import InvalidArgumentError, NotSupportedError

__all__ = ["Range", "array_of", "auth_key_of", "bytes_of", "pieces_of", "stretched_key"]

# Types of bare bytes.
_BARE = {size: np.dtype(f"V{size}") for size in (1, 2, 4)}
_ON_THE_CPU = {1, 3, 11}  # kDLCPU, and memory of the host that CUDA or ROCm have pinned
_DEVICES = {
    2: "CUDA",
    4: "OpenCL",
    7: "Vulkan",
    8: "Metal",
    10: "ROCm",
    13: "CUDA managed memory",
    14: "oneAPI",
}


@dataclasses.dataclass(frozen=True)
class Range:
    """Addresses to register: `length` bytes from `address`. The caller guarantees that they are valid, and keeps them alive.

    The pages need not exist yet, except in MRMode.ALLOCATED.
    """

    address: int
    length: int


def _refuse_device(what: str, device: str) -> NotSupportedError:
    return NotSupportedError(
        f"the {what} lives in memory of a device ({device}), whose addresses mean nothing here: copy it to the host (for instance"
        " tensor.cpu()), or export it as a dma-buf (CUDA: cuMemGetHandleForAddressRange with"
        " CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) and register pyfab.DmaBuf(fd) over an RDMA device"
    )


def bytes_of(name: str, value: Any) -> bytes:
    """A copy of what a buffer holds, for the argument of that name. InvalidArgumentError for what is no buffer.

    It does not use bytes(value), which makes a number into that many zeroes.
    """
    try:
        with memoryview(value) as view:
            return view.tobytes()
    except (TypeError, BufferError):
        raise InvalidArgumentError(
            f"{name}: it is bytes, or another buffer, not an object of type {type(value).__name__}"
        ) from None


def whole(value: Any) -> int | None:
    """The value as an int; None if it is no whole number. Integers of NumPy are whole numbers, floats and texts are not."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def auth_key_of(value: Any) -> bytes:
    """The authorization key of a domain or an endpoint as the core takes it: empty for None, and for nothing else.

    An empty key would ask nothing of anybody, so it is refused rather than taken for None.
    """
    if value is None:
        return b""
    key = bytes_of("auth_key", value)
    if not key:
        raise InvalidArgumentError("auth_key: a key has at least one byte; None stands for no key of its own")
    return key


def array_of(thing: Any) -> Any:
    """Returns an array of the same memory for a tensor without a buffer protocol, and anything else as it is.

    NotSupportedError for memory of a GPU; the message says what is missing.
    """
    if isinstance(thing, np.ndarray | bytes | bytearray | memoryview):
        return thing
    kind = type(thing).__name__
    device_of = getattr(thing, "__dlpack_device__", None)
    if device_of is not None:
        device, number = device_of()
        if int(device) not in _ON_THE_CPU:
            raise _refuse_device(
                kind, f"{_DEVICES.get(int(device), f'DLPack device {int(device)}')} {number}"
            )
        if getattr(thing, "requires_grad", False):
            thing = thing.detach()  # a view: what peers do to the memory is not differentiated
        # torch's own array is writable; DLPack without a version does not tell that it is.
        return _of_torch(thing) if hasattr(thing, "numpy") else np.from_dlpack(thing)
    if hasattr(thing, "__cuda_array_interface__"):
        raise _refuse_device(kind, "CUDA")
    if hasattr(thing, "__array_interface__") and not _has_buffer(thing):
        return np.asarray(thing)
    return thing


def named_dtype(name: str) -> np.dtype[Any] | None:
    """The dtype of ml_dtypes with this name, such as "bfloat16"; None if there is none, or the package is not installed."""
    try:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    except (ImportError, AttributeError, TypeError):
        return None


def _of_torch(tensor: Any) -> Any:
    """The array of a tensor; of types that NumPy lacks it has the dtype of ml_dtypes, or else bare bytes of that size."""
    try:
        return tensor.numpy()
    except TypeError:
        torch, size = sys.modules["torch"], tensor.element_size()
        plain = {1: "uint8", 2: "int16", 4: "int32"}.get(size)
        if plain is None or not tensor.dtype.is_floating_point:
            raise
        dtype = named_dtype(str(tensor.dtype).removeprefix("torch.")) or _BARE[size]
        return tensor.view(getattr(torch, plain)).numpy().view(dtype)


def _has_buffer(thing: Any) -> bool:
    try:
        memoryview(thing).release()
    except TypeError:
        return False
    return True


def pieces_of(array: NDArray[Any], limit: int) -> list[NDArray[Any]]:
    """The contiguous pieces of an array with gaps, in C order, each a view.

    InvalidArgumentError if there are more than `limit`.
    """
    if array.flags.c_contiguous:
        return [array]
    if any(step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)):
        raise InvalidArgumentError(
            "the array is not contiguous and shows some memory more than once (broadcast); register the array behind it"
        )
    dense, outer = array.itemsize, array.ndim
    while outer > 0 and (array.shape[outer - 1] == 1 or array.strides[outer - 1] == dense):
        outer -= 1
        dense *= array.shape[outer]
    count = int(np.prod(array.shape[:outer], dtype=np.int64))
    if count > limit and array.flags.f_contiguous:
        raise InvalidArgumentError(
            f"the array is in Fortran order: its memory is one piece, but in C order it has {count}, and one region takes"
            f" {limit} (info.mr_iov_limit); register a.T, whose shape is the other way round, or numpy.ascontiguousarray(a)"
        )
    if count > limit:
        raise InvalidArgumentError(
            f"the array is not contiguous: it has {count} pieces, and one region takes {limit} (info.mr_iov_limit); register"
            " numpy.ascontiguousarray(a), or the array that it is a view of"
        )
    return [array[(*index, ...)] for index in np.ndindex(array.shape[:outer])]
