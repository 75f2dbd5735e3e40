"""Saves that send only the blocks that have changed: how many bytes, and that holders have all of it all the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.checkpoint import Checkpoint, recover

BLOCK = 4096


def sent(group: pyfab.Group, checkpoint: Checkpoint) -> int:
    """Bytes that a save sends."""

    def out() -> int:
        return sum(peer["bytes_out"] for peer in group.domain.stats()["peers"])

    before = out()
    checkpoint.save().result(30)
    return out() - before


def same_as_held(group: pyfab.Group, checkpoint: Checkpoint) -> bool:
    """Whether each of two ranks holds both versions of the other, bit for bit."""
    (copy,) = checkpoint._held.values()
    held = copy.memory.copy()  # the other one may save again once it has what this rank gives
    return bool(np.array_equal(held, group.allgather(checkpoint._own._memory)[1 - group.rank]))


def count_bytes(group: pyfab.Group, checksums: bool) -> list[int]:
    state: dict[str, Any] = {
        "large": np.zeros((100, BLOCK // 8)),
        "small": np.zeros(3, np.int8),
        "gaps": np.zeros((300, 4), np.int16)[:, ::2],
    }
    state["small"].flags.writeable = False  # saved, and not filled here
    told = []
    with Checkpoint(group, state, block_size=BLOCK, checksums=checksums) as checkpoint:

        def save() -> None:
            told.append(sent(group, checkpoint))
            assert same_as_held(group, checkpoint)

        for _ in range(4):  # two whole versions, then two without any change
            save()
        state["large"][50, 0] = np.nan  # each change goes to both buffers
        save()
        save()
        save()
        state["large"][0, -1] = state["large"][1, 0] = -0.0
        state["gaps"][299, 1] = 5
        state["large"][99] += group.rank + 1
        save()
        save()
        with recover(group, checkpoint) as recovered:
            for rank in range(group.size):
                into = {name: np.ones_like(array) for name, array in state.items()}
                assert recovered.read(into, rank) == 8
                expected = state["large"].copy()
                expected[99] = rank + 1
                assert into["large"].tobytes() == expected.tobytes()
                assert into["gaps"].tobytes() == np.ascontiguousarray(state["gaps"]).tobytes()
    return told


@pytest.mark.slow
@pytest.mark.parametrize("checksums", [False, True])
def test_only_changed_blocks_are_sent(checksums: bool, links: str) -> None:
    first, second = pyfab.spawn(count_bytes, 2, checksums, links=links, timeout=60)
    assert first == second
    whole, _, none, *rest = first
    assert first[1] == whole
    assert none < 100  # the headers, and that it is done
    # First one row was changed, then three blocks and the last, which is shorter. Checksums are in the first
    # block, and with them all rows lie 64 bytes further, in two blocks each.
    one = 2 * BLOCK if checksums else BLOCK
    three = 3 * BLOCK + (1344 if checksums else 1280)
    assert [nbytes - none for nbytes in rest] == [0, one, one, 0, three, three]


def fail_half_way(group: pyfab.Group) -> None:
    state = {"first": np.zeros(BLOCK), "second": np.zeros(BLOCK)}
    with Checkpoint(group, state, block_size=BLOCK) as checkpoint:
        for value in range(4):
            state["first"][:] = value
            checkpoint.save().result(30)
        own: Any = checkpoint._own
        copy = own._copy_changed

        def fail(new: Any, memory: Any, offset: int, unsent: Any) -> None:
            if offset:
                raise OSError("a device that fails")
            copy(new, memory, offset, unsent)

        own._copy_changed = fail
        state["first"][::1000] = 17
        with pytest.raises(OSError, match="a device that fails"):
            checkpoint.save()
        own._copy_changed = copy
        checkpoint.save().result(30)
        assert same_as_held(group, checkpoint)


@pytest.mark.slow
def test_what_a_failed_save_has_copied_is_sent_by_the_next() -> None:
    pyfab.spawn(fail_half_way, 2, links="shm", timeout=60)


# A rank dies when it has sent some of the changed blocks, and not the others.
IN_THE_MIDDLE = """
import json, os, signal, sys
import numpy as np, pyfab
from pyfab.checkpoint import Checkpoint, recover
from pyfab.checkpoint._copies import complete_versions

links, last = sys.argv[1], int(sys.argv[2])
group = pyfab.Group.from_env(links)
state = {"x": np.zeros((16, 1024), np.int32)}

def step(state, version, rank):
    state["x"][3 * version % 16] = 10 * version + rank

former = Checkpoint(group, state, block_size=4096)
write_many = group.endpoint.write_many

def die(peer, remote, local, remote_offsets, local_offsets, lengths):
    assert len(lengths) > 1
    write_many(peer, remote, local, remote_offsets[:1], local_offsets[:1], lengths[:1]).result(10)
    os.kill(os.getpid(), signal.SIGKILL)

class Dying:
    def __getattr__(self, name):
        return die if name == "write_many" else getattr(endpoint, name)

endpoint = group.endpoint
try:
    for version in range(1, last + 1):
        step(state, version, group.rank)
        if version == last and group.rank == 1:
            group.endpoint = Dying()
        former.save(version).result(30)
except pyfab.PeerLostError:
    pass
for copy in [former._held[owner] for owner in former._held if owner == 1]:  # the mix does not count as a version
    assert complete_versions(copy.memory, copy.card.layout) == [last - 1]
group = group.shrink()
with recover(group, former) as recovered:
    for owner in range(3):
        expected, found = {"x": np.zeros_like(state["x"])}, {"x": np.zeros_like(state["x"])}
        for version in range(1, recovered.version + 1):
            step(expected, version, owner)
        recovered.read(found, owner)
        assert (found["x"] == expected["x"]).all()
print(json.dumps(recovered.version))
former.close()
group.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("last", [5, 6])
def test_a_rank_that_dies_in_the_middle_leaves_the_version_before(start_ranks, links, last) -> None:
    ranks = start_ranks(IN_THE_MIDDLE, 3, links, str(last))
    texts = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, -9, 0], texts
    assert [json.loads(texts[rank]) for rank in (0, 2)] == [last - 1] * 2
