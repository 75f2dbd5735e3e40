"""What is left of a checkpoint when ranks have died."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from pyfab.checkpoint import _spill
from pyfab.checkpoint._checkpoint import Checkpoint
from pyfab.core.errors import ClosedError, InvalidArgumentError, PeerLostError
from pyfab.group.group import Group
from pyfab.weights._layout import Card, Held
from pyfab.weights._reader import Reader
from pyfab.weights._tensors import Kind, leaves_of

Copies = dict[int, list[tuple[int, Card]]]
"""By the former rank whose state it is: who has it, by rank of the new group."""


class Recovered:
    """A version of the checkpoint of a former group that has the states of all its ranks. Made by `recover`.

    The states stay where they are until all ranks have closed this object: `close` is collective.
    """

    def __init__(
        self, group: Group, version: int, former: list[int | None], copies: Copies, timeout: float | None
    ) -> None:
        self._group, self._copies, self._timeout = group, copies, timeout
        self._closed = False
        self.version = version
        """The version that all states are of."""
        self.size = len(copies)
        """How many ranks the former group had."""
        self.former_rank = former[group.rank]
        """What this rank was in the former group; None if it was not there."""
        self.lost = tuple(owner for owner in sorted(copies) if owner not in former)
        """The former ranks that are not here any more."""
        # New ranks take a lost state each; what is left is dealt out to all.
        new = [rank for rank, owner in enumerate(former) if owner is None]
        takers = new + [rank for rank in range(group.size) if rank not in new]
        dealt = [owner for number, owner in enumerate(self.lost) if takers[number % group.size] == group.rank]
        self.owners = tuple(([] if self.former_rank is None else [self.former_rank]) + dealt)
        """The former ranks whose states this rank may take over, so that each is taken by one: its own, and some of the lost."""

    def tensors(self, owner: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each tensor of a former rank's state, by name. Local."""
        self._check(owner)
        _, card = self._copies[owner][0]
        return {held.name: (held.kind.dtype, held.kind.shape) for held in card.layout.held}

    def read(self, into: Any, owner: int | None = None, *, convert: bool = False) -> int:
        """Fills `into` with the state of a former rank, by default that of this rank. Returns the version.

        into, convert: as for `weights.Reader.plan`. Not collective. FabricError if a checksum differs.
        """
        owner = self.former_rank if owner is None else owner
        return self._pull(self._copies[self._check(owner)], into, convert)

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes the states of `owners` to files, as `Checkpoint(spill=folder)` does. `load` reads them when all ranks are done.

        Use it with launchers that start all ranks anew when one has died, as torchrun does. All ranks of the next start must see
        the folder. OSError if a file cannot be written.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        for owner in self.owners:
            cards = self._copies[owner]
            layout = cards[0][1].layout
            # A buffer is read as if it were one array of bytes.
            bytes_of_all = Held("state", Kind("uint8", 1, (layout.size,)), ((0, layout.size),), 0)
            as_bytes = layout._replace(held=(bytes_of_all,), checksums=False)
            memory = np.empty(layout.size, np.uint8)
            copies = [(rank, card._replace(layout=as_bytes)) for rank, card in cards]
            self._pull(copies, {"state": memory}, convert=False)
            _spill.write(Path(folder), (self.version, owner, self.size), layout, memory)

    def _check(self, owner: int | None) -> int:
        if owner is None or owner not in self._copies:
            raise InvalidArgumentError(
                f"owner={owner}: the former ranks are 0 to {self.size - 1}"
                + ("; this rank is a new one, so say whose state it takes" if owner is None else "")
            )
        return owner

    def merge(self, into: Any, *, convert: bool = False) -> int:
        """Fills `into` from the states of all former ranks, which have shards of the same tensors. Returns the version.

        So a model can go on with another number of ranks. A `weights.Shard` says which part of a tensor a rank reads, and which
        part a former rank had. Tensors that several former ranks had as a whole, under one name, must be equal.
        """
        return self._pull([copy for copies in self._copies.values() for copy in copies], into, convert)

    def _pull(self, cards: list[tuple[int, Card]], into: Any, convert: bool) -> int:
        if self._closed:
            raise ClosedError("what was recovered is closed")
        reader = Reader._of_ranks(self._group, cards, leaves_of(into).keys(), self._timeout)
        return reader.pull(into, self.version, plan=reader.plan(into, convert=convert))

    def close(self) -> None:
        """Waits until all ranks have read what they need. Collective."""
        if not self._closed:
            self._closed = True
            self._group.barrier(self._timeout)

    def __enter__(self) -> Recovered:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes; after an exception without waiting for the others."""
        if kind is None:
            self.close()
        self._closed = True

    def __repr__(self) -> str:
        return f"Recovered(version {self.version} of {self.size} ranks, lost: {list(self.lost)})"


def recover(group: Group, former: Checkpoint | None = None) -> Recovered:
    """Finds the newest version of which the states of all ranks are left. Collective over `group`.

    group: the remaining ranks, from `Group.shrink`, and new ones, from `Group.admit` and `Group.join`. Ranks that have the
    checkpoint pass it, new ones pass None. Saves that are under way end, and the old checkpoint saves nothing more. After you
    have closed the result, make a new `Checkpoint` of the new group. PeerLostError names ranks whose states are lost, because
    more ranks have died than there are replicas. InvalidArgumentError if no version was saved by all ranks.
    """
    told: Any = None
    if former is not None:
        former._give_up()
        told = {"job": former._job, "rank": former.rank, "size": former.size, "cards": former._cards()}
    timeout = group.timeout if former is None else former.timeout
    answers = group._allgather(told, timeout, "checkpoint.recover()")
    present = [answer for answer in answers if answer is not None]
    if not present:
        raise InvalidArgumentError("no rank gave a checkpoint to recover")
    if any(answer["job"] != present[0]["job"] for answer in present):
        raise InvalidArgumentError(
            "the ranks gave different checkpoints to recover; all give the one that they made together"
        )
    owners = range(present[0]["size"])
    copies: Copies = {owner: [] for owner in owners}
    versions: dict[int, set[int]] = {owner: set() for owner in owners}
    for rank, answer in enumerate(answers):
        for owner, card, held in answer["cards"] if answer is not None else ():
            copies[owner].append((rank, Card.from_bytes(card)))
            versions[owner].update(held)
    gone = [owner for owner in owners if not copies[owner]]
    if gone:
        raise PeerLostError(
            f"the states of the former ranks {gone} are lost with all that held them; {len(present)} of {len(owners)} ranks are"
            " left: more replicas outlive more ranks, and spill= writes files"
        )
    common = set.intersection(*versions.values())
    if not common:
        raise InvalidArgumentError(f"no version was saved by all ranks; there are {versions}")
    ranks = [None if answer is None else int(answer["rank"]) for answer in answers]
    return Recovered(group, max(common), ranks, copies, timeout)
