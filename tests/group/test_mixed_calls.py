"""Ranks that call different collective methods."""

from __future__ import annotations

from collections.abc import Callable

import pyfab
import pytest


def calls(name: str, group: pyfab.Group, window: pyfab.Window) -> object:
    calls: dict[str, Callable[[], object]] = {
        "fence() of window 1": window.fence,
        "barrier()": group.barrier,
        "allgather()": lambda: group.allgather(group.rank),
        "broadcast(root=0)": group.broadcast,
        "broadcast(root=1)": lambda: group.broadcast(root=1),
        "split()": lambda: group.split(0),
        "window()": lambda: group.window(shape=1),
        "close() of window 1": window.close,
    }
    return calls[name]()


def call_different_methods(group: pyfab.Group, called: list[list[str]]) -> list[str]:
    errors = []
    with group.window(shape=1) as window:
        for names in called:
            with pytest.raises(pyfab.InvalidArgumentError) as raised:
                calls(names[group.rank], group, window)
            errors.append(str(raised.value))
            assert group.allgather(group.rank) == [0, 1, 2, 3]  # the group goes on
    return errors


@pytest.mark.slow
def test_ranks_that_call_different_methods_are_told_who_called_what(links: str) -> None:
    """Also those whose neighbours have called the same as they."""
    called = [
        ["barrier()", "barrier()", "barrier()", "fence() of window 1"],
        ["allgather()", "broadcast(root=0)", "barrier()", "barrier()"],
        ["broadcast(root=0)", "broadcast(root=1)", "broadcast(root=1)", "broadcast(root=1)"],
        ["split()", "window()", "close() of window 1", "window()"],
    ]
    for errors in pyfab.spawn(call_different_methods, 4, called, links=links, timeout=60):
        for error, names in zip(errors, called, strict=True):
            for name in names:
                ranks = [str(rank) for rank in range(4) if names[rank] == name]
                told = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} of 4: {name}"
                assert told in error and "same order" in error


def fence_of_another_window(group: pyfab.Group) -> str:
    with group.window(shape=1) as first, group.window(shape=1) as second:
        with pytest.raises(pyfab.InvalidArgumentError) as raised:
            (first, second)[group.rank].fence()
        return str(raised.value)


@pytest.mark.slow
def test_fences_of_different_windows_are_told_apart() -> None:
    for error in pyfab.spawn(fence_of_another_window, 2, links="shm", timeout=60):
        assert "rank 0 of 2: fence() of window 1" in error and "rank 1 of 2: fence() of window 2" in error
