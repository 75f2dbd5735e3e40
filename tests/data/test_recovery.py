"""Ranks that are killed with SIGKILL in a step: what is left of the epoch is trained on by others, each sample once.

The weights of these trainings count how often each sample was trained on.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, ShardedStore
from test_losses import BATCH, TOTAL, Rig, need

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
SIZE = 4


def from_page(name: str) -> Any:
    """A function of an example of the page."""
    code = ""
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        code += block
        if f"def {name}(" in block:
            break
    space: dict[str, Any] = {"__name__": "page"}
    exec(code, space)
    return space[name]


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)  # nothing tells of a file that another process makes


def part(group: pyfab.Group) -> dict[str, Any]:
    return {"label": np.arange(TOTAL * group.rank // group.size, TOTAL * (group.rank + 1) // group.size)}


def learn(group: pyfab.Group, labels: Any, weights: Any) -> None:
    """The step: all ranks learn from all samples of it."""
    np.add.at(weights, np.concatenate(group.allgather(np.asarray(labels))), 1)


def trains_on(group: pyfab.Group, folder: str, last: int, uneven: bool) -> dict[str, Any]:
    """Rank 2 dies in a step. If it is uneven, the others have ended the one before, but for rank 1, which found out in it."""
    with ShardedStore(group, part(group), replicas=2) as store:
        weights = np.zeros(TOTAL, np.int64)
        taken = [0]
        killed = Path(folder) / "killed"

        def step(group: pyfab.Group, batch: Any, weights: Any) -> None:
            if group.size == SIZE and group.rank == 2 and taken[0] == last:
                print("in the step", flush=True)
                wait_for(Path(folder) / "never")
            if group.size == SIZE and group.rank == 1 and taken[0] == last - 1 and uneven:
                group.allgather(batch["label"])
                wait_for(killed)
                raise pyfab.PeerLostError("on purpose, after the others had what they needed")
            learn(group, batch["label"], weights)
            taken[0] += 1

        order = GlobalShuffle(store, BATCH // 2, seed=1)
        left = from_page("train_on")(group, store, order, weights, step)
        told = {"weights": weights.tolist(), "size": left.size, "epoch": order.epoch}
        left.close()
    return told


@pytest.mark.slow
@pytest.mark.parametrize("uneven", [False, True])
def test_those_that_are_left_go_on_as_the_page_says(start, tmp_path, links, uneven):
    ranks = start(trains_on, SIZE, links, str(tmp_path), 3, uneven)
    ranks.wait_for(2, "in the step")
    ranks.kill(2)
    (tmp_path / "killed").touch()
    for told in ranks.results([0, 1, 3]):
        assert (told["size"], told["epoch"]) == (SIZE - 1, 1)
        assert told["weights"] == [1] * TOTAL


def trains_with_checkpoints(group: pyfab.Group, folder: str, kind: str, fatal: int) -> list[int]:
    """An epoch, or what a checkpoint leaves of it, until the step of that number never ends."""
    with ShardedStore(group, part(group)) as store:
        rig = Rig(kind, store, group.rank, group.size)
        weights = np.zeros(TOTAL, np.int64)
        checkpoint = Path(folder) / "checkpoint"
        if checkpoint.exists():
            saved = json.loads(checkpoint.read_text())
            weights[:] = saved["weights"]
            rig.load(saved["state"])
        for done, batch in enumerate(rig):
            if done == fatal:
                group.barrier()
                print("in the step", flush=True)
                wait_for(Path(folder) / "never")
            learn(group, batch, weights)
            if group.rank == 0:
                text = json.dumps({"weights": weights.tolist(), "state": rig.state(done + 1)})
                (Path(folder) / "new").write_text(text)
                (Path(folder) / "new").replace(checkpoint)
        return [int(count) for count in weights]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["sampler", "Loader", "Loader, lent", "ShardedLoader", "DataLoader, 1 worker"]
)
def test_another_job_of_another_size_goes_on(start, tmp_path, kind):
    need(kind)
    for size, fatal in ((3, 2), (2, 1)):
        ranks = start(trains_with_checkpoints, size, "shm", str(tmp_path), kind, fatal)
        for rank in range(size):
            ranks.wait_for(rank, "in the step")
        for rank in range(size):
            ranks.kill(rank)
    (weights,) = start(trains_with_checkpoints, 1, "shm", str(tmp_path), kind, -1).results([0])
    assert weights == [1] * TOTAL


def disagrees(group: pyfab.Group) -> list[str]:
    """States that ranks resume from: of which the earliest is taken, and those that do not belong together are refused."""
    said = []
    order = GlobalShuffle(TOTAL, BATCH, seed=5, rank=0, size=1)
    mine = order.state_dict() | {"epoch": group.rank, "cursor": 10 * (1 + group.rank)}
    order.load_state_dict(mine, group=group)
    assert (order.epoch, order.cursor, order.rank, order.size) == (0, 10, group.rank, group.size)
    for state in (mine | {"seed": group.rank}, mine | {"n": TOTAL + group.rank}, None):
        with pytest.raises(pyfab.InvalidArgumentError) as told:
            order.load_state_dict(state, group=group)  # type: ignore[arg-type]
        said.append(str(told.value))
    assert (order.epoch, order.cursor) == (0, 10)
    return said


@pytest.mark.slow
def test_ranks_that_resume_compare_their_states():
    for said in pyfab.spawn(disagrees, 2, links="shm", timeout=60):
        assert "rank 1 would go on in the order of seed 1, rank 0 in that of seed 0" in said[0]
        assert f"{TOTAL + 1} samples, this one has {TOTAL}" in said[1]
        assert "the state is of type NoneType" in said[2]
