"""A member of a store whose history is written down: python member.py LINKS FOLDER NUMBER RECOVERIES SEED [REPLICAS]."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
from pyfab.store import Store, recover

KEYS = [f"key {number}" for number in range(4)]
CAPACITY = 100_000  # so little that the places of records are taken again and again


def value_of(stamp: int) -> dict[str, Any]:
    """A value of any length, all of which says which one it is."""
    return {"stamp": stamp, "all": [np.full(stamp % 1999, stamp), np.full((2, stamp % 13), float(stamp))]}


def stamp_of(value: Any) -> int:
    """Which value it is; 0 for none. Fails if it is not whole."""
    if value is None:
        return 0
    expected = value_of(value["stamp"])
    for array, other in zip(value["all"], expected["all"], strict=True):
        assert np.array_equal(array, other), f"mixed values: {np.unique(array)} in {value['stamp']}"
    return int(value["stamp"])


class Member:
    """Does what chance says, and writes it down before and after."""

    def __init__(self, folder: Path, number: int, seed: int) -> None:
        self.folder, self.number = folder, number
        self.chance = random.Random(seed * 1000 + number)
        self.journal = (folder / f"journal-{number}").open("a", buffering=1)
        self.count = 0
        self.seen = dict.fromkeys(KEYS, (0, 0))  # version and stamp

    def say(self, *words: Any) -> None:
        self.journal.write(json.dumps(words) + "\n")

    def step(self, store: Store) -> None:
        self.count += 1
        key = self.chance.choice(KEYS)
        kind = self.chance.choices(["put", "get", "view", "cas", "delete"], [5, 6, 3, 8, 1])[0]
        stamp = self.number << 32 | self.count
        version, before = self.seen[key]
        self.say("call", time.monotonic_ns(), self.count, kind, key, stamp, version, before)
        try:
            found = getattr(self, kind)(store, key, stamp, version)
        except pyfab.TooSmallError:
            found = "no room", 0
        self.say("back", time.monotonic_ns(), self.count, *found)

    def put(self, store: Store, key: str, stamp: int, _: int) -> tuple[int, int]:
        self.seen[key] = store.put(key, value_of(stamp)), stamp
        return self.seen[key]

    def get(self, store: Store, key: str, *_: int) -> tuple[int, int]:
        (entry,) = store.read([key])
        self.seen[key] = entry.version, stamp_of(entry.value)
        return self.seen[key]

    def view(self, store: Store, key: str, *_: int) -> tuple[int, int]:
        while (view := store.view(key)) is not None:
            try:
                stamp = stamp_of(view.value)
            except AssertionError:
                assert not view.is_current()  # the place was taken, and the view says so
                continue
            if view.is_current():
                self.seen[key] = view.version, stamp
                return self.seen[key]
        return 0, 0

    def cas(self, store: Store, key: str, stamp: int, version: int) -> tuple[int, bool]:
        done, now = store.compare_and_set(key, version, value_of(stamp))
        if done:
            self.seen[key] = now, stamp
        return now, done

    def delete(self, store: Store, key: str, *_: int) -> tuple[int, bool]:
        return 0, store.delete(key)


def main(links: str, folder: Path, number: int, recoveries: int, seed: int, replicas: int) -> None:
    member = Member(folder, number, seed)
    if "PYFAB_RANK" in os.environ:
        group = pyfab.Group.from_env(links)
        store = Store(group, capacity=CAPACITY, keys=64, replicas=replicas)
    else:
        group = pyfab.Group.join(f"file://{folder}/place-{recoveries}", 0, 1, links)
        store = recover(group)
    member.say("joined")
    stop = folder / "stop"
    while not stop.exists():
        try:
            member.step(store)
        except pyfab.PeerLostError:
            former, group = group, group.shrink()
            assert len(group.lost) == 1, group.lost
            recoveries += 1
            left, group = group, group.admit(f"file://{folder}/place-{recoveries}", 1)
            store = recover(group, store)
            left.leave()
            del former, left
            member.say("recovered")
    store.close()
    group.close()


if __name__ == "__main__":
    links, folder, *numbers = sys.argv[1:]
    main(links, Path(folder), *map(int, numbers))
