"""Claims of chunks: what is used is not given again, and what others have taken over is left to them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyfab
import pytest
from pyfab.data import FieldInfo, SampleStream
from pyfab.data.stream.outbox import NOBODY, USED, Claim


@pytest.fixture
def stream() -> Iterator[SampleStream]:
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        SampleStream(group, [FieldInfo("x", "int64", (), False)], timeout=20) as stream,
    ):
        yield stream


def append(stream: SampleStream, *ranges: range) -> None:
    for each in ranges:
        stream.append({"x": np.array(each)})
    stream.end()


def test_another_thread_gives_nothing_back_that_is_just_used(stream: SampleStream) -> None:
    append(stream, range(4), range(4, 8))
    batches = stream.batches(4)
    next(batches)
    intake = stream._intake
    change = intake.change

    def between(owner: int, before: Claim, after: Claim) -> bool:
        if after.taker == USED:
            intake.change = change  # type: ignore[method-assign]
            intake.give_back(0, stream._outbox.table)  # what an append that waits for room does, right now
        return change(owner, before, after)

    intake.change = between  # type: ignore[method-assign]
    assert [batch["x"].tolist() for batch in batches] == [[4, 5, 6, 7]]


def test_what_others_have_taken_over_is_not_gone_on_with(stream: SampleStream) -> None:
    append(stream, range(6), range(6, 8))
    batches = stream.batches(2)
    next(batches)
    (chunk, *_) = batches._taken.chunks
    stream._intake.change(0, chunk.claim, chunk.claim._replace(taker=NOBODY))
    with pytest.warns(RuntimeWarning, match="others took it for dead"):
        given = [batch["x"].tolist() for batch in batches]
    assert given == [[6, 7], [0, 1], [2, 3], [4, 5]]
