"""Files on a disk, as a server shows them: each is mapped while a client reads it.

A name is followed folder by folder from a descriptor that is kept from the start, and no symbolic link is. So no name leads out
of what is shown, whatever somebody does to its folders at that moment.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.domain import Domain
from pyfab.core.enums import Access
from pyfab.tools.served import Contents, Entry, Opened, bounded

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NOTHING = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
# Of Python 3.13: a mapping needs no descriptor of its own.
_MAPPING: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class Folder:
    """A folder with all that is in it, or a single file, whose path is "". Called from several threads.

    Raises OSError where there is neither, and ValueError for what is something else.
    """

    def __init__(self, root: Path) -> None:
        resolved = root.resolve(strict=True)
        if not _is_shown(resolved.stat()):
            raise ValueError(f"{root} is neither a file nor a folder")
        self._parent = os.open(resolved.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._parent)  # once no thread can look any more
        self._name = resolved.name or "."

    def look(self, path: str) -> Entry | Contents | None:
        """As `Served.look`."""
        with self._descriptor(path) as found:
            if found is None:
                return None
            status = os.fstat(found)
            return Contents(bounded(_contents(found))) if stat.S_ISDIR(status.st_mode) else _entry(status)

    def entry(self) -> Entry | None:
        """What is told of the folder or file itself; None if it is gone. OSError if it cannot be told."""
        with self._descriptor("") as found:
            return None if found is None else _entry(os.fstat(found))

    def open(self, path: str, domain: Domain) -> Opened | None:
        """As `Served.open`."""
        with contextlib.ExitStack() as kept:
            found = kept.enter_context(self._descriptor(path))
            if found is None:
                return None
            status = os.fstat(found)  # size and version are of one moment
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            region = None
            if status.st_size:
                region = kept.enter_context(
                    domain.register(_mapped(found, status.st_size), Access.REMOTE_READ)
                )
            return Opened(
                region, kept.pop_all().close, _version(status), lambda: _is_other(status, os.fstat(found))
            )

    @contextlib.contextmanager
    def _descriptor(self, path: str) -> Iterator[int | None]:
        """Of the file or folder of this path; None where there is none."""
        found = self._find(path)
        try:
            yield found
        finally:
            if found is not None:
                os.close(found)

    def _find(self, path: str) -> int | None:
        parts = path.split("/") if path else []
        if not {"", ".", ".."}.isdisjoint(parts):
            return None
        found = os.dup(self._parent)
        try:
            for part in [self._name, *parts]:
                deeper = _open_in(found, part)
                os.close(found)
                found = deeper
            return found
        except BaseException as error:
            os.close(found)
            # ValueError: a NUL, or what no name in a file system is
            if isinstance(error, ValueError) or (isinstance(error, OSError) and error.errno in _NOTHING):
                return None
            raise


def _open_in(folder: int, name: str) -> int:
    """A descriptor of a file or folder in a folder. PermissionError for what is something else: it is there, but not shown."""
    # A pipe is not even opened, which would let its writer go on.
    _check(os.stat(name, dir_fd=folder, follow_symlinks=False))
    found = os.open(name, _FLAGS, dir_fd=folder)
    try:
        _check(os.fstat(found))  # something else may have taken its place
    except BaseException:
        os.close(found)
        raise
    return found


def _check(status: os.stat_result) -> None:
    if not _is_shown(status):
        raise PermissionError(errno.EACCES, "a link, a pipe or a device is not shown")


def _is_shown(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)


def _contents(folder: int) -> Iterator[tuple[str, Entry]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                status = entry.stat(follow_symlinks=False)
                if _is_shown(status):
                    yield entry.name, _entry(status)


def _mapped(file: int, size: int) -> NDArray[np.uint8]:
    try:
        return np.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_READ, **_MAPPING), np.uint8)
    except ValueError:  # it has fewer bytes than a moment ago
        raise OSError(errno.ESTALE, "the file became shorter when it was opened; open it again") from None


def _entry(status: os.stat_result) -> Entry:
    if stat.S_ISDIR(status.st_mode):
        return {}
    return {"size": status.st_size, "mtime": status.st_mtime, "version": _version(status)}


def _version(status: os.stat_result) -> str:
    # Nobody can set the time of the last change of its state (ctime).
    times = f"{status.st_mtime_ns:x}-{status.st_ctime_ns:x}"
    return f"{status.st_ino:x}-{status.st_size:x}-{times}"


def _is_other(before: os.stat_result, now: os.stat_result) -> bool:
    """Whether a file that stayed open may have other bytes now."""
    if (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
        return True
    # To take a name of a file away changes its ctime, too, and none of its bytes.
    return before.st_nlink == now.st_nlink and before.st_ctime_ns != now.st_ctime_ns
