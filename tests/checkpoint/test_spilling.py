"""Files of states: all ranks have the same versions, a slow or full disk holds nobody up for ever, and damage is named."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.checkpoint import Checkpoint, _spill, load

FULL = OSError(28, "no space")


def save_with_a_slow_disk(group: pyfab.Group, folder: str) -> None:
    write = _spill.write

    def slow(where: Path, state: tuple[int, ...], *rest: Any) -> None:
        if (group.rank, state[0]) != (0, 0):
            time.sleep(0.3)
        write(where, state, *rest)

    _spill.write = slow  # type: ignore[assignment]
    with Checkpoint(group, {"x": np.zeros(4)}, spill=folder) as checkpoint:
        for _ in range(8):
            checkpoint.save()
            checkpoint.wait()
            time.sleep(0.2)
            group.barrier()


@pytest.mark.slow
def test_ranks_with_disks_of_different_speed_have_the_same_versions(tmp_path: Path) -> None:
    pyfab.spawn(save_with_a_slow_disk, 2, str(tmp_path), links="shm", timeout=60)
    assert [load(tmp_path, {"x": np.ones(4)}, rank) for rank in range(2)] == [6, 6]


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    """A checkpoint of one rank, whose files wait until `go` is set, and fail as often as `errors` has any."""
    go, errors, write = threading.Event(), [FULL], _spill.write

    def gated(*arguments: Any) -> None:
        go.wait()
        if errors:
            raise errors.pop()
        write(*arguments)

    with pytest.MonkeyPatch.context() as patch, pyfab.Group(0, 1, domain="shm") as group:
        patch.setattr(_spill, "write", gated)
        checkpoint = Checkpoint(group, {"x": np.zeros(4)}, replicas=0, spill=tmp_path, timeout=1)
        yield checkpoint, go, errors
        go.set()
        checkpoint.close()


def test_the_error_of_a_file_is_raised_once(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, go, _ = alone
    checkpoint.save()
    checkpoint.wait()
    writing = checkpoint._spill._writing[1]
    spread = checkpoint._spread

    def late(*arguments: Any) -> Any:
        go.set()
        assert writing.exception() is FULL  # while the next save is under way
        return spread(*arguments)

    monkeypatch.setattr(checkpoint, "_spread", late)
    checkpoint.save().result()
    monkeypatch.setattr(checkpoint, "_spread", spread)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save()
    version = checkpoint.save().result()
    assert checkpoint.wait() == version


def test_a_disk_that_stalls_is_waited_for_no_longer_than_asked(alone: Any) -> None:
    checkpoint, go, errors = alone
    errors.clear()
    for _ in range(2):
        checkpoint.save()
        checkpoint.wait()
    with pytest.raises(pyfab.OperationTimeout, match="is not yet written after 1 s; save again later"):
        checkpoint.save()
    go.set()
    assert checkpoint.save().result() == 2


def test_drafts_of_killed_processes_go(tmp_path: Path) -> None:
    mine = tmp_path / "version-000000000001.rank-0-of-1.77-77.part"
    other = tmp_path / "version-000000000001.rank-1-of-2.77-77.part"
    mine.touch()
    other.touch()
    with pyfab.Group(0, 1, domain="shm") as group:
        Checkpoint(group, {"x": np.zeros(4)}, replicas=0, spill=tmp_path).close()
    assert not mine.exists()
    assert other.exists()


def test_damage_of_the_first_line_is_named(tmp_path: Path) -> None:
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        Checkpoint(group, {"x": np.zeros(4)}, replicas=0, spill=tmp_path) as checkpoint,
    ):
        checkpoint.save(1)
        checkpoint.wait()
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    assert json.loads(good.splitlines()[0])["crc32"]
    for damaged in (b"", good[:40], b"\0\xff" + good[2:], good.replace(b'"crc32"', b'"crc33"')):
        path.write_bytes(damaged)
        with pytest.raises(pyfab.FabricError, match=f"{path.name} is damaged: its first line"):
            load(tmp_path, {"x": np.zeros(4)}, 0)
