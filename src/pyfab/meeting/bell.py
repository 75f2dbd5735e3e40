"""A bell in a folder: processes of one host wait for it without looking, and whoever rings it wakes them all at once.

It is a named pipe. To listen is to have it open for reading; to ring is to open it for writing and to close it again, on which
the kernel tells all readers that the writer has gone. So nothing is written, and unlike inotify, of which a user has 128
instances by default, it serves any number of ranks, each of which is woken once and not for every file that comes.

Each bell rings for one thing, once for each that listens. Who listens before he looks whether that has happened misses nothing,
unless whoever should have rung was killed, or is on another host, as the pipe belongs to this host's kernel. So bells are heard
only in file systems that no other host can mount, and those who listen look from time to time all the same (`Looks`).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
from collections.abc import Callable, Iterator

# The numbers (`man statfs`) of those that one host has to itself: ext2 to ext4, xfs, btrfs, zfs, f2fs, bcachefs, overlayfs, tmpfs
# and ramfs. Any other may be shared.
_OF_ONE_HOST = frozenset(
    [0xEF53, 0x58465342, 0x9123683E, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E, 0x794C7630, 0x01021994, 0x858458F6]
)
_STATFS_BYTES = 512  # more than a struct statfs has, which begins with that number

_EITHER = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def of_one_host(folder: int) -> bool:
    """Whether an open folder is in a file system that no other host can mount."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).fstatfs(folder, found) != 0:
        return False
    return ctypes.c_long.from_buffer(found).value & 0xFFFFFFFF in _OF_ONE_HOST


def make(folder: int, name: str) -> None:
    """Hangs a bell up in an open folder, unless it hangs there, or the file system has none."""
    with contextlib.suppress(OSError):
        os.mkfifo(name, 0o600, dir_fd=folder)


def ring(folder: int, name: str) -> None:
    """Wakes all that listen."""
    with contextlib.suppress(OSError):  # nobody listens, or there is no bell
        os.close(os.open(name, os.O_WRONLY | _EITHER, dir_fd=folder))


class Listener:
    """Hears a bell from when it is made until the bell has rung. For one thread."""

    def __init__(self, folder: int, name: str) -> None:
        self.rung = False  # whether it has been heard
        self._pipe: int | None = None
        if of_one_host(folder):
            with contextlib.suppress(OSError):
                self._pipe = os.open(name, os.O_RDONLY | _EITHER, dir_fd=folder)

    @property
    def event(self) -> Callable[[float], None] | None:
        """Waits for the ring, for at most so many seconds. None once the bell has rung, and where none is heard."""
        return None if self._pipe is None else self._wait

    def _wait(self, seconds: float) -> None:
        assert self._pipe is not None
        poll = select.poll()
        poll.register(self._pipe, 0)  # that the writer has gone is told unasked
        if poll.poll(math.ceil(1000 * seconds)):
            self.rung = True
            self.close()

    def close(self) -> None:
        """Hears no more."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


@contextlib.contextmanager
def listening(folder: int, name: str) -> Iterator[Listener]:
    """A listener for the length of a block."""
    listener = Listener(folder, name)
    try:
        yield listener
    finally:
        listener.close()
