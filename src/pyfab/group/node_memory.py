"""Memory of another process on this node, mapped for plain loads and stores."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab import _core
from pyfab.core.errors import NotSupportedError

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
    refused = f"the memory of {whose} cannot be mapped: "
    if not isinstance(card, dict):
        raise NotSupportedError(f"{refused}{card}")
    if card["boot"] != _boot():
        raise NotSupportedError(f"{refused}it is on another node")
    try:
        fd = _core.open_memory_of(card["pid"], card["fd"])
    except NotSupportedError as error:
        raise NotSupportedError(f"{refused}{error}") from error
    try:
        found = os.fstat(fd)
        if [found.st_dev, found.st_ino] != card["identity"]:
            raise NotSupportedError(f"{refused}process {card['pid']} is another one here (a pid name space?)")
        count = int(np.prod(shape, dtype=np.int64))
        start = card["offset"] // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        inside = card["offset"] - start
        memory = mmap.mmap(fd, inside + count * dtype.itemsize, offset=start)
    finally:
        os.close(fd)
    return np.frombuffer(memory, dtype, count, inside).reshape(shape)
