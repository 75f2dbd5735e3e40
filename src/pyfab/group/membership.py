"""How the members of a group change: what several groups share, and who goes on when ranks have died.

If a rank dies while the others meet in a new group for the first time, some of them get through the barrier and others find the
death. Nobody can tell at once which others got through. Each shows what it knows in its control window:

- Who gets through has **settled**: it goes on in the new group, and a death is a matter of that group.
- Who finds a death has **given up**. It shows which ranks it has found dead, so that nobody waits for them, or for this rank.
  Then it looks at the others. If one of them has settled, it settles too. If all that live have given up, nobody will settle.

So either all that live go on in the new group, or none (`settle`). After a death, `shrink` makes the new group: the ranks agree
on who is left, and meet there. What they know is shown in the window of the former group, where also those are seen that have
found the second death before they agreed. Who gives up agrees anew there; once all that live do so, nobody has settled. Who
settles keeps the window of the former group until the new group ends.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pyfab.core.deadline import Deadline
from pyfab.core.errors import ClosedError, FabricError, OperationTimeout, PeerLostError
from pyfab.core.region import RemoteRegion
from pyfab.group.collectives import Collectives
from pyfab.group.control import GONE, Control
from pyfab.meeting.ranks import ranks_text
from pyfab.meeting.views import GAVE_UP

if TYPE_CHECKING:
    from pyfab.core.address_vector import AddressVector
    from typing_extensions import Self

G = TypeVar("G", bound="Members")

CAPACITY = 4096  # ranks that a view has room for
_PAUSES = 0.001, 0.05  # seconds between looks at the others' views: at first, at most
GRACE = 2.0  # seconds at least that ranks have to tell what they know of a death, even if it was found at the end of the time


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
    control: Control,
    alive: set[int],
    number: int,
    successor: bytes,
    deadline: Deadline,
    left: int = 0,
) -> tuple[int, dict[int, bytes]]:
    """Drops the ranks that are gone from `alive`, until all others show the same view.

    Returns the number of the agreement, at least `number`, and the successors of all, by rank. A rank that sees that another is
    gone shows it, and no rank comes back. So the views shrink until they are equal. OperationTimeout names ranks that did not
    come.

    `left` is the number of a former agreement whose group this rank has left, or 0. If another rank has settled in that group,
    the result is `left`, and no successors.
    """
    rank, size = control.rank, control.size
    own = control.view_of(rank)
    number = max(number, own.number if own is not None else 0)  # a repeated call never shows less than before
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
            if view is None:
                behind.append(other)
                continue
            if left and view.settled == left:
                return left, {}
            if view.number < number or view.alive != alive:
                behind.append(other)
            if view.number > number:
                # The other rank had agreed before, then lost one more, and waits until this rank knows of it.
                number = view.number
                gone |= alive - view.alive
            successors[other] = view.successor
        if gone or number > former:
            alive -= gone
            if rank not in alive:
                raise PeerLostError(
                    f"shrink: the others take rank {rank} of {size} for lost, as it did not answer for too long"
                )
            control.show_view(number, alive, successor)
            continue
        if not behind:
            return number, successors
        if deadline.over:
            raise OperationTimeout(f"shrink: {ranks_text(behind, size)} did not come within {deadline}")
        time.sleep(pause)  # no event tells that a view has changed
        pause = min(2 * pause, _PAUSES[1])


def settle(control: Control, deadline: Deadline) -> None:
    """The first barrier of a group. If a rank dies there, all that live raise PeerLostError, or none does."""
    try:
        control.barrier(deadline.remaining())
    except PeerLostError:
        if not _one_has_settled(control, deadline):
            raise
    control.come_through()


def _one_has_settled(control: Control, deadline: Deadline) -> bool:
    """Whether a rank has. False once all that live have given up and agree on who lives, or when the time is over."""
    left = deadline.remaining()
    deadline = Deadline(left if left is None else max(left, GRACE))
    alive, pause = _found_alive(control), _PAUSES[0]
    control.give_up(alive)
    while control.rank in alive:
        gone, agreed = set(), True
        for other in sorted(alive):
            try:
                view = control.view_of(other)
            except GONE:
                gone.add(other)
                continue
            if view is not None and view.settled not in (0, GAVE_UP):
                return True
            if view is not None and view.settled == GAVE_UP:
                gone |= alive - view.alive
            agreed &= view is not None and view.settled == GAVE_UP and view.alive == alive
        if gone:
            # Shown before anybody relies on it: who died may have settled, and the others may know.
            alive -= gone
            control.give_up(alive)
        elif agreed or deadline.over:
            return False
        else:
            time.sleep(pause)  # no event tells that a view has changed
            pause = min(2 * pause, _PAUSES[1])
    return False


def _found_alive(control: Control) -> set[int]:
    return set(range(control.size)) - control.gone()


@dataclass
class Successor(Generic[G]):
    """What a rank that shrinks its group has shown the others.

    They may use it, so it stays open until the group ends or is replaced.
    """

    control: Control
    alive: set[int]
    number: int = 1  # the number of the agreement
    group: G | None = None  # the next group, once this rank has agreed
    left: Successor[G] | None = None  # the one before, in whose barrier this rank found a death
    settled: bool = False

    def close(self) -> None:
        """Ends the next group, or only its control window, and the one before. Local."""
        if self.left is not None:
            self.left.close()
        if self.group is not None:
            self.group._end(wait=False)
        else:
            self.control.close()


class Members(Collectives):
    """The ranks of a group, and how those that are left go on. `Group` adds how others come."""

    epoch: int = 0  #: How many groups came before, by `split`, `shrink` and `admit`.
    lost: tuple[int, ...] = ()  #: After `shrink`: who is missing, by ranks in the group before.
    _hosts: list[str]  # where the ranks are
    _resources: Shared

    @classmethod
    def _unmet(cls, rank: int, size: int, timeout: float | None) -> Self:
        """A group that has met nobody yet. Who makes it gives it endpoint, keys and control window."""
        group = object.__new__(cls)
        group._begin(rank, size, timeout)
        return group

    def _begin(self, rank: int, size: int, timeout: float | None) -> None:
        super().__init__(rank, size, timeout)
        self._successor: Successor[Self] | None = None  # what an unfinished `shrink` has shown
        self._former: Control | None = None  # that of the group before, which a rank may still look at

    def shrink(self, timeout: float | None = -1) -> Self:
        """Makes a group of the remaining ranks when others have died or left. Its `lost` has their ranks in this group.

        All remaining ranks call it. Each asks all others for a sign of life until all agree. This group and its windows are
        closed without waiting. OperationTimeout names ranks that live but did not call it; then you may repeat the call, which
        goes on from there.
        """
        self._check()
        deadline = Deadline(self._timeout(timeout))
        for window in list(self._windows):
            window._release()
        self._windows.clear()
        return self._shrink(deadline)

    def leave(self) -> None:
        """Closes the group for this rank alone, without waiting. The other ranks then call `shrink`."""
        self._end(wait=False)

    def _shrink(self, deadline: Deadline) -> Self:
        """`shrink`, when the windows are closed."""
        while True:
            begun = self._successor or Successor(self._new_control(), set(range(self.size)))
            self._successor = begun
            if begun.group is None and not self._agreed(begun, deadline):
                continue
            assert begun.group is not None
            group = begun.group
            try:
                if begun.settled:
                    group = group._shrink(deadline)
                else:
                    group.barrier(deadline.remaining())
                    self._settle_in(begun)
            except PeerLostError:
                if begun.settled:
                    raise
                group._control.give_up(_found_alive(group._control))
                alive, number = set(begun.alive), begun.number + 1
                self._successor = Successor(self._new_control(), alive, number, left=begun)
                continue
            kept = set(group._handles)
            group.lost = tuple(rank for rank, handle in enumerate(self._handles) if handle not in kept)
            self._successor = None
            self._end(wait=False, heir=group if group is begun.group else None)
            return group

    def _agreed(self, begun: Successor[Self], deadline: Deadline) -> bool:
        """Agrees with the others, which makes the next group. False if this rank has settled in the one that it left."""
        left = begun.left
        before = left.number if left is not None else 0
        number, successors = agree(
            self._control, begun.alive, begun.number, begun.control.remote, deadline, before
        )
        if left is not None:
            if number == before:
                self._successor = left
                self._settle_in(left)
                begun.left = None
                begun.close()
                return False
            left.close()
            begun.left = None
        begun.number = number
        ranks = sorted(begun.alive)
        controls = [successors[rank] for rank in ranks]
        # Two agreements that follow each other differ in their number or in how many ranks are left, and neither goes back.
        generation = number + self.size - len(ranks)
        begun.group = self._descend(begun.control, ranks.index(self.rank), ranks, controls, generation)
        return True

    def _settle_in(self, begun: Successor[Self]) -> None:
        assert begun.group is not None
        begun.settled = True
        self._control.show_settled(begun.number)
        self._keys.shrunk(self.size, begun.group.size)

    def _new_control(self, capacity: int = CAPACITY) -> Control:
        return Control(self.domain, self.endpoint, capacity, self._keys)

    def _inherit(self, group: Members, control: Control) -> None:
        """Takes what a group that comes after another one has from that."""
        self.domain, self.endpoint, self._keys = group.domain, group.endpoint, group._keys
        self._control, self.epoch = control, group.epoch + 1

    def _descend(
        self, control: Control, rank: int, ranks: list[int], controls: list[bytes], generation: int = 0
    ) -> Self:
        """A group of some of these ranks over the same endpoint. Its ranks have not waited for each other yet."""
        group = self._unmet(rank, len(ranks), self.timeout)
        group._inherit(self, control)
        group._handles = tuple(self._handles[r] for r in ranks)
        group._hosts = [self._hosts[r] for r in ranks]
        remotes = [RemoteRegion.from_bytes(data) for data in controls]
        group._control.connect(rank, remotes, group._handles, generation)
        group._resources = self._resources.share(group._handles)
        return group

    def _end(self, wait: bool, heir: Self | None = None) -> None:
        """Ends the group on this rank. The control window stays open until `heir` ends."""
        if self._closed:
            return
        self._closed = True
        try:
            if wait:
                try:
                    self.endpoint.flush(None, self.timeout)
                    self._control.barrier(self.timeout, "close()")
                except OperationTimeout as error:
                    warnings.warn(
                        f"closed without waiting any longer: {error.strerror}", RuntimeWarning, stacklevel=3
                    )
                except FabricError:
                    pass  # nobody can wait for a rank that is gone
            for window in reversed(self._windows):
                window._release()
        finally:
            self._windows.clear()
            if self._successor is not None:
                self._successor.close()
            self._take_back()
            if self._former is not None:
                self._former.close()
            if heir is None:
                self._control.close()
            else:
                heir._former = self._control
            self._resources.release(self._handles)
