"""What many ranks run: a module that imports little, as each of them imports it."""

from __future__ import annotations

import os
import signal
import threading

import pyfab


def meet_and_add(group: pyfab.Group) -> int:
    """The sum of all ranks."""
    group.barrier()
    return int(sum(group.allgather(group.rank)))


def fail_on_one(group: pyfab.Group, failing: int) -> None:
    group.barrier()
    if group.rank == failing:
        raise LookupError(f"no luck on rank {group.rank}")
    threading.Event().wait()


def kill_one(group: pyfab.Group, killed: int) -> None:
    group.barrier()
    if group.rank == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def wait(group: pyfab.Group) -> None:
    """For ever, once all are there and have told their numbers."""
    group.barrier()
    os.write(1, b"%d\n" % os.getpid())  # in one piece, beside those of others
    threading.Event().wait()
