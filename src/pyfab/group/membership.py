"""How the members of a group change: what several groups share, and who is left when ranks have died."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from pyfab.core.errors import ClosedError, OperationTimeout
from pyfab.group.control import GONE
from pyfab.meeting.ranks import ranks_text

if TYPE_CHECKING:
    from pyfab.core.address_vector import AddressVector
    from pyfab.core.deadline import Deadline
    from pyfab.group.control import Control

CAPACITY = 4096  # ranks that a view has room for
_PAUSES = 0.001, 0.05  # seconds between looks at the others' views: at first, at most


class Shared:
    """What several groups use until the last of them ends: the peers' handles, and resources.

    A handle that no group has any more is taken out of the address vector, and with it all that is kept for the peer. The last
    group closes the resources.
    """

    def __init__(self, resources: ExitStack, av: AddressVector) -> None:
        self._resources, self._av, self._users = resources, av, 0
        self._handles: Counter[int] = Counter()  # how many groups have each
        self._lock = threading.Lock()

    def share(self, handles: Iterable[int]) -> Shared:
        """Counts another user of these peers."""
        with self._lock:
            self._users += 1
            self._handles.update(handles)
        return self

    def release(self, handles: Iterable[int]) -> None:
        """Counts one user less. The peers that no group has any more are removed; the last user closes the resources."""
        with self._lock:
            self._users -= 1
            self._handles.subtract(handles)
            unused = [handle for handle, users in self._handles.items() if users == 0]
            for handle in unused:
                del self._handles[handle]
            last = self._users == 0
        if last:
            self._resources.close()
        else:
            with suppress(ClosedError):  # whoever opened the domain may have closed it
                self._av.remove(unused)


def agree(
    control: Control, rank: int, alive: set[int], number: int, successor: bytes, deadline: Deadline
) -> tuple[int, dict[int, bytes]]:
    """Drops the ranks that are gone from `alive`, until all others show the same view.

    Returns the number of the agreement, at least `number`, and the successors of all, by rank. A rank that sees that another is
    gone shows it, and no rank comes back. So the views shrink until they are equal. OperationTimeout names ranks that did not
    come.
    """
    size = max(alive) + 1
    control.show_view(number, alive, successor)
    pause = _PAUSES[0]
    while True:
        successors = {rank: successor}
        behind = []
        gone = set()
        former = number
        for other in sorted(alive - {rank}):
            try:
                view = control.view_of(other)
            except GONE:
                gone.add(other)
                continue
            if view is None or view[0] < number or view[1] != alive:
                behind.append(other)
            if view is not None and view[0] > number:
                # The other rank had agreed before, then lost one more, and waits until this rank knows of it.
                number = view[0]
                gone |= alive - view[1]
            if view is not None:
                successors[other] = view[2]
        if gone or number > former:
            alive -= gone
            control.show_view(number, alive, successor)
            continue
        if not behind:
            return number, successors
        if deadline.over:
            raise OperationTimeout(f"shrink: {ranks_text(behind, size)} did not come within {deadline}")
        time.sleep(pause)  # no event tells that a view has changed
        pause = min(2 * pause, _PAUSES[1])
