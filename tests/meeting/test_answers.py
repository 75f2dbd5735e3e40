"""What the two sides of a meeting over tcp say: nonsense from the other side is refused in words."""

from __future__ import annotations

from typing import Any

import pytest
from pyfab.core.deadline import Deadline
from pyfab.core.errors import OperationTimeout
from pyfab.meeting.rendezvous_tcp import _Meeting, _unpack


def test_an_answer_holds_one_value_for_each_rank() -> None:
    assert _unpack({"sizes": [1, 2]}, b"abc", 2, Deadline(None), "here") == [b"a", b"bc"]
    with pytest.raises(OperationTimeout, match="rank 1 of 2 did not arrive"):
        _unpack({"sizes": [], "arrived": [0, True, "x"]}, b"", 2, Deadline(1), "here")


@pytest.mark.parametrize(
    "sizes",
    [None, [], 3, [3], [4, -1], ["a", "bc"], [1.0, 2.0], [True, 2], [[], {}], {"1": 2, "2": 1}],
    ids=str,
)
def test_an_answer_of_other_sizes_is_refused(sizes: Any) -> None:
    with pytest.raises(ConnectionError, match="one value for each rank"):
        _unpack({"sizes": sizes, "arrived": 7}, b"abc", 2, Deadline(None), "here")


@pytest.mark.parametrize("rank", [None, True, 1.0, "1", 2, -1, [1]], ids=str)
def test_a_rank_is_a_number(rank: Any) -> None:
    assert "is none of 0 to 1" in str(_Meeting(2).enter(rank, 2, None))  # type: ignore[arg-type]
