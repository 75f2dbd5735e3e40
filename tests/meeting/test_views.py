"""What a rank shows of who lives, and what others read of it while it is written."""

from __future__ import annotations

import numpy as np
import pytest
from pyfab.meeting import views
from pyfab.meeting.views import GAVE_UP, HEAD, SETTLED, View


def test_what_is_shown_is_read() -> None:
    memory = np.zeros(HEAD + 8, np.uint8)
    assert views.read(memory) == View(0, set(), b"", 0), "nothing was shown yet"
    views.show_settled(memory, SETTLED)
    views.show(memory, 3, [0, 2, 7], b"where")
    view = views.read(memory)
    assert view == View(3, {0, 2, 7}, b"where", SETTLED) and view.tells_deaths
    views.show(memory, 0, [1], b"")
    views.show_settled(memory, GAVE_UP)
    view = views.read(memory)
    assert view == View(0, {1}, b"", GAVE_UP) and view.tells_deaths
    views.show_settled(memory, 5)
    view = views.read(memory)
    assert view is not None and not view.tells_deaths


@pytest.mark.parametrize("at", [0, 8, 20, HEAD, HEAD + 5])
def test_a_view_of_two_moments_is_none(at: int) -> None:
    before, after = np.zeros(HEAD + 8, np.uint8), np.zeros(HEAD + 8, np.uint8)
    views.show(before, 1, range(8), b"one place")
    views.show(after, 2, [0, 1, 2, 3], b"any other")
    torn = np.concatenate([before[:at], after[at : at + 1], before[at + 1 :]])
    assert views.read(torn) == (None if (torn != before).any() else views.read(before))
    assert views.read(np.concatenate([after[:at], before[at:]])) == (views.read(before) if at == 0 else None)


def test_a_length_that_cannot_be_reads_nothing_else() -> None:
    memory = np.zeros(HEAD + 8, np.uint8)
    memory[8:16] = 0xFF
    view = views.read(memory)
    assert view is not None and len(view.successor) < HEAD
