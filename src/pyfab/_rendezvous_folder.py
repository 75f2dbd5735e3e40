"""A meeting in a folder that all ranks see."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from pathlib import Path

from pyfab._deadline import Deadline
from pyfab._errors import AccessDeniedError, InvalidArgumentError, OperationTimeout
from pyfab._ranks import incomplete

_POLL = 0.005, 0.05  # seconds between looks into a folder: at first, at most


def through_folder(folder: Path, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    """Each rank links its file ``<rank>-<size>`` in and, having read all, a file ``<rank>-done``.

    Who sees that all are done renames the folder, which one rank alone can do, and removes it.
    """
    where = f"file://{folder}"
    pause = _POLL[0]
    while not _enter(folder, rank, size, value):
        if deadline.over:
            raise OperationTimeout(
                f"{where}: a former meeting did not end within {deadline}; remove the folder"
            )
        time.sleep(pause)
    while True:
        names = {path.name for path in folder.iterdir()}
        others = sorted(n for n in names if n.partition("-")[2].isdigit() and not n.endswith(f"-{size}"))
        if others:
            raise InvalidArgumentError(
                f"{where}: rank {rank} counts {size} ranks, but {others[0]} (rank-size) is there"
            )
        arrived = [r for r in range(size) if f"{r}-{size}" in names]
        if len(arrived) == size:
            break
        if deadline.over:
            raise incomplete(arrived, size, deadline, where)
        time.sleep(min(pause, deadline.remaining(pause) or 0))
        pause = min(pause * 1.5, _POLL[1])
    values = [(folder / f"{r}-{size}").read_bytes() for r in range(size)]
    (folder / f"{rank}-done").touch()
    if all((folder / f"{r}-done").exists() for r in range(size)):
        swept = folder.with_name(f".{folder.name}-{rank}-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):  # another rank sweeps
            folder.rename(swept)
            shutil.rmtree(swept)
    return values


def _enter(folder: Path, rank: int, size: int, value: bytes) -> bool:
    """Puts this rank's file into the folder; False if a former meeting there is about to end."""
    own, draft = folder / f"{rank}-{size}", folder / f"draft-{rank}-{os.getpid()}-{threading.get_ident()}x"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise AccessDeniedError(f"file://{folder} belongs to another user (uid {folder.stat().st_uid})")
        draft.write_bytes(value)
        try:
            own.hardlink_to(draft)
        finally:
            draft.unlink()
    except FileNotFoundError:  # swept between two of these lines
        return False
    except FileExistsError:
        if (folder / f"{rank}-done").exists() or not own.exists():
            return False
        raise InvalidArgumentError(
            f"file://{folder}: rank {rank} is there already. Either two processes call themselves rank {rank}, or a former job"
            " ended before all its ranks had met: then remove the folder"
        ) from None
    return True
