"""Files that only this user may write, in folders that only this user may change: whatever else is there is refused.

A folder is opened once and never looked up again, and each file is opened relative to it, without following links. So what
others put into its place, or into it, is neither read nor written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
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
    """Where this user's processes on this host leave each other private files: the best place first.

    They are made if they are missing. OSError if there is no place at all.
    """
    problems: list[OSError] = []
    folders = []
    for place in (_runtime_folder, temporary_folder):
        try:
            folders += [folder] if (folder := place()) else []
        except OSError as error:
            problems.append(error.with_traceback(None))  # which would hold `problems`
    if not folders:
        raise problems.pop(0)
    return folders


def _runtime_folder() -> Path | None:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # Of another user it may be after `su` or `sudo`.
    if (
        not runtime.startswith("/")
        or not Path(runtime).is_dir()
        or Path(runtime).stat().st_uid != os.geteuid()
    ):
        return None
    folder = Path(runtime) / "pyfab"
    make_folder(folder)
    return folder


def temporary_folder() -> Path:
    """The folder of this user under the system's temporary folder, made if it is missing. OSError if that cannot be written.

    Another user may have taken its name. Then it is one of the same name with a number behind it, the first of this user; all
    processes of this user find the same.
    """
    common, name = Path(tempfile.gettempdir()), f"pyfab-{os.geteuid()}"
    if _is_own(common / name):
        return common / name
    if own := _numbered(common, name):
        return own[0]
    for number in itertools.count():
        path = common / (f"{name}-{number}" if number else name)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not _is_own(path):
                continue
        return path if _is_own(path) else temporary_folder()
    raise AssertionError


def _numbered(common: Path, name: str) -> list[Path]:
    """The folders of this user of that name with a number behind it, by number."""
    digits = [entry[len(name) + 1 :] for entry in os.listdir(common) if entry.startswith(f"{name}-")]
    numbers = sorted(int(text) for text in digits if text.isascii() and text.isdigit() and len(text) < 10)
    return [path for path in (common / f"{name}-{number}" for number in numbers) if _is_own(path)]


def _is_own(path: Path) -> bool:
    """Whether that is a folder which only this user can change. If so, this user has all rights in it on return.

    A link is not followed. All checks are of the opened folder, so it does not matter what others put in its place meanwhile.
    """
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return False
        if found.st_mode & 0o700 != 0o700:  # the umask of whoever made it took rights from this user
            os.fchmod(descriptor, 0o700)
        return True
    finally:
        os.close(descriptor)
