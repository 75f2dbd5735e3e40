"""The secret that both sides of a connection prove to each other (in `handshake`): where it is from, and who can know it.

It is what the caller or $PYFAB_TOKEN states. If neither does, a server makes a random one and leaves it in a private file,
whose name it tells everybody; so this user's processes on the same host find it by themselves, and nobody else does. With
PYFAB_TRUST_NETWORK=1 there is none, and everybody who can connect is let in.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from typing import NamedTuple

from pyfab.core.buffers import stretched_key
from pyfab.core.errors import AccessDeniedError, InvalidArgumentError
from pyfab.meeting import private_files
from pyfab.meeting.sealing import derive

WHAT_TO_SET = (
    "set PYFAB_TOKEN to the same secret on both sides (for instance, what `openssl rand -hex 32` prints);"
    " or PYFAB_TRUST_NETWORK=1 on both, if everybody who can connect may come in"
)

_NAME = re.compile(r"token-[0-9a-f]{32}")


class WrongToken(ConnectionError):
    """The other side has another token."""


class NoToken(WrongToken):
    """Nobody has told this side the other one's token."""


class WrongPlace(WrongToken):
    """The call was for another service, or for another address."""


class Token(NamedTuple):
    """A secret, and the name of the file in which this user's processes on this host find it, if it was made here."""

    secret: str
    name: str = ""
    # The file's descriptor, whose lock tells that the maker lives; nothing once it is withdrawn.
    lock: list[int] | None = None

    @property
    def open(self) -> bool:
        """Whether there is nothing to prove."""
        return not self.secret

    def withdraw(self) -> None:
        """Removes the file, if there is one. Harmless if repeated."""
        if self.lock:
            _remove(self.name)
            os.close(self.lock.pop())


def trusted() -> bool:
    """Whether the user has declared that everybody who can connect may come in."""
    return os.environ.get("PYFAB_TRUST_NETWORK", "") == "1"


def stated(token: str | None) -> str | None:
    """The token that a caller gives, or else $PYFAB_TOKEN; the empty one in a trusted network; None if nobody says anything."""
    if token is None:
        token = os.environ.get("PYFAB_TOKEN") or None
    if token == "" and not trusted():
        raise InvalidArgumentError(
            "an empty token would let in everybody who can connect; leave it out, so that a random one is made for this user's"
            f" processes on this host; or {WHAT_TO_SET}"
        )
    return "" if token is None and trusted() else token


def for_server(token: str | None) -> Token:
    """What those who connect have to prove: what is stated, or a new token. To be withdrawn at the end."""
    said = stated(token)
    return _made() if said is None else Token(said)


def for_client(token: str | None, name: str, whose: str) -> str:
    """What to prove to a server that names its token so. NoToken if nobody has told this process."""
    said = stated(token)
    if said:
        return said
    found = find(name)
    if found is not None:
        return found
    if said is not None:
        return said
    raise NoToken(
        f"{whose} asks for a token, and this process has none. Only processes of its own user on its own host find it by"
        f" themselves; from elsewhere, {WHAT_TO_SET}"
    )


def data_key(secret: str) -> bytes | None:
    """The authorization key of domains whose both sides have that token."""
    return derive(stretched(secret), b"data") if secret else None


def stretched(secret: str) -> bytes:
    """What is used of a token in place of itself, so that each guess at a weak one takes long; empty if there is none.

    It takes some 20 ms once per process and token.
    """
    return stretched_key(secret.encode(errors="surrogateescape"))  # the environment may hold what is no UTF-8


def announced(secret: str) -> str:
    """What a server prints once about a token that it has made."""
    return f"token for other hosts and users: {secret} (PYFAB_TOKEN or --token-file; this user's processes here find it)"


def find(name: str) -> str | None:
    """The token in the file of that name, which this user's processes on this host have made; None if there is none."""
    if not _NAME.fullmatch(name):
        return None
    with contextlib.suppress(OSError):  # there may be none
        for path in private_files.own_folders():
            with contextlib.suppress(OSError):  # it may be missing
                folder = private_files.open_folder(path, str(path))
                try:
                    return private_files.read(folder, name, str(path)).decode("ascii", errors="replace")
                finally:
                    os.close(folder)
    return None


def _made() -> Token:
    secret = secrets.token_hex(32)
    name = f"token-{hashlib.sha256(f'name of {secret}'.encode()).hexdigest()[:32]}"
    folder = _folder()
    try:
        _sweep(folder)
        lock = private_files.write(folder, name, secret.encode(), locked=True)
    finally:
        os.close(folder)
    return Token(secret, name, [lock])


def _folder() -> int:
    try:
        path = private_files.own_folders()[0]
        return private_files.open_folder(path, str(path))
    except OSError as error:
        raise AccessDeniedError(
            f"there is no place for a token that only this user's processes can read: {error.strerror or error}."
            " Set PYFAB_TOKEN, or XDG_RUNTIME_DIR or TMPDIR to a folder of your own"
        ) from None


def _sweep(folder: int) -> None:
    """Removes tokens whose makers have ended without doing so."""
    for name in os.listdir(folder):
        if not _NAME.fullmatch(name):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(descriptor)


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        for path in private_files.own_folders():
            with contextlib.suppress(OSError):
                folder = private_files.open_folder(path, str(path))
                try:
                    os.unlink(name, dir_fd=folder)
                finally:
                    os.close(folder)
