"""The memory of windows: parts that come and go, memory of a neighbour, how it is reached."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from crew import Crew, Way
from support import TIMEOUT


def dynamic(group: pyfab.Group, _: Way) -> None:
    with group.window(dynamic=True, max_parts=3) as window:
        page = np.zeros(4096, np.uint8)
        first = np.arange(8.0) + group.rank
        window.attach(first, "weights")
        window.attach(page[:100], "head")
        window.attach(page[50:200])  # overlaps the one before
        with pytest.raises(pyfab.BusyError, match="3 parts"):
            window.attach(np.zeros(1))
        group.barrier()
        right = (group.rank + 1) % group.size
        parts = window.parts(right)
        assert sorted(parts) == ["head", "part 2", "weights"]
        assert parts["weights"][...].tolist() == (np.arange(8.0) + right).tolist()
        parts["weights"].accumulate(np.full(8, 10.0)).result(TIMEOUT)
        parts["part 2"][0:10] = np.full(10, 9, np.uint8)
        assert (parts["head"][50:60] == 9).all()
        window.fence()
        assert first[0] == 10 + group.rank
        window.detach("weights")
        for name in ("weights", "never"):
            with pytest.raises(pyfab.InvalidArgumentError, match="attached"):
                window.detach(name)
        with pytest.raises(pyfab.InvalidArgumentError, match="attached already"):
            window.attach(first, "head")
        window.fence()
        assert sorted(window.parts(right)) == ["head", "part 2"]
        with pytest.raises(pyfab.KeyRejectedError):
            parts["weights"][0] = 1
        assert parts["head"][50] == 9  # the others are not disturbed
        group.barrier()
        window.attach(first, "weights")
        group.barrier()
        window.parts(right)["weights"][0] = 1
        with pytest.raises(pyfab.InvalidArgumentError, match="parts"):
            window[right]
        window.fence()
        assert first[0] == 1


@pytest.mark.req("WIN-75", "WIN-67")
def test_parts_that_come_and_go(crew: Crew) -> None:
    crew.run(dynamic)


def shared_memory(group: pyfab.Group, _: Way) -> None:
    right = (group.rank + 1) % group.size
    with group.window(shape=(4, 8), dtype=np.int32) as window, group.window(np.zeros(4)) as plain:
        theirs = window.shared(right)
        assert window.shared(group.rank) is window.local
        theirs[1] = np.arange(8) * (group.rank + 1)
        window.fence()
        left = (group.rank - 1) % group.size
        assert window.local[1].tolist() == (np.arange(8) * (left + 1)).tolist()
        assert window[right][1].tolist() == theirs[1].tolist()
        with pytest.raises(pyfab.NotSupportedError, match="ordinary memory"):
            plain.shared(right)
        window.fence()
    assert theirs.shape == (4, 8)
    assert theirs[1].tolist() == (np.arange(8) * (group.rank + 1)).tolist()  # it outlives the window


@pytest.mark.req("WIN-67", "WIN-77")
def test_memory_of_a_neighbour_for_loads_and_stores(crew: Crew) -> None:
    crew.run(shared_memory)


def allocation_fails(group: pyfab.Group, _: Way) -> str:
    shape = 1 << 44 if group.rank == 1 else 8
    try:
        group.window(shape=shape, dtype=np.int64)
    except (MemoryError, OSError) as error:
        return str(error)
    return "opened"


@pytest.mark.req("WIN-76")
def test_an_allocation_that_fails_is_told_to_all(crew: Crew) -> None:
    errors = crew.run(allocation_fails)
    assert "opened" not in errors
    assert all("rank 1 could not open its part" in errors[rank] for rank in (0, 2, 3))


def links_are_told(group: pyfab.Group, way: Way) -> list[tuple[str, str, str]]:
    with way.window(group, group.size) as window:
        for peer in group.peers:
            window[peer][group.rank] = 1
        return [(row.link.split(".")[0], row.path, row.how) for row in group.links()]


@pytest.mark.req("WIN-74")
def test_neighbours_are_reached_through_memory(crew: Crew) -> None:
    wanted = "tcp" if crew.way.name == "tcp" else "shm"
    path = "messages" if crew.way.name in ("tcp", "ring") else "direct"
    for rows in crew.run(links_are_told):
        assert len(rows) == crew.group.size - 1
        assert all((link, taken) == (wanted, path) and how for link, taken, how in rows)
