"""Changes of one shard, by whoever has its lock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.errors import TooSmallError
from pyfab.store._copies import Copies
from pyfab.store._layout import Layout, Place, gap_for, record_nbytes, record_of
from pyfab.store._looking import Found, find, slot_start
from pyfab.store._values import Flat


class Write:
    """One change of a shard. `begun` says whether a copy may differ from the others by now."""

    def __init__(self, copies: Copies, layout: Layout, shard: int, deadline: Deadline) -> None:
        self._copies, self._layout, self._shard, self._deadline = copies, layout, shard, deadline
        self.begun = False

    def find(self, place: Place) -> Found:
        """Where the key is."""
        return self._copies.run([(self._shard, find(self._layout, place))], self._deadline)[0]

    def put(self, place: Place, found: Found, flat: Flat) -> int:
        """Sets the value of a key. Returns its version, the next one of the shard."""
        return self.write(
            place, found, record_nbytes(place.key, flat), lambda version: record_of(place.key, version, flat)
        )

    def write(
        self,
        place: Place,
        found: Found,
        nbytes: int,
        make: Callable[[int], NDArray[np.uint8]],
        version: int = 0,
    ) -> int:
        """Writes a record of so many bytes, which `make` makes, and lets the key lead to it. Returns its version."""
        layout, shard = self._layout, self._shard
        units = -(-nbytes // layout.unit)
        last, first, end, *_ = self._copies.head(shard, self._deadline)
        if found.slot is None:
            raise TooSmallError(
                f"rank {shard} has {layout.slots} keys, which is all that there is room for; make the store with more keys"
            )
        if end - first < units:
            gap = gap_for(units, self._copies.records(shard, self._deadline), layout.units)
            if gap is None:
                raise TooSmallError(
                    f"the value takes {units * layout.unit} bytes, for which rank {shard} has no room left of"
                    f" {layout.units * layout.unit}; make the store with more capacity",
                    needed=units * layout.unit,
                )
            first, end = gap
        version = version or last + 1
        location = layout.location(version, first)
        record = make(version)
        gap_left = np.array([first + units, end], np.uint64).view(np.uint8)
        tag = np.array([place.tag], np.uint64).view(np.uint8)
        self.begun = True
        rows = [(8, gap_left), (slot_start(found.slot), tag)]
        self._copies.add(shard, rows, (layout.start(location), record), max(last, version))
        self._copies.commit(shard, found.slot, location)
        return version

    def take(self, slot: int) -> None:
        """Takes the key of a slot out."""
        self.begun = True
        self._copies.commit(self._shard, slot, 0)
