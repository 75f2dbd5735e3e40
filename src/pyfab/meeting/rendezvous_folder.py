"""A meeting in a folder that all ranks see."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import FabricError, InvalidArgumentError, OperationTimeout, make_error
from pyfab.meeting import bell, private_files
from pyfab.meeting.ranks import Exchange, Member, incomplete

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


# Of the files of a meeting; those of a file system that keeps open what was removed begin with ".nfs".
_OURS = re.compile(r"[0-9]+-(taken|done|[0-9]+(\.[0-9]+)?)|bell\.([0-9]+|end)|swept|\.[0-9a-f]{16}|\.nfs.*")

_END = "bell.end"  # rings when a folder has served all ranks and its name is free


@contextlib.contextmanager
def through_folder(path: Path, who: Member, deadline: Deadline) -> Iterator[Exchange]:
    """A meeting in a folder, which is made if it is missing and removed by the last rank.

    In each exchange a rank puts its file ``<rank>-<size>.<number>`` into the folder (the first one has no number), and reads
    those of all; at the end of the meeting it makes a file ``<rank>-done``.
    A rank takes its place by the file ``<rank>-taken``, which only one process can make. The rank that sees first that all are
    done takes ``swept`` in the same way, renames the folder and removes it. Who waits listens to a `bell`: ``bell.<number>``,
    which whoever finds the files of all rings, and ``bell.end``, which tells that the name is free. Ranks look for each other
    from time to time all the same, because the kernel tells nobody what other hosts write to a shared file system. The folder
    and all files are this user's alone (`private_files`); a meeting ends with AccessDeniedError when it finds others. No file is
    removed that is not of the meeting, so a folder that holds others is refused (InvalidArgumentError).
    """
    folder = _Folder(path, who, deadline)
    try:
        yield folder.exchange
        folder.leave()
    finally:
        folder.close()


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


class _Folder:
    """A rank's side of a meeting in a folder."""

    def __init__(self, path: Path, who: Member, deadline: Deadline) -> None:
        self._path, self._who, self._deadline = path, who, deadline
        self._opened: int | None = None  # the folder's descriptor, once this rank's first file is there
        self._turn = 0  # exchanges that are over

    def exchange(self, value: bytes) -> list[bytes]:
        """Gives `value` to all ranks and returns everyone's."""
        path, (rank, size) = self._path, self._who
        with _explained(path, rank, size):
            if self._opened is None:
                self._opened = self._enter(value)
            else:
                private_files.write(self._opened, f"{rank}-{self._ending}", value)
            self._await_all(self._opened)
            called = f"file://{path}"
            values = [private_files.read(self._opened, f"{r}-{self._ending}", called) for r in range(size)]
            self._turn += 1
            return values

    @property
    def _ending(self) -> str:
        return f"{self._who.size}.{self._turn}" if self._turn else str(self._who.size)

    def _enter(self, value: bytes) -> int:
        looks = Looks(self._deadline)
        while (opened := _enter(self._path, *self._who, value)) is None:
            if self._deadline.over:
                raise OperationTimeout(
                    f"file://{self._path}: a former meeting did not end within {self._deadline}; remove the folder"
                )
            self._await_end(looks)
        return opened

    def _await_end(self, looks: Looks) -> None:
        """Waits until the folder of a former meeting is gone, or for the next look."""
        path, rank = self._path, self._who.rank
        try:
            former = private_files.open_folder(path, f"file://{path}")
        except FileNotFoundError:
            return
        try:
            with bell.listening(former, _END) as listener:
                # After this rank was done there, nothing but the end is left to wait for.
                if private_files.exists(former, f"{rank}-done") and _leads_to(path, former):
                    looks.pause(listener.event)
        finally:
            os.close(former)

    def _await_all(self, opened: int) -> None:
        """Waits for the files of all ranks. Who finds them without having been told tells the others of this host."""
        name = f"bell.{self._turn}"
        bell.make(opened, name)
        with bell.listening(opened, name) as listener:
            self._look_for_all(opened, listener)
            if not listener.rung:
                bell.ring(opened, name)

    def _look_for_all(self, opened: int, listener: bell.Listener) -> None:
        """Returns when the files of all ranks are there."""
        ending, size, deadline = self._ending, self._who.size, self._deadline
        looks, listing_due = Looks(deadline), 0.0
        arrived = 0  # all ranks below this number have arrived
        while True:
            while arrived < size and private_files.exists(opened, f"{arrived}-{ending}"):
                arrived += 1
            if arrived == size:
                return
            # Each look is at one file. All names are read only when the time waited has doubled, as that takes longer.
            if looks.waited >= listing_due or deadline.over:
                listing_due = 2 * looks.waited
                _check(self._path, opened, ending, self._who, deadline)
            looks.pause(listener.event)

    def leave(self) -> None:
        """Tells that this rank needs the folder no more; the last one removes it."""
        rank, size = self._who
        if self._opened is not None:
            with _explained(self._path, rank, size):
                bell.make(self._opened, _END)
                private_files.create(self._opened, f"{rank}-done")
                if all(private_files.exists(self._opened, f"{r}-done") for r in range(size)):
                    _sweep(self._path, self._opened, rank, size)

    def close(self) -> None:
        if self._opened is not None:
            os.close(self._opened)


def _sweep(folder: Path, opened: int, rank: int, size: int) -> None:
    """Removes the folder, which has served all ranks, unless another rank does."""
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        private_files.create(opened, "swept")
        # Who can do that after another rank has removed this file finds that the name leads elsewhere: to the next meeting.
        if not _leads_to(folder, opened):
            return
        if _foreign(os.listdir(opened)):
            bell.ring(opened, _END)
            return  # somebody has put something in meanwhile, which stays where it is
        swept = folder.with_name(f".{folder.name}-{rank}-{os.getpid()}")
        folder.rename(swept)
        bell.ring(opened, _END)
        for _ in range(size):  # each other rank can come between these two once
            for name in os.listdir(opened):
                with contextlib.suppress(FileNotFoundError):
                    if not _foreign([name]):
                        os.unlink(name, dir_fd=opened)
            with contextlib.suppress(OSError):
                swept.rmdir()
                return


def _leads_to(folder: Path, opened: int) -> bool:
    """Whether the name is still that of the open folder."""
    try:
        return os.path.samestat(folder.lstat(), os.fstat(opened))
    except FileNotFoundError:
        return False


def _foreign(names: Iterable[str]) -> list[str]:
    """Those that are of no meeting."""
    return sorted(name for name in names if not _OURS.fullmatch(name))


def _refuse_foreign(folder: Path, names: Iterable[str]) -> None:
    if foreign := _foreign(names):
        raise InvalidArgumentError(
            f"file://{folder} holds what is not of a meeting: {foreign[0]!r}; name an empty folder, or one that is not there yet"
        )


def _check(folder: Path, opened: int, ending: str, who: Member, deadline: Deadline) -> None:
    """Raises if the ranks disagree about their number, if the folder is gone, or if the time is over."""
    rank, size = who
    over = deadline.over  # asked before the look, so that whatever the look finds counts
    folder.lstat()
    names = set(os.listdir(opened))
    others = sorted(n for n in names if n.partition("-")[2].isdigit() and not n.endswith(f"-{size}"))
    if others:
        raise InvalidArgumentError(
            f"file://{folder}: rank {rank} counts {size} ranks, but {others[0]} (rank-size) is there"
        )
    arrived = [r for r in range(size) if f"{r}-{ending}" in names]
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
            # A former meeting whose ranks have the same numbers holds this place until its folder has another name.
            if not _leads_to(folder, opened):
                raise FileNotFoundError(errno.ENOENT, "the folder was swept", str(folder))
            private_files.write(opened, f"{rank}-{size}", value)
            _refuse_foreign(folder, os.listdir(opened))
        except BaseException:
            for name in (f"{rank}-{size}", f"{rank}-taken"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=opened)
            raise
        entered = True
        return opened
    except FileNotFoundError:
        return None
    except FileExistsError:
        _refuse_foreign(folder, os.listdir(opened))
        if private_files.exists(opened, f"{rank}-done") or not private_files.exists(opened, f"{rank}-taken"):
            return None
        if not _leads_to(
            folder, opened
        ):  # asked last: whoever removes these files has renamed the folder before
            return None
        raise InvalidArgumentError(
            f"file://{folder}: rank {rank} is there already. Either two processes call themselves rank {rank}, or a former job"
            " ended before all its ranks had met: then remove the folder"
        ) from None
    finally:
        if not entered:
            os.close(opened)
