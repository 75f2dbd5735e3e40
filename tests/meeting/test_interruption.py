"""How commands that serve are told to end, and what is left of that."""

from __future__ import annotations

import os
import signal

import pytest
from pyfab.meeting.interruption import told_to_stop

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_it_is_told_once_and_all_is_as_before(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in BOTH]
    with told_to_stop() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.wait(10)
    assert [signal.getsignal(each) for each in BOTH] == before


def test_what_fails_leaves_no_handler() -> None:
    before = [signal.getsignal(each) for each in BOTH]
    with pytest.raises(OSError, match="in use"), told_to_stop():
        raise OSError("in use")
    assert [signal.getsignal(each) for each in BOTH] == before
