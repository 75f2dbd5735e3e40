"""A group whose members come and go while they are killed and stopped: each member of the chaos is in it, or waits to join.

The process of rank 0, which never ends, is rank 0 of the group, too, and says what all do next: a round with a window, whose
sums have to be exact; `admit` for those who wait; or that one leaves. Whatever fails ends in `shrink`, and who finds itself
without rank 0 then joins anew. Who waits says so by a file in a folder of the run, and is told there where to meet.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
from member import Member

TIMEOUT = 10.0  # seconds for anything that all do together
AT_ONCE = 4  # processes that are admitted together, at most
TRIES = 5  # of rank 0, to find the others again
ROUND, LEAVE = "round", "leave"

Word = tuple[str, Any]


class Lost(Exception):
    """Rank 0 is in another group than this one."""


class Groups:
    """The thread of one member."""

    def __init__(self, member: Member, folder: Path, domain: dict[str, Any]) -> None:
        self._member, self._folder, self._domain = member, folder, domain
        self._chance = random.Random(f"{member.seed}/{member.rank}/{member.incarnation}/groups")
        self._meetings = itertools.count()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        member = self._member
        while not member.stopping:
            try:
                group = self._found() if member.rank == 0 else self._join()
                if group is not None:
                    self._live(group)
            except (Lost, pyfab.FabricError) as error:
                if member.rank == 0:
                    raise
                self.counts[f"joins anew: {type(error).__name__}"] += 1

    # --- coming

    def _found(self) -> pyfab.Group:
        return pyfab.Group(0, 1, domain=self._domain, timeout=TIMEOUT)

    def _join(self) -> pyfab.Group | None:
        """Waits until it is told where to meet; None if it ends before that."""
        name = f"{self._member.rank}-{self._member.incarnation}-{next(self._meetings)}"
        waiting, invited = self._folder / f"waiting-{name}", self._folder / f"invited-{name}"
        waiting.touch()
        while not invited.exists():
            if self._member.stopping:
                return None
            time.sleep(0.05)  # no event tells of a file
        place, number, count = json.loads(invited.read_text())
        invited.unlink()
        return pyfab.Group.join(place, number, count, domain=self._domain, timeout=TIMEOUT)

    def _invite(self) -> Word | None:
        """Tells some of those who wait where to meet; what all others hear of it."""
        waiting = sorted(self._folder.glob("waiting-*"))[:AT_ONCE]
        if not waiting:
            return None
        place = f"file://{self._folder}/meeting-{next(self._meetings)}"
        for number, each in enumerate(waiting):
            name = each.name.removeprefix("waiting-")
            draft = self._folder / f"draft-{name}"
            draft.write_text(json.dumps([place, number, len(waiting)]))
            each.unlink()
            draft.rename(self._folder / f"invited-{name}")
        return place, len(waiting)

    # --- being there

    def _live(self, group: pyfab.Group) -> None:
        """Until this rank leaves, or all end."""
        try:
            while not (self._member.stopping and not self._member.draining and group.rank):
                try:
                    kind, what = group.broadcast(self._next(group) if group.rank == 0 else None)
                    if kind == "end":
                        group.close()
                        return
                    if kind == LEAVE:
                        if what == group.rank:
                            self.counts["left"] += 1
                            return
                        group = self._shrink(group)
                    elif kind == ROUND:
                        self._round(group, what)
                    else:
                        group = self._admit(group, kind, what)
                except pyfab.FabricError as error:
                    self._count(group, f"shrinks after {type(error).__name__}")
                    group = self._shrink(group)
        finally:
            group.leave()

    def _next(self, group: pyfab.Group) -> Word:
        """What rank 0 says."""
        if self._member.stopping and self.counts["rounds"]:
            return "end", None
        if self._member.stopping:  # who was stopped and starved all the time comes to his round at last
            return ROUND, self._chance.randrange(1 << 30)
        chance = self._chance.random()
        if chance < 0.3 and (invitation := self._invite()):
            return invitation
        if chance > 0.95 and group.size > 2:
            return LEAVE, self._chance.randrange(1, group.size)
        return ROUND, self._chance.randrange(1 << 30)

    def _admit(self, group: pyfab.Group, place: str, count: int) -> pyfab.Group:
        """The larger group; the former one if those who wait have not come."""
        try:
            larger = group.admit(place, count)
        except pyfab.OperationTimeout:
            self._count(group, "nobody came")
            return group
        group.leave()
        self._count(group, "admitted", count)
        return larger

    def _shrink(self, group: pyfab.Group) -> pyfab.Group:
        for attempt in itertools.count(1):
            try:
                smaller = group.shrink(3 * TIMEOUT)
            except pyfab.OperationTimeout:
                if group.rank or attempt == TRIES:
                    raise
            else:
                break
        if 0 in smaller.lost:
            smaller.leave()
            raise Lost(f"rank 0 of {group.size}")
        self._count(group, "lost", len(smaller.lost))
        return smaller

    def _round(self, group: pyfab.Group, number: int) -> None:
        """Everybody adds to everybody's first word and puts into a word of its own there, and gets what others have."""
        size, me = group.size, group.rank
        window = group.window(shape=1 + size, dtype=np.int64)
        window.fence()
        for step in range(size):
            peer = (me + step) % size
            window[peer].accumulate(me + 1, 0)
            window[peer].put(np.array([number + me]), np.s_[1 + me : 2 + me])
        window.fence()
        expected = [sum(range(size + 1)), *range(number, number + size)]
        found = np.empty(1 + size, np.int64)
        window[(me + 1) % size].get(found).result(TIMEOUT)
        for whose, words in (("its own", window.local), ("its neighbour's", found)):
            if words.tolist() != expected:
                self._member.fail(f"{whose} window at rank {me} of {size}: {words.tolist()}, not {expected}")
        window.close()
        self._count(group, "rounds")
        self.counts["windows' sums"] += size

    def _count(self, group: pyfab.Group, what: str, number: int = 1) -> None:
        """What happens to all, which rank 0 sees from first to last."""
        if group.rank == 0:
            self.counts[what] += number

    def told(self) -> dict[str, int]:
        """What happened, for the supervisor."""
        with contextlib.suppress(OSError):
            for mine in self._folder.glob(f"*-{self._member.rank}-{self._member.incarnation}-*"):
                mine.unlink()
        return dict(self.counts)
