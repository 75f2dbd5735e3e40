"""The exceptions of the library.

    FabricError (OSError)            .errno, .name ("FI_ENOKEY"); the message says what was asked, found, and what to do
├── KeyInUseError                the requested key belongs to another region
├── KeyRejectedError             unknown, closed or disabled key; authorization refused
├── AccessDeniedError            (PermissionError) the region does not grant this right
├── BoundsError                  (IndexError) outside of the region or array
├── BusyError                    others still use the object
├── BadFlagsError                (ValueError) flags that are not supported
├── InvalidArgumentError         (ValueError)
├── TooSmallError                the buffer is too small; .needed
├── NoEventQueueError            no event queue is bound
├── PeerLostError                (ConnectionError) the peer is gone or stopped answering
│   └── UnreachableError         no link reaches the peer: it is gone, or was never there
├── TruncatedError               the message was longer than the buffer
├── CanceledError                the operation was taken back
├── OperationTimeout             (TimeoutError) the time is over; the operation goes on
├── NotSupportedError            not available on this provider or in this mode
├── EpochError                   (RuntimeError) a call or operation outside of its synchronisation epoch
├── ClosedError                  (ValueError) the object is closed, or belongs to the parent process
└── InsertError                  some addresses could not be inserted; .handles, .errors, .count
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyfab import _core

__all__ = [
    "AccessDeniedError",
    "BadFlagsError",
    "BoundsError",
    "BusyError",
    "CanceledError",
    "ClosedError",
    "EpochError",
    "FabricError",
    "InsertError",
    "InvalidArgumentError",
    "KeyInUseError",
    "KeyRejectedError",
    "NoEventQueueError",
    "NotSupportedError",
    "OperationTimeout",
    "PeerLostError",
    "TooSmallError",
    "TruncatedError",
    "UnreachableError",
]


def words_of(error: BaseException) -> str:
    """What an error says, for the text of another one, which has a code of its own: `[FI_EINVAL]` stands once at the end."""
    return str(error.strerror) if isinstance(error, FabricError) else str(error)


def note(error: BaseException, text: str) -> None:
    """Adds a line to what is shown of an error, where Python has notes: from 3.11 on."""
    if hasattr(error, "add_note"):
        error.add_note(text)


def call_all(calls: Iterable[Callable[[], object]]) -> None:
    """Makes all of the calls, whichever fail, then raises the error of the first that did. Those of the others are its notes."""
    failed: list[BaseException] = []
    for call in calls:
        try:
            call()
        except BaseException as error:
            if failed and isinstance(error, Exception):
                note(failed[0], f"and {type(error).__name__}: {error}")
            else:  # the first; or Ctrl-C, which is told whatever failed before
                failed = [error]
    if failed:
        raise failed.pop()  # a frame that kept its own error would live until the cycle is collected


AGAIN = 11
"""The code of what has no room at the moment; nothing was taken."""
NO_DATA = 61
"""The code of a search that found nothing."""
ERROR_AVAILABLE = 259
"""The code of a read where an error comes next, which another call reads."""


class FabricError(OSError):
    """Base of all errors of the library. `errno` is the system's number, or a fabric code from 256 on.

    `argument` is the name of the wrong argument, if the call tells it: the synchronisation calls do.
    """

    code = 0  # what `errno` is when only a message is given
    argument: str | None = None

    def __init__(self, *args: Any) -> None:
        if len(args) == 1:
            args = (self.code, args[0])
        super().__init__(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args)

    @property
    def name(self) -> str:
        """The code as a name: `FI_EACCES`."""
        return _core.error_name(self.errno or 0)

    def __str__(self) -> str:
        return f"{self.strerror} [{self.name}]"


class KeyInUseError(FabricError):
    """The requested key belongs to another region."""

    code = 266


class KeyRejectedError(FabricError):
    """The key is unknown to the target, closed or disabled, or the target refused the authorization key."""

    code = 129


class AccessDeniedError(FabricError, PermissionError):
    """The rights of the region, of the process or of a file forbid the access."""

    code = 13


class BoundsError(FabricError, IndexError):
    """The bytes are outside of the region or array, or the memory is not there."""

    code = 14


class BusyError(FabricError):
    """Others still use the object."""

    code = 16


class BadFlagsError(FabricError, ValueError):
    """A flag, or a combination of flags, is not supported by the call."""

    code = 260


class InvalidArgumentError(FabricError, ValueError):
    """An argument is wrong. If a list of items is refused as a whole, `index` is the place of its first bad item."""

    code = 22
    index: int | None = None


class TooSmallError(FabricError):
    """The buffer is too small. `needed` is the size in bytes that suffices."""

    code = 257

    def __init__(self, *args: Any, needed: int = 0) -> None:
        super().__init__(*args)
        self.needed = needed


class NoEventQueueError(FabricError):
    """The call reports its end by an event, but no event queue is bound."""

    code = 261


class PeerLostError(FabricError, ConnectionError):
    """The peer's process or link has gone. Operations that were outstanding may have happened or not.

    The death of a process on this node is noticed within 10 ms. A loss over the network is noticed when the operating system
    reports it. A peer that gives no sign of life counts as lost after the domain's `peer_deadline`, or up to a quarter later. The
    peer may also have died before it saw the operations that succeeded last.
    """

    code = 104


class UnreachableError(PeerLostError):
    """No link leads to the peer: it has gone, or was never there. The operation changed nothing.

    When a peer dies, operations that were outstanding raise `PeerLostError`, and those that are started later raise this error.
    """

    code = 113


class TruncatedError(FabricError):
    """A message was longer than the memory that was to receive it."""

    code = 265


class CanceledError(FabricError):
    """The operation was canceled before it was done."""

    code = 125


class OperationTimeout(FabricError, TimeoutError):
    """The time of the call is over. The operation goes on."""

    code = 110


class NotSupportedError(FabricError):
    """The link, the memory, the mode or this machine does not support what was asked."""

    code = 95


class ClosedError(FabricError, ValueError):
    """The object was closed, or it belongs to the parent process: this process is a child of fork()."""

    code = 9


class EpochError(FabricError, RuntimeError):
    """A window was used outside of the epoch that the call needs, or epochs were opened or ended in the wrong order."""

    code = 258


class InsertError(FabricError):
    """Some addresses could not be inserted.

    `handles` has one entry for each address, ADDR_NOTAVAIL if it failed. `errors` has an exception or None for each address.
    `count` is the number of addresses that were inserted.
    """

    code = 22

    def __init__(
        self, *args: Any, handles: Sequence[int] = (), errors: Sequence[FabricError | None] = ()
    ) -> None:
        super().__init__(*args)
        self.handles = list(handles)
        self.errors = list(errors)

    @property
    def count(self) -> int:
        """The number of addresses that were inserted."""
        return sum(error is None for error in self.errors)


_CLASSES: dict[int, type[FabricError]] = {
    kind.code: kind
    for kind in (
        KeyInUseError,
        KeyRejectedError,
        AccessDeniedError,
        BoundsError,
        BusyError,
        BadFlagsError,
        InvalidArgumentError,
        TooSmallError,
        NoEventQueueError,
        UnreachableError,
        PeerLostError,
        TruncatedError,
        CanceledError,
        OperationTimeout,
        NotSupportedError,
        ClosedError,
    )
}
_CLASSES |= {
    errno.ENOSYS: NotSupportedError,
    errno.EPROTONOSUPPORT: NotSupportedError,
    errno.EPERM: AccessDeniedError,
}


def make_error(code: int, text: str) -> FabricError:
    """The exception for a code."""
    return _CLASSES.get(code, FabricError)(code, text)


_core.set_error_classes(_CLASSES, FabricError)
