"""Files that only this user may write, in folders that only this user may change: whatever else is there is refused.

A folder is opened once and never looked up again, and each file is opened relative to it, without following links. So what
others put into its place, or into it, is neither read nor written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import tempfile
from pathlib import Path

from pyfab.core.errors import AccessDeniedError

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in its place keeps nobody waiting
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make_folder(path: Path) -> None:
    """Makes the folder and those above it, unless it is there. Only this user may enter it, and has all rights in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    descriptor = os.open(path, _FOLDER)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o700)  # the umask may have taken rights from this user
    finally:
        os.close(descriptor)


def open_folder(path: Path, called: str) -> int:
    """A descriptor of a folder that only this user may change; AccessDeniedError says what is wrong with it, called so."""
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise AccessDeniedError(f"{called} is a link or no folder; remove it, or name a folder") from None
        raise
    found = os.fstat(descriptor)
    mode = stat.S_IMODE(found.st_mode)
    problem = ""
    if found.st_uid != os.geteuid():
        problem = (
            f"belongs to another user (uid {found.st_uid}), this is uid {os.geteuid()}; name one of your own"
        )
    elif mode & 0o022:
        problem = f"can be changed by other users (mode {mode:04o}); run: chmod go-w {path}"
    if problem:
        os.close(descriptor)
        raise AccessDeniedError(f"{called} {problem}")
    return descriptor


def exists(folder: int, name: str) -> bool:
    """Whether anything has that name, a link included."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def create(folder: int, name: str) -> None:
    """Makes an empty file; FileExistsError if anything has that name."""
    os.close(os.open(name, _NEW, 0o600, dir_fd=folder))


def write(folder: int, name: str, content: bytes, *, locked: bool = False) -> int:
    """Makes a file, which appears complete and in place of one of that name.

    locked: it is locked (flock) as long as the descriptor is open that is returned, which is -1 otherwise.
    """
    draft = f".{secrets.token_hex(8)}"
    descriptor = os.open(draft, _NEW, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(content)
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        kept, descriptor = (descriptor, -1) if locked else (-1, descriptor)
        return kept
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    finally:
        if descriptor != -1:
            os.close(descriptor)


def read(folder: int, name: str, called: str) -> bytes:
    """What this user has written into a file. AccessDeniedError for a link, another's file, or one with a second name."""
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise AccessDeniedError(f"{called}/{name} is no file but a link or a socket; remove it") from None
        raise
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        problem = ""
        if found.st_uid != os.geteuid():
            problem = f"belongs to another user (uid {found.st_uid})"
        elif not stat.S_ISREG(found.st_mode):
            problem = "is no ordinary file"
        elif found.st_nlink > 1:
            problem = "has a second name, under which it may be somebody else's file"
        elif found.st_mode & 0o022:
            problem = f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
        if problem:
            raise AccessDeniedError(f"{called}/{name} {problem}; remove it")
        return stream.read()


def own_folders() -> list[Path]:
    """Where this user's processes on this host leave each other private files: the best place first. They may be missing."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # Of another user it may be after `su` or `sudo`.
    ours = runtime.startswith("/") and Path(runtime).is_dir() and Path(runtime).stat().st_uid == os.geteuid()
    places = [Path(runtime) / "pyfab"] if ours else []
    return [*places, Path(tempfile.gettempdir()) / f"pyfab-{os.geteuid()}"]
