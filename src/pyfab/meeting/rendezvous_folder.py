"""A meeting in a folder that all ranks see."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import (
    AccessDeniedError,
    FabricError,
    InvalidArgumentError,
    OperationTimeout,
    make_error,
)
from pyfab.meeting.ranks import incomplete

_REMEDIES = {
    errno.ENOSPC: "make room there, or name a folder on another file system",
    errno.EDQUOT: "make room in this user's quota, or name a folder on another file system",
    errno.EROFS: "name a folder on a file system that can be written",
    errno.EACCES: "name a folder that this user can make and write",
    errno.EPERM: "name a folder on a file system with hard links, which this user can write",
    errno.EMFILE: "close files, or raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close files, or raise the system's limit of open files (fs.file-max)",
    errno.ENOENT: "leave the folder alone until all ranks have met, and start the ranks again",
}


def through_folder(folder: Path, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    """Each rank links its file ``<rank>-<size>`` into the folder, reads those of all, and then makes a file ``<rank>-done``.

    A rank that sees that all are done renames the folder, which only one rank can do, and removes it. Ranks look for each other
    from time to time, because the kernel tells nobody what other hosts write to a shared file system.
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
    where = f"file://{folder}"
    looks = Looks(deadline)
    while not _enter(folder, rank, size, value):
        if deadline.over:
            raise OperationTimeout(
                f"{where}: a former meeting did not end within {deadline}; remove the folder"
            )
        looks.pause()
    looks, listing_due = Looks(deadline), 0.0
    arrived = 0  # all ranks below this number have arrived
    while True:
        while arrived < size and (folder / f"{arrived}-{size}").exists():
            arrived += 1
        if arrived == size:
            break
        # Each look is at one file. All names are read only when the time waited has doubled, as that takes longer.
        if looks.waited >= listing_due or deadline.over:
            listing_due = 2 * looks.waited
            _check(folder, rank, size, deadline)
        looks.pause()
    values = [(folder / f"{r}-{size}").read_bytes() for r in range(size)]
    (folder / f"{rank}-done").touch()
    if all((folder / f"{r}-done").exists() for r in range(size)):
        swept = folder.with_name(f".{folder.name}-{rank}-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):  # another rank removes it
            folder.rename(swept)
            shutil.rmtree(swept)
    return values


def _check(folder: Path, rank: int, size: int, deadline: Deadline) -> None:
    """Raises if the ranks disagree about their number, or if the time is over."""
    over = deadline.over  # asked before the look, so that whatever the look finds counts
    names = {path.name for path in folder.iterdir()}
    others = sorted(n for n in names if n.partition("-")[2].isdigit() and not n.endswith(f"-{size}"))
    if others:
        raise InvalidArgumentError(
            f"file://{folder}: rank {rank} counts {size} ranks, but {others[0]} (rank-size) is there"
        )
    arrived = [r for r in range(size) if f"{r}-{size}" in names]
    if over and len(arrived) < size:
        raise incomplete(arrived, size, deadline, f"file://{folder}")


def _enter(folder: Path, rank: int, size: int, value: bytes) -> bool:
    """Puts this rank's file into the folder; False if a former meeting there is about to end."""
    own, draft = folder / f"{rank}-{size}", folder / f"draft-{rank}-{os.getpid()}-{threading.get_ident()}x"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise AccessDeniedError(f"file://{folder} belongs to another user (uid {folder.stat().st_uid})")
        try:
            draft.write_bytes(value)
            own.hardlink_to(draft)
        finally:
            draft.unlink(missing_ok=True)
    except FileNotFoundError:  # another rank removed the folder between two of these lines
        return False
    except FileExistsError:
        if (folder / f"{rank}-done").exists() or not own.exists():
            return False
        raise InvalidArgumentError(
            f"file://{folder}: rank {rank} is there already. Either two processes call themselves rank {rank}, or a former job"
            " ended before all its ranks had met: then remove the folder"
        ) from None
    return True
