"""Telling programs that something goes away: what, when, and what to use instead."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["deprecated", "warn_deprecated"]

P = ParamSpec("P")
R = TypeVar("R")

_told: set[tuple[str, str, int]] = set()  # what, and the file and line that used it


def warn_deprecated(
    what: str, removal: str, instead: str, *, for_users: bool = False, stacklevel: int = 1
) -> None:
    """Warns once for each line of a program that uses `what`, for as long as the process lives.

    removal: the version in which it goes. instead: what to use. for_users: a FutureWarning, which everybody sees, for what the
    users of a program should know (settings, files, commands); otherwise a DeprecationWarning, which Python shows to whoever
    writes the program. stacklevel: 1 stands for whoever called the function that calls this.
    """
    frame = sys._getframe(stacklevel + 1)
    place = what, frame.f_code.co_filename, frame.f_lineno
    if place in _told:
        return
    warnings.warn(
        f"{what} is deprecated and goes away in pyfab {removal}: use {instead}",
        FutureWarning if for_users else DeprecationWarning,
        stacklevel=stacklevel + 2,
    )
    _told.add(place)  # not where a filter made the warning an error: then nothing was told


def deprecated(
    removal: str, instead: str, *, for_users: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function, a method or a class's constructor: each call warns as `warn_deprecated` does."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        what = f"pyfab.{function.__qualname__}()"

        @functools.wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            warn_deprecated(what, removal, instead, for_users=for_users)
            return function(*args, **kwargs)

        return warned

    return mark
