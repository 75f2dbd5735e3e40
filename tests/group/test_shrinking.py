"""Ranks die while the others agree on who is left, and the ones that are left find each other all the same."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

StartRanks = Callable[..., "list[subprocess.Popen[str]]"]
Start = Callable[..., "subprocess.Popen[str]"]

# Ranks 0 to 2 agree when rank 0 has killed rank 3, and go to the first barrier of their group. In its last round each waits for
# the rank after it. Rank 0 stops before that round, so rank 2 cannot get through, and rank 1 can. Then rank 0 kills rank 2.
ONE_GOT_THROUGH = """
import os, signal, sys, time, pyfab
from pyfab.meeting.views import SETTLED
group = pyfab.Group.from_env(sys.argv[1], timeout=60)
pids = group.allgather(os.getpid())

def kill(rank):
    os.kill(pids[rank], signal.SIGKILL)
    while True:  # until the others see it too
        try:
            if group._control.view_of(rank) is None:
                continue
        except pyfab.FabricError:
            return

def through(rank):
    view = group._control.view_of(rank)
    return view is not None and 0 < view.settled < SETTLED

def stopping(*args):
    next_group = descend(*args)
    start, rounds = next_group._control._start, []
    def stop(rank, method, *args):
        if method.__name__ == "write":
            rounds.append(rank)
            if rounds == [1, 2]:
                while not through(1):
                    time.sleep(0.001)
                kill(2)
        return start(rank, method, *args)
    next_group._control._start = stop
    group._descend = descend
    return next_group

try:
    group.barrier()  # behind it, nobody is in the call before any more
    if group.rank == 3:
        signal.pause()
except pyfab.PeerLostError:
    pass  # rank 3 was killed before this rank was through
if group.rank == 0:
    descend, group._descend = group._descend, stopping
    kill(3)
found = []
smaller = group
while True:
    try:
        seen = smaller.allgather(group.rank)
        break
    except pyfab.PeerLostError:
        if found and group.rank == 1 and sys.argv[2] == "leave":
            smaller.leave()
            sys.exit()
        smaller = smaller.shrink()
        found.append(smaller.lost)
print(found, seen)
smaller.close()
group.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stay", "leave"])
def test_one_got_through_and_one_did_not(start_ranks: StartRanks, links: str, way: str) -> None:
    ranks = start_ranks(ONE_GOT_THROUGH, 4, links, way)
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks[:2]]
    if way == "stay":
        assert outputs == ["[(2, 3)] [0, 1]\n", "[(3,), (2,)] [0, 1]\n"]
    else:  # rank 0 may have met rank 1 before that left
        assert outputs in (["[(1, 2, 3)] [0]\n", ""], ["[(2, 3), (1,)] [0]\n", ""])


# Ranks 0 to 2 meet in a new group. As above, rank 0 stops before the last round of the barrier, and kills rank 2 once rank 1 is
# through. Or it kills rank 2 before the first round; then it depends on rank 2 whether rank 1 can get through.
MET_BY_SOME = """
import os, signal, sys, time, pyfab
from pyfab.meeting.views import SETTLED
spec, how, when, folder, joins = sys.argv[1:]
group = pyfab.Group.from_env(spec, timeout=60)
victim = int(joins) or group.allgather(os.getpid())[2]

def through(control):
    view = control.view_of(1)
    return view is not None and view.settled == SETTLED

def stopping(*args):
    control = new_control(*args)
    start, rounds = control._start, []
    def stop(rank, method, *args):
        if method.__name__ == "write":
            rounds.append(rank)
            if rounds == ([1, 2] if when == "late" else [1]):
                while when == "late" and not through(control):
                    time.sleep(0.001)
                os.kill(victim, signal.SIGKILL)
                while True:
                    try:
                        control.view_of(2)
                    except pyfab.FabricError:
                        break
        return start(rank, method, *args)
    control._start = stop
    return control

if group.rank == 0:
    new_control, group._new_control = group._new_control, stopping
try:
    group = group.split(0) if how == "split" else group.admit("file://" + folder, 1)
    print("met")
    vars(group).pop("_new_control", None)
    try:
        print(group.allgather(group.rank))
        sys.exit("nobody died")
    except pyfab.PeerLostError:
        group = group.shrink()
except pyfab.PeerLostError:
    print("not met")
    vars(group).pop("_new_control", None)
    if how == "split":
        group = group.shrink()
print(group.lost, group.allgather(group.rank))
group.close()
"""
JOINS = """
import sys, pyfab
pyfab.Group.join("file://" + sys.argv[2], 0, 1, sys.argv[1], timeout=60).barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["split", "admit"])
@pytest.mark.parametrize("when", ["late", "early"])
def test_all_meet_in_a_new_group_or_none(
    start_ranks: StartRanks, start: Start, tmp_path: Path, links: str, how: str, when: str
) -> None:
    place = str(tmp_path / "joins")
    if how == "split":
        ranks = start_ranks(MET_BY_SOME, 3, links, how, when, place, "0")
    else:
        joins = start(JOINS, links, place)
        ranks = start_ranks(MET_BY_SOME, 2, links, how, when, place, str(joins.pid))
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks[:2]]
    met = "met\n(2,) [0, 1]\n"
    not_met = "not met\n() [0, 1]\n" if how == "admit" else "not met\n(2,) [0, 1]\n"
    assert outputs in ([[met] * 2] if when == "late" else [[met] * 2, [not_met] * 2])


# Ranks die one after the other, at times that nobody chose, while the others shrink, and shrink again, until those that are left
# have met twice in one group.
AT_ANY_TIME = """
import json, os, signal, sys, threading, time, pyfab
group = pyfab.Group.from_env(sys.argv[1], timeout=60)
ends = json.loads(sys.argv[2])
first = group.rank
group.barrier()
if str(first) in ends:
    threading.Timer(ends[str(first)], os.kill, (os.getpid(), signal.SIGKILL)).start()
until = time.monotonic() + max(ends.values())
while True:
    try:
        seen = group.allgather(first)
        late = group.allgather(time.monotonic() > until)
        if all(late) and not set(map(str, seen)) & set(ends):
            break
    except pyfab.PeerLostError:
        group = group.shrink()
print(seen)
group.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(8))
def test_ranks_that_die_at_any_time(start_ranks: StartRanks, links: str, turn: int) -> None:
    chance = random.Random(turn)
    size = chance.randint(4, 6)
    lost = chance.sample(range(size), chance.randint(2, size - 2))
    ends = {str(rank): chance.uniform(0.01, 0.02) * (1 + turn / 2) for rank in lost}
    ranks = start_ranks(AT_ANY_TIME, size, links, json.dumps(ends))
    left = [rank for rank in range(size) if rank not in lost]
    outputs = [ranks[rank].communicate(timeout=60)[0] for rank in left]
    assert outputs == [f"{left}\n"] * len(left), (ends, outputs)
