"""How the ranks of a group agree on another key."""

from __future__ import annotations

from pyfab.core.buffers import auth_key_of, stretched_key
from pyfab.core.deadline import Deadline
from pyfab.core.errors import FabricError, InvalidArgumentError
from pyfab.group.communicator import Communicator
from pyfab.group.keys import Keys
from pyfab.meeting.sealing import derive


def replace_key(group: Communicator, keys: Keys, key: bytes, deadline: Deadline) -> None:
    """`Group.replace_auth_key`."""
    key, former, ring = auth_key_of(key), keys.secret, group.domain.auth_keys
    told: tuple[bytes, str] = derive(stretched_key(key), b"comparison of keys"), ""
    try:
        ring.add(key, former=former)
    except FabricError as error:
        told = b"", str(error)
    # Whoever gets the others' answers knows that all of them serve both keys.
    answers = group.allgather(told, deadline.remaining())
    problems = [f"rank {rank}: {problem}" for rank, (_, problem) in enumerate(answers) if problem]
    problems += [
        f"rank {rank}: it gave another key than rank {group.rank}"
        for rank, (same, _) in enumerate(answers)
        if same != told[0]
    ]
    if problems:
        if not told[1] and key != former:
            ring.remove(key)
        raise InvalidArgumentError(f"the key stays the former one. {problems[0]}")
    ring.use(key)
    group.barrier(deadline.remaining())
    keys.replace(key)
    if key != former:
        ring.remove(former)
    group.barrier(deadline.remaining())
