"""Batches as objects of a class that the program declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, is_typeddict

from pyfab.core.errors import InvalidArgumentError

B = TypeVar("B")


def fields_of(kind: Any) -> tuple[str, ...]:
    """The names that a TypedDict, a NamedTuple or a dataclass declares. InvalidArgumentError for anything else."""
    if isinstance(kind, type):
        if is_typeddict(kind):
            return tuple(kind.__annotations__)  # with those of the classes that this one is made of
        if dataclasses.is_dataclass(kind):
            return tuple(field.name for field in dataclasses.fields(kind) if field.init)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return tuple(kind._fields)
    raise InvalidArgumentError(f"batch={kind!r}: give a TypedDict, a NamedTuple or a dataclass")


def maker_of(kind: type[B]) -> Callable[[dict[str, Any]], B]:
    """Returns a function that turns a dict into a batch of that class. A TypedDict is a dict."""
    if is_typeddict(kind):
        return lambda batch: batch  # type: ignore[return-value]
    return lambda batch: kind(**batch)
