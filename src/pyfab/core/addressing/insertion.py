"""One call that inserts addresses: what it was given, and what it gives back."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from pyfab.core.addressing.handles import ALL_ONES, Handles, fill
from pyfab.core.enums import InsertFlag
from pyfab.core.errors import FabricError, InsertError, InvalidArgumentError, words_of

__all__ = ["Inserted", "Insertion", "Result"]

Inserted: TypeAlias = tuple[list[int], dict[int, FabricError]]
"""The handle of each address, ADDR_NOTAVAIL where it failed, and the errors by the index of the address."""
Result: TypeAlias = int | list[int] | tuple[list[int], list[FabricError | None]]


@dataclasses.dataclass(frozen=True)
class Insertion:
    """The arguments of the call without the addresses, as `AddressVector.insert` explains them."""

    flags: InsertFlag
    fi_addr: Handles | None
    # With InsertFlag.SYNC_ERR it is the list or array that takes error codes, else it comes with the events.
    context: Any
    sync_err: bool = False
    single: bool = False  # the program passed one address, not a list

    def inputs(self) -> list[int] | None:
        """What `fi_addr` holds before the call: user ids or handles of authorization keys, None where neither is asked for."""
        if not self.flags & (InsertFlag.USER_ID | InsertFlag.AUTH_KEY):
            return None
        if self.fi_addr is None:
            raise InvalidArgumentError(f"{self.flags!r}: fi_addr must hold the input of each address")
        return [int(value) & ALL_ONES for value in self.fi_addr]

    def result(self, inserted: Inserted) -> Result:
        """Fills the lists that the program passed. Returns what the call returns, or raises what it raises."""
        handles, errors = inserted
        if self.fi_addr is not None:
            fill(self.fi_addr, handles)
        if self.flags & InsertFlag.SYNC_ERR:
            for index in range(len(handles)):
                self.context[index] = errors[index].errno if index in errors else 0
        if self.sync_err:
            return handles, [errors.get(index) for index in range(len(handles))]
        if errors and not self.flags & InsertFlag.SYNC_ERR:
            if self.single:
                raise errors[0]
            first = min(errors)
            raise InsertError(
                f"{len(errors)} of {len(handles)} addresses could not be inserted, first number {first}:"
                f" {words_of(errors[first])}",
                handles=handles,
                errors=[errors.get(index) for index in range(len(handles))],
            )
        return handles[0] if self.single else handles
