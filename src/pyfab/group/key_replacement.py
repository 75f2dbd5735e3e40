"""How the ranks of a group agree on another key.

All of them serve both keys, and take proofs that are made with either, before anybody uses the next one; and all use it before
anybody removes the former one. Each step ends with a barrier. A rank that is late, or dies, stops all at the same step or at the
next one, where both keys still hold; a repeated call goes on from there.
"""

from __future__ import annotations

from pyfab.core.buffers import auth_key_of, stretched_key
from pyfab.core.deadline import Deadline
from pyfab.core.errors import FabricError, InvalidArgumentError
from pyfab.group.communicator import Communicator
from pyfab.group.keys import Keys
from pyfab.meeting.sealing import derive


def replace_key(group: Communicator, keys: Keys, key: bytes, end_streams: bool, deadline: Deadline) -> None:
    """`Group.replace_auth_key`."""
    key, ring = auth_key_of(key), group.domain.auth_keys
    if group.size != keys.members:
        raise InvalidArgumentError(
            f"this group has {group.size} ranks, and {keys.members} have its key: call it in the group of all of them"
        )
    if keys.next not in (None, key):
        raise InvalidArgumentError("the key is being replaced by another one: repeat that call first")
    if keys.replaced_in is not group:
        _agree(group, keys, key, deadline)
    if keys.passed == 0:
        ring.use(key)
        group._barrier(deadline.remaining(), "replace_auth_key()")
        keys.replace()
        keys.passed = 1
    group._barrier(
        deadline.remaining(), "replace_auth_key()"
    )  # behind it, all use the next key, and prove with it
    if key != keys.former:
        ring.remove(keys.former, end_streams=end_streams)
    keys.settle()


def _agree(group: Communicator, keys: Keys, key: bytes, deadline: Deadline) -> None:
    former = keys.former if keys.next else keys.secret(group.domain)
    ring, added = group.domain.auth_keys, False
    told: tuple[bytes, str] = derive(stretched_key(key), b"comparison of keys"), ""
    try:
        added = ring._add(key, former)
    except FabricError as error:
        told = b"", str(error)
    # Whoever gets the others' answers knows that all of them serve both keys.
    answers = group._allgather(told, deadline.remaining(), "replace_auth_key()")
    problems = [f"rank {rank}: {problem}" for rank, (_, problem) in enumerate(answers) if problem]
    problems += [
        f"rank {rank}: it gave another key than rank {group.rank}"
        for rank, (same, _) in enumerate(answers)
        if same != told[0]
    ]
    if problems:
        if added:
            ring.remove(key)
        raise InvalidArgumentError(f"the key stays the former one. {problems[0]}")
    keys.expect(key, former, group)
