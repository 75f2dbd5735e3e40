"""A flood of one kind of line hides none of another."""

from __future__ import annotations

import time

import pytest
from pyfab.logs.rate import MOST_LINES, PERIOD, LogRate


def test_lines_that_are_too_many_are_counted_in_the_first_one_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rate, other = LogRate(), LogRate()
    admitted = [rate.admit("it guesses") for _ in range(MOST_LINES + 7)]
    assert admitted == ["it guesses"] * MOST_LINES + [None] * 7
    assert other.admit("too many") == "too many"
    now[0] += PERIOD
    assert rate.admit("it guesses") == "it guesses (7 such lines were left out before this one)"
    assert rate.admit("it guesses") == "it guesses"
    for _ in range(MOST_LINES):
        rate.admit("it guesses")
    assert (rate.left_out(), rate.left_out()) == (2, 0)
    now[0] += PERIOD
    assert rate.admit("it guesses") == "it guesses"
