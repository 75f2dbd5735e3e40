"""What a history is made of. Times are nanoseconds of one monotonic clock, which all processes of a machine share."""

from __future__ import annotations

from typing import NamedTuple

FOREVER = 1 << 63
"""The time of return of an operation that never did: it may take effect at any later time, or never."""


class Operation(NamedTuple):
    """A call on one element. Of one that failed in a way that it may have happened, `back` is FOREVER."""

    process: str
    number: int  # of the process, in the order of its calls
    kind: str  # add, fetch_add, swap, cswap, read, write
    call: int
    back: int
    arguments: tuple[int, ...] = ()
    result: int | None = None  # what was found there; nothing if it was not fetched, or is not known
    after: int = 0  # number of the process' operation on the element that is promised to come before, 0: none

    @property
    def known(self) -> bool:
        return self.back < FOREVER


class Send(NamedTuple):
    process: str
    number: int
    to: str
    tag: int
    call: int
    back: int
    ordered: bool = True
    refused: bool = False  # told not to have happened
    must_come: bool = (
        False  # told complete, and nothing has happened by which the documentation lets it be lost
    )


class Receipt(NamedTuple):
    receiver: str
    match: int  # counts the receives in the order of posting, which is that of matching
    tag: int
    time: int
    sender: str
    number: int


def describe(operation: Operation, start: int = 0) -> str:
    """One line: when, who, what."""
    back = f"{(operation.back - start) / 1e6:.3f}" if operation.known else "never"
    found = "" if operation.result is None else f" -> {operation.result}"
    arguments = ", ".join(str(each) for each in operation.arguments)
    return (
        f"{(operation.call - start) / 1e6:12.3f} .. {back:>12} ms  {operation.process:>6} #{operation.number:<6} "
        f"{operation.kind}({arguments}){found}"
    )
