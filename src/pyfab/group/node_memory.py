"""Memory of another process on this node, mapped for plain loads and stores."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab import _core
from pyfab.core.errors import NotSupportedError, words_of

if TYPE_CHECKING:
    from pyfab._core import SharedMemory


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def describe_file(memory: SharedMemory | None, array: NDArray[Any]) -> Any:
    """What `map_file` needs to find the memory of `array`, or why it cannot be mapped. It fits into JSON."""
    if memory is None:
        return "it is ordinary memory; make the window with shape= instead of an array"
    found = os.fstat(memory.fd)
    offset = array.__array_interface__["data"][0] - memory.address
    return {
        "boot": _boot(),
        "pid": os.getpid(),
        "fd": memory.fd,
        "identity": [found.st_dev, found.st_ino],
        "offset": offset,
    }


def map_file(card: Any, shape: tuple[int, ...], dtype: np.dtype[Any], whose: str) -> NDArray[Any]:
    """The array, shared with its owner. The mapping ends with its last view. NotSupportedError if it cannot be mapped."""
    fd = open_file(card, f"the memory of {whose}")
    try:
        return map_descriptor(fd, card["offset"], shape, dtype)
    finally:
        os.close(fd)


def open_file(card: Any, what: str) -> int:
    """A descriptor of the file that a card tells of, for the caller to close. NotSupportedError if it cannot be mapped."""
    refused = f"{what} cannot be mapped: "
    if not isinstance(card, dict):
        raise NotSupportedError(f"{refused}{card}")
    if card["boot"] != _boot():
        raise NotSupportedError(f"{refused}it is on another node")
    try:
        fd = _core.open_memory_of(card["pid"], card["fd"])
    except NotSupportedError as error:
        raise NotSupportedError(f"{refused}{words_of(error)}") from error
    found = os.fstat(fd)
    if [found.st_dev, found.st_ino] != card["identity"]:
        os.close(fd)
        raise NotSupportedError(f"{refused}process {card['pid']} is another one here (a pid name space?)")
    return fd


def map_descriptor(
    fd: int, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, writable: bool = True
) -> NDArray[Any]:
    """An array from byte `offset` of a file on, shared with all that map it. The mapping ends with its last view."""
    count = int(np.prod(shape, dtype=np.int64))
    start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    inside = offset - start
    rights = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    memory = mmap.mmap(fd, inside + count * dtype.itemsize, prot=rights, offset=start)
    return np.frombuffer(memory, dtype, count, inside).reshape(shape)
