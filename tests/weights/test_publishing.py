"""Publishers and readers as processes: versions never mix, four ranks have shards for three others, some are killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.weights import Publisher, Reader, Shard

VERSIONS = 200


def under_fire(group: pyfab.Group, publishers: int, buffers: int) -> Any:
    """Some ranks have a part of each tensor, and fill it with the number of the version; two others pull all the time."""
    if group.rank < publishers:
        rows = 200 // publishers
        large, small = np.zeros((rows, 1000), np.int64), np.zeros(rows, np.int32)
        state = {
            "large": Shard(large, (rows * group.rank, 0), (200, 1000)),
            "small": Shard(small, [rows * group.rank], [200]),
        }
        publisher = Publisher(group, state, buffers)
        for version in range(1, VERSIONS + 1):
            large.fill(version)
            small.fill(version)
            publisher.publish(version)
        return None
    reader = Reader(group, timeout=60)
    into = {"large": np.zeros((200, 1000), np.int64), "small": np.zeros(200, np.int32)}
    plan = reader.plan(into)
    seen = [0]
    while seen[-1] < VERSIONS:
        version = reader.pull(into, plan=plan)
        mixed = {name: np.unique(array).tolist() for name, array in into.items() if (array != version).any()}
        assert not mixed, f"version {version} has {mixed}"
        seen.append(version)
    assert seen == sorted(seen)
    return len(set(seen))


@pytest.mark.parametrize("publishers, buffers", [(1, 1), (1, 2), (2, 2)])
def test_no_version_is_mixed(links, publishers, buffers):
    seen = pyfab.spawn(under_fire, publishers + 2, publishers, buffers, links=links, timeout=90)
    assert all(number > 1 for number in seen[publishers:])


TALL = np.arange(120 * 36, dtype=np.float32).reshape(120, 36)


def reshard(group: pyfab.Group) -> bool:
    """Rows of four ranks become columns of three."""
    if group.rank < 4:
        start = 30 * group.rank
        mine = np.zeros((30, 36), np.float32)
        publisher = Publisher(
            group, {"layer": {"weight": Shard(mine, (start, 0), TALL.shape)}}, checksums=True
        )
        for version in range(3):
            mine[...] = TALL[start : start + 30] + version
            publisher.publish(version)
        return True
    reader = Reader(group)
    start = 12 * (group.rank - 4)
    into = {"layer": {"weight": Shard(np.zeros((120, 12), np.float32), (0, start), TALL.shape)}}
    whole = {"layer": {"weight": np.zeros_like(TALL)}}
    exact = reader.pull(into, version=2) == reader.pull(whole, newer_than=1) == 2
    exact &= np.array_equal(into["layer"]["weight"].array, TALL[:, start : start + 12] + 2)
    return bool(exact and np.array_equal(whole["layer"]["weight"], TALL + 2))


@pytest.mark.slow
def test_four_ranks_publish_rows_and_three_pull_columns(links):
    assert pyfab.spawn(reshard, 7, links=links, timeout=60) == [True] * 7


@pytest.mark.slow
def test_memory_that_is_not_coherent_is_synchronised():
    assert pyfab.spawn(reshard, 7, links={"spec": "shm", "coherent": False}, timeout=60) == [True] * 7


def one_cannot_publish(group: pyfab.Group) -> str:
    with pytest.raises(pyfab.InvalidArgumentError) as caught:
        Publisher(group, {"x": "text" if group.rank else np.ones(3)})
    return str(caught.value)


@pytest.mark.slow
def test_all_learn_that_a_rank_could_not_publish():
    first, second = pyfab.spawn(one_cannot_publish, 2, links="shm", timeout=60)
    assert "rank 1 could not take part in weights.Publisher() or weights.Reader()" in first
    assert second.startswith("tensor 'x': a str is no array")


@pytest.mark.slow
def test_the_example_learns():
    script = Path(__file__).parents[2] / "examples" / "publish_weights.py"
    told = subprocess.check_output(
        [sys.executable, script, "--steps", "100"], text=True, timeout=60
    ).splitlines()
    assert [
        re.match(r"user (\d): \d+ of 100 versions, \d+ µs to .* the last [89]\d% ?", line)[1] for line in told
    ] == ["0", "1", "2"]


TWINS = """
import sys, time, numpy as np, pyfab
from pyfab.weights import Publisher, Reader
group = pyfab.Group.from_env(sys.argv[1])
if group.rank < 2:
    x = np.zeros(1 << 19)
    publisher = Publisher(group, {"x": x})
    while True:
        publisher.publish()
        time.sleep(0.02)  # a step of the training: who publishes all the time leaves a reader on a slow link no version
        x += 1
reader = Reader(group, timeout=60)
into = {"x": np.zeros(1 << 19)}
def pull(**options):
    version = reader.pull(into, **options)
    assert (into["x"] == version).all(), (version, np.unique(into["x"]))
    return version
pull()
print("pulled", flush=True)
while not reader.lost:
    version = pull()
print("lost", reader.lost[0][:6], pull(newer_than=version) > version, flush=True)
try:
    while True:
        pull()
except pyfab.PeerLostError as error:
    print(error, flush=True)
"""


@pytest.mark.slow
def test_a_publisher_that_is_killed_is_replaced(start_ranks, links):
    first, second, reader = start_ranks(TWINS, 3, links)
    assert reader.stdout.readline() == "pulled\n"
    first.kill()
    told = reader.stdout.readline()
    assert told == "lost rank 0 True\n", told + reader.stdout.read()
    second.kill()
    text = reader.stdout.read()
    assert "tensor 'x': nobody has [0:524288]" in text
    assert "rank 0 on host" in text and "rank 1 on host" in text
