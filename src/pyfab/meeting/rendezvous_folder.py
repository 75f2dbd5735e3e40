"""A meeting in a folder that all ranks see."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import FabricError, InvalidArgumentError, OperationTimeout, make_error
from pyfab.meeting import private_files
from pyfab.meeting.ranks import incomplete

_REMEDIES = {
    errno.ENOSPC: "make room there, or name a folder on another file system",
    errno.EDQUOT: "make room in this user's quota, or name a folder on another file system",
    errno.EROFS: "name a folder on a file system that can be written",
    errno.EACCES: "name a folder that this user can make and write",
    errno.EPERM: "name a folder that this user can make and write",
    errno.EMFILE: "close files, or raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close files, or raise the system's limit of open files (fs.file-max)",
    errno.ENOENT: "leave the folder alone until all ranks have met, and start the ranks again",
}


def through_folder(folder: Path, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    """Each rank puts its file ``<rank>-<size>`` into the folder, reads those of all, and then makes a file ``<rank>-done``.

    A rank takes its place by the file ``<rank>-taken``, which only one process can make. The rank that sees first that all are
    done takes ``swept`` in the same way, renames the folder and removes it. Ranks look for each other from time to time,
    because the kernel tells nobody what other hosts write to a shared file system. The folder and all files are this user's
    alone (`private_files`); a meeting ends with AccessDeniedError when it finds others.
    """
    with _explained(folder, rank, size):
        return _through_folder(folder, rank, size, value, deadline)


@contextlib.contextmanager
def _explained(folder: Path, rank: int, size: int) -> Iterator[None]:
    try:
        yield
    except FabricError:
        raise
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "see to that, or name another place to meet")
        raise make_error(
            error.errno or errno.EIO,
            f"rank {rank} of {size} cannot meet the others at file://{folder}: {error.strerror}"
            f" ({error.filename or folder}); {remedy}, with rendezvous= or PYFAB_RENDEZVOUS",
        ) from error


def _through_folder(folder: Path, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    looks = Looks(deadline)
    while (opened := _enter(folder, rank, size, value)) is None:
        if deadline.over:
            raise OperationTimeout(
                f"file://{folder}: a former meeting did not end within {deadline}; remove the folder"
            )
        looks.pause()
    try:
        _await_all(folder, opened, rank, size, deadline)
        called = f"file://{folder}"
        values = [private_files.read(opened, f"{r}-{size}", called) for r in range(size)]
        private_files.create(opened, f"{rank}-done")
        if all(private_files.exists(opened, f"{r}-done") for r in range(size)):
            _sweep(folder, opened, rank, size)
        return values
    finally:
        os.close(opened)


def _sweep(folder: Path, opened: int, rank: int, size: int) -> None:
    """Removes the folder, which has served all ranks, unless another rank does."""
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        private_files.create(opened, "swept")
        # Who can do that after another rank has removed this file finds that the name leads elsewhere: to the next meeting.
        if not os.path.samestat(folder.lstat(), os.fstat(opened)):
            return
        swept = folder.with_name(f".{folder.name}-{rank}-{os.getpid()}")
        folder.rename(swept)
        for _ in range(size):  # each other rank can come between these two once
            private_files.clear(opened)
            with contextlib.suppress(OSError):
                swept.rmdir()
                return


def _await_all(folder: Path, opened: int, rank: int, size: int, deadline: Deadline) -> None:
    looks, listing_due = Looks(deadline), 0.0
    arrived = 0  # all ranks below this number have arrived
    while True:
        while arrived < size and private_files.exists(opened, f"{arrived}-{size}"):
            arrived += 1
        if arrived == size:
            return
        # Each look is at one file. All names are read only when the time waited has doubled, as that takes longer.
        if looks.waited >= listing_due or deadline.over:
            listing_due = 2 * looks.waited
            _check(folder, opened, rank, size, deadline)
        looks.pause()


def _check(folder: Path, opened: int, rank: int, size: int, deadline: Deadline) -> None:
    """Raises if the ranks disagree about their number, if the folder is gone, or if the time is over."""
    over = deadline.over  # asked before the look, so that whatever the look finds counts
    folder.lstat()
    names = set(os.listdir(opened))
    others = sorted(n for n in names if n.partition("-")[2].isdigit() and not n.endswith(f"-{size}"))
    if others:
        raise InvalidArgumentError(
            f"file://{folder}: rank {rank} counts {size} ranks, but {others[0]} (rank-size) is there"
        )
    arrived = [r for r in range(size) if f"{r}-{size}" in names]
    if over and len(arrived) < size:
        raise incomplete(arrived, size, deadline, f"file://{folder}")


def _enter(folder: Path, rank: int, size: int, value: bytes) -> int | None:
    """Puts this rank's file into the folder, and returns its descriptor; None if a former meeting there is about to end."""
    try:
        private_files.make_folder(folder)
        opened = private_files.open_folder(folder, f"file://{folder}")
    except FileNotFoundError:  # another rank removed the folder between two of these lines
        return None
    entered = False
    try:
        private_files.create(opened, f"{rank}-taken")
        try:
            private_files.write(opened, f"{rank}-{size}", value)
        except BaseException:
            os.unlink(f"{rank}-taken", dir_fd=opened)
            raise
        entered = True
        return opened
    except FileNotFoundError:
        return None
    except FileExistsError:
        if private_files.exists(opened, f"{rank}-done") or not private_files.exists(opened, f"{rank}-taken"):
            return None
        raise InvalidArgumentError(
            f"file://{folder}: rank {rank} is there already. Either two processes call themselves rank {rank}, or a former job"
            " ended before all its ranks had met: then remove the folder"
        ) from None
    finally:
        if not entered:
            os.close(opened)
