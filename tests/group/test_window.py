"""Windows of groups: what can be one, fences, and that all ranks learn of a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyfab
import pytest
from window_pair import NON_COHERENT, name_of


def ways() -> pytest.MarkDecorator:
    """The links of the other tests, and memory that needs synchronisation."""
    emulated = pytest.param(NON_COHERENT, id="non-coherent", marks=pytest.mark.req("SYNC-33"))
    return pytest.mark.parametrize("links", ["shm", "tcp", "shm+tcp", emulated])


def fences(group: pyfab.Group) -> bool:
    with group.window(np.zeros((group.size, 1000), "i4")) as window:
        ok = True
        for turn in range(1, 30):
            for peer in range(group.size):
                window[peer].put(np.full(1000, turn * 10 + group.rank, "i4"), group.rank)
            window.fence()
            ok &= all((window.local[rank] == turn * 10 + rank).all() for rank in range(group.size))
            window.fence()
        return ok


@ways()
def test_a_fence_completes_what_was_started(links: Any) -> None:
    assert pyfab.spawn(fences, 3, links=links, timeout=60) == [True] * 3


def add_up(group: pyfab.Group) -> list[Any]:
    with (
        group.window(shape=(3, 5), dtype=np.float64) as sums,
        group.window(shape=1, dtype=np.uint16) as tickets,
    ):
        drawn = []
        for _ in range(200):
            for peer in range(group.size):
                sums[peer].accumulate(np.ones((3, 5)))
            drawn.append(int(tickets[0].fetch_add(1, 0).result()))
        sums.fence()
        return [sums.local.tolist(), drawn]


@pytest.mark.slow
@ways()
def test_concurrent_atomics_are_exact(links: Any) -> None:
    results = pyfab.spawn(add_up, 4, links=links, timeout=100)
    assert all(sums == [[800.0] * 5] * 3 for sums, _ in results)
    assert sorted(ticket for _, drawn in results for ticket in drawn) == list(range(800))


def uneven(group: pyfab.Group) -> list[Any]:
    shape = (group.rank * 2, 3)
    with group.window(np.full(shape, group.rank, ["f4", "i8", "u1"][group.rank])) as window:
        return [(window[p].shape, str(window[p].dtype), window[p][...].sum()) for p in range(group.size)]


@pytest.mark.slow
@ways()
def test_shapes_and_dtypes_may_differ(links: Any) -> None:
    expected = [((0, 3), "float32", 0), ((2, 3), "int64", 6), ((4, 3), "uint8", 24)]
    assert pyfab.spawn(uneven, 3, links=links, timeout=60) == [expected] * 3


def refuse_on_rank_one(group: pyfab.Group) -> str:
    array = np.zeros((40, 40))
    try:
        group.window(array.T[:, ::2] if group.rank == 1 else array)
    except (ValueError, OSError) as error:
        group.barrier()  # nobody is left waiting
        return str(error)
    return "opened"


@pytest.mark.slow
def test_a_window_that_one_rank_cannot_open_is_told_to_all() -> None:
    errors = pyfab.spawn(refuse_on_rank_one, 3, links="shm", timeout=60)
    assert "contiguous" in errors[1]
    assert all("rank 1 could not open its part" in errors[rank] for rank in (0, 2))


Open = Callable[[pyfab.Group], pyfab.Window]


@pytest.mark.parametrize(
    "open_window,error",
    [
        (lambda g: g.window(), "an array, or a shape"),
        (lambda g: g.window(np.zeros(1), shape=1), "an array, or a shape"),
        (lambda g: g.window([1, 2]), "not an object of type list"),
        (lambda g: g.window(np.array([None])), "Python objects"),
        (lambda g: g.window(shape=3, dtype=object), "Python objects"),
        (lambda g: g.window(np.zeros((40, 4))[:, ::2]), "contiguous"),
        (lambda g: g.window(np.frombuffer(b"8 bytes.")), "read-only"),
        (lambda g: g.window(shape=-1), "negative"),
    ],
)
def test_what_is_no_window(open_window: Open, error: str) -> None:
    with pyfab.Group(0, 1, domain="shm") as group:
        with pytest.raises((ValueError, TypeError, PermissionError), match=error):
            open_window(group)
        assert group.domain.stats()["regions"] == 1  # the group's own


def test_read_only_windows() -> None:
    with pyfab.Group(0, 1, domain="shm") as group:
        array = np.frombuffer(b"12345678", np.uint8)
        with group.window(array, access=pyfab.Access.REMOTE_READ) as window:
            assert window[0][2:4].tobytes() == b"34"
            with pytest.raises(pyfab.AccessDeniedError):
                window[0][0] = 1


@pytest.mark.parametrize("domain", ["shm", NON_COHERENT], ids=name_of)
def test_closed_windows(domain: Any) -> None:
    with pyfab.Group(0, 1, domain=domain) as group:
        window = group.window(shape=3)
        remote = window[0]
        remote.put(np.ones(3))
        window.close()
        window.close()
        assert window.local.tolist() == [1, 1, 1]
        for use in (lambda: window[0], window.flush, window.fence, window.sync, window.__enter__):
            with pytest.raises(pyfab.ClosedError):
                use()
        with pytest.raises(pyfab.KeyRejectedError):
            remote[0]
        with pytest.raises(RuntimeError, match="within"), group.window(shape=3) as window:
            raise RuntimeError("within")
        assert "closed" in repr(window)


def exchange_by_fences(group: pyfab.Group) -> list[Any]:
    """Each rank stores in its own window, fences, and gets from and puts to its neighbour."""
    right = (group.rank + 1) % group.size
    seen = []
    with group.window(shape=(2, 100), dtype="i4") as window:
        for turn in range(1, 20):
            window.local[0] = turn * 10 + group.rank
            window.fence()
            seen.append(bool((window[right][0] == turn * 10 + right).all()))
            window[right][1] = turn * 10 + group.rank
            window.fence()
            seen.append(bool((window.local[1] == turn * 10 + (group.rank - 1) % group.size).all()))
        reports = group.domain.sync_reports
    return [all(seen), reports]


@pytest.mark.slow
@pytest.mark.req("SYNC-33")
@pytest.mark.parametrize("options", [{}, {"cache": "cpu", "cache_line": 64}, {"checker": True}], ids=str)
def test_fences_show_stores_and_puts_on_memory_that_needs_it(options: dict[str, Any]) -> None:
    results = pyfab.spawn(exchange_by_fences, 2, links=NON_COHERENT | options, timeout=60)
    assert results == [[True, []]] * 2
