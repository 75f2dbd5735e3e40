"""What only a look at everybody's journal tells: that nothing was lost, done twice or made up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import journal
import numpy as np
from journal import Event, Kind, Status
from supervisor import Incarnation, Supervisor

Key = tuple[int, int]


class Judge:
    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.reload()

    def reload(self) -> None:
        self.records = {
            key: journal.read(self.supervisor.folder / f"journal-{key[0]}-{key[1]}")
            for key in self.supervisor.incarnations
        }

        self.ends = {
            key: _by_target(records[records["event"] == Event.END]) for key, records in self.records.items()
        }

    # --- messages and notices: each came at most once, and once if it had to

    def missing(self) -> list[str]:
        """Messages and notices that succeeded in a way that they must have come, and did not."""
        found = []
        for target in (member.key for member in self.supervisor.now.values()):
            got = self.records[target]
            got = np.sort(_identities(got[got["event"] == Event.GOT], from_peer=True))
            for source in self.supervisor.incarnations:
                must = self._ends(source, target, Kind.SEND, Kind.NOTICE)
                sure = Status.SENT if self._undisturbed(source, target) else Status.DONE
                must = must[must["status"] <= sure]
                came = _among(_identities(must, source=source), got)
                found += [f"{_describe(source, record)} succeeded and never came" for record in must[~came]]
        return found

    def _ends(self, source: Key, target: Key, *kinds: Kind) -> np.ndarray:
        """Outcomes at `source` of what it did to `target`."""
        ends = self.ends[source].get(target, np.empty(0, journal.RECORD))
        return ends[np.isin(ends["kind"], kinds)] if kinds else ends

    def _undisturbed(self, source: Key, target: Key) -> bool:
        """Whether nothing happened to the two that may cut the path between them. Leaving is orderly."""
        members = self.supervisor.incarnations
        if set(members[source].lossy) - {"leave"} or members[target].lossy:
            return False
        outcomes = [self._ends(source, target)["status"], self._ends(target, source)["status"]]
        if any((each == Status.LOST).any() for each in outcomes):
            return False
        # Over tcp a rank that comes back has the name of the one before, and what is sent to it goes the same way until the
        # loss of that one is noticed: a loss which is told after the first success cuts what was sent until then.
        rank, incarnation = target
        first = min(self._ends(source, target)["time"], default=np.inf)
        former = [self._ends(source, (rank, earlier)) for earlier in range(incarnation)]
        return not any((each["time"][each["status"] == Status.LOST] > first).any() for each in former)

    def made_up(self) -> list[str]:
        """What came without having been posted, or although it was told that it did not happen, or twice."""
        posted, undone = [], []
        for source, records in self.records.items():
            records = records[np.isin(records["kind"], (Kind.SEND, Kind.NOTICE))]
            posted.append(_identities(records[records["event"] == Event.BEGIN], source=source))
            undone.append(
                _identities(
                    records[np.isin(records["status"], (Status.UNREACHABLE, Status.REJECTED))], source=source
                )
            )
        all_posted, all_undone = np.sort(np.concatenate(posted)), np.sort(np.concatenate(undone))
        found = []
        for target, records in self.records.items():
            got = records[records["event"] == Event.GOT]
            identities = _identities(got, from_peer=True)
            _, first = np.unique(identities, return_index=True)
            again = np.ones(len(got), bool)
            again[first] = False
            for what, wrong in (
                ("was never posted", ~_among(identities, all_posted)),
                ("was told to have failed", _among(identities, all_undone)),
                ("came before", again),
            ):
                found += [
                    f"{_describe((record['peer'], record['incarnation']), record)} came to {target} and {what}"
                    for record in got[wrong]
                ]
        return found

    # --- atomics

    def sums(self) -> list[str]:
        """Each counter is at least what surely was added, and at most that and what perhaps was."""
        found = []
        sure: Counter[tuple[Key, int, Key]] = Counter()
        most: Counter[tuple[Key, int, Key]] = Counter()
        for source, records in self.records.items():
            records = records[records["kind"] == Kind.ADD]
            failed = np.isin(records["status"], (Status.UNREACHABLE, Status.REJECTED))
            for counter, chosen, sign in (
                (most, records["event"] == Event.BEGIN, 1),
                (most, failed, -1),
                (sure, records["status"] == Status.DONE, 1),
            ):
                rows, counts = np.unique(
                    records[chosen][["peer", "incarnation", "where"]], return_counts=True
                )
                for (rank, incarnation, where), count in zip(rows.tolist(), counts.tolist(), strict=True):
                    counter[(rank, incarnation), where, source] += sign * count
        for target, member in self.supervisor.incarnations.items():
            for source, memories in member.counters.items():
                for memory, words in enumerate(memories):
                    for word, where in ((0, 0), (1, 4)):
                        key = target, where + memory, source
                        if not sure[key] <= words[word] <= most[key]:
                            found.append(
                                f"{source} added {sure[key]} to {most[key]} at {target}, memory {memory}, word {word}, "
                                f"where {words[word]} is found"
                            )
            for memory, words in enumerate(member.final_commons):
                least, greatest = (
                    sum(
                        count
                        for (to, where, _), count in each.items()
                        if to == target and where == 2 + memory
                    )
                    for each in (sure, most)
                )
                if not least <= words[0] <= greatest:
                    found.append(
                        f"all added {least} to {greatest} to the counter of {target}, memory {memory}; there: {words[0]}"
                    )
        return found

    # --- keys

    def rejections(self) -> list[str]:
        """A key is refused only by a process that came in the place of the one that gave it, or was about to end."""
        members: dict[Key, Incarnation] = self.supervisor.incarnations
        found = []
        for source in members:
            for target, member in members.items():
                if member.ending in ("", "end") and not members[source].lossy:
                    ends = self._ends(source, target)
                    refused = ends[ends["status"] == Status.REJECTED]
                    found += [
                        f"{_describe(source, each)} was rejected, and {target} lives" for each in refused
                    ]
        return found

    def figures(self) -> dict[str, Counter[str]]:
        """How often each kind of operation had each outcome."""
        table: dict[str, Counter[str]] = {}
        for source in self.supervisor.incarnations:
            records = self.records[source]
            for kind in Kind:
                of_kind = records[records["kind"] == kind]
                ends = of_kind[of_kind["event"] == Event.END]["status"]
                row = table.setdefault(kind.name.lower(), Counter())
                for status in Status:
                    row[status.name.lower()] += int((ends == status).sum())
                begun = int((of_kind["event"] == Event.BEGIN).sum())
                row["cut off"] += max(0, begun - len(ends))
                row["came"] += int((of_kind["event"] == Event.GOT).sum())
        return table


def _among(values: np.ndarray, sorted_ones: np.ndarray) -> np.ndarray:
    if not len(sorted_ones):
        return np.zeros(len(values), bool)
    places = np.searchsorted(sorted_ones, values)
    found: np.ndarray = sorted_ones[np.minimum(places, len(sorted_ones) - 1)] == values
    return found


def _by_target(records: np.ndarray) -> dict[Key, np.ndarray]:
    """Apart for each process that they were about."""
    whom = records["peer"].astype(np.uint32) << 16 | records["incarnation"]
    order = np.argsort(whom, kind="stable")
    different, starts = np.unique(whom[order], return_index=True)
    parts = np.split(records[order], starts[1:]) if len(different) else []
    return {(int(each) >> 16, int(each) & 0xFFFF): part for each, part in zip(different, parts, strict=True)}


def _identities(records: np.ndarray, source: Key = (0, 0), from_peer: bool = False) -> np.ndarray:
    """One number for each message or notice: who sent it, which kind, and its sequence number there."""
    rank, incarnation = (records["peer"], records["incarnation"]) if from_peer else source
    number = np.zeros(len(records), np.uint64)
    for value, bits in ((rank, 8), (incarnation, 12), (records["kind"], 4), (records["sequence"], 40)):
        number = (number << np.uint64(bits)) | np.asarray(value, np.uint64)
    return number


def _describe(source: Key, record: Any) -> str:
    return (
        f"{Kind(record['kind']).name.lower()} {record['sequence']} of {record['size']} bytes from {source[0]}/{source[1]} to "
        f"{record['peer']}/{record['incarnation']} (at {record['time']:.3f})"
    )
