"""Samples that arrive while they are used: each is used once, whoever comes late, is slow, leaves or dies."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import FieldInfo, Ragged, SampleStream
from pyfab.data.stream import intake
from pyfab.data.stream.chunks import unpack

FIELDS = [
    FieldInfo("id", "int64", (), False),
    FieldInfo("image", "float32", (3,), False),
    FieldInfo("text", "int32", (), True),
]
EACH = 400  # samples that each rank appends
FAR = 10**6  # between the numbers of two ranks' samples


def samples(start: int, count: int) -> dict[str, Any]:
    ids = np.arange(start, start + count)
    texts = [np.full(number % 5, number, np.int32) for number in ids]
    return {"id": ids, "image": np.repeat(ids[:, None], 3, 1).astype(np.float32), "text": texts}


def checked(batch: dict[str, Any]) -> list[int]:
    """The numbers of a batch's samples, all of whose fields are theirs."""
    ids: list[int] = batch["id"].tolist()
    assert np.array_equal(batch["image"], samples_images(ids))
    assert isinstance(batch["text"], Ragged)
    for number, text in zip(ids, batch["text"], strict=True):
        assert text.tolist() == [number] * (number % 5)
    return ids


def samples_images(ids: list[int]) -> np.ndarray:
    return np.repeat(np.array(ids)[:, None], 3, 1).astype(np.float32)


def append_all(stream: SampleStream, rank: int, step: int) -> None:
    for start in range(0, EACH, step):
        count = min(step, EACH - start)
        assert stream.append(samples(rank * FAR + start, count)) == count
    stream.end()


def wanted(ranks: list[int]) -> list[int]:
    return [rank * FAR + number for rank in ranks for number in range(EACH)]


def two_and_three(group: pyfab.Group, room: int, batch_size: int) -> list[int]:
    """Two ranks append, three use."""
    used: list[int] = []
    with SampleStream(group, FIELDS, room=room, timeout=60) as stream:
        if group.rank < 2:
            append_all(stream, group.rank, 7 if group.rank else 90)
        else:
            stream.end()
            for batch in stream.batches(batch_size):
                used += checked(batch)
            assert stream.given == len(used)
    return used


@pytest.mark.filterwarnings("ignore:a batch has .* because the ranks that append wait:RuntimeWarning")
@pytest.mark.parametrize(
    "room, batch_size", [(1 << 20, 32), (4096, 7), (4096, 1000)]
)  # for all, little, too little
def test_each_sample_is_used_once(links: str, room: int, batch_size: int) -> None:
    used = pyfab.spawn(two_and_three, 5, room, batch_size, links=links, timeout=90)
    assert used[:2] == [[], []]
    assert sorted(chain(*used)) == wanted([0, 1])


def both_at_once(group: pyfab.Group) -> list[int]:
    """Each rank appends in one thread, and uses in two others."""
    used: list[list[int]] = [[], []]
    with SampleStream(group, FIELDS, timeout=60) as stream:

        def use(mine: list[int]) -> None:
            for batch in stream.batches(16):
                mine += checked(batch)

        threads = [threading.Thread(target=use, args=[mine]) for mine in used]
        for thread in threads:
            thread.start()
        append_all(stream, group.rank, 33)
        for thread in threads:
            thread.join()
    return used[0] + used[1]


@pytest.mark.slow
def test_a_rank_may_append_and_use(links: str) -> None:
    used = pyfab.spawn(both_at_once, 3, links=links, timeout=90)
    assert sorted(chain(*used)) == wanted([0, 1, 2])


def many_append(group: pyfab.Group) -> list[int]:
    """Eight threads of one rank append a sample at a time, and are held up in between; the other one uses them."""
    used: list[int] = []
    with SampleStream(group, FIELDS, timeout=15) as stream:
        if group.rank == 0:
            chances, tell = random.Random(1), stream._tell

            def tell_late(*told: Any) -> None:
                time.sleep(chances.random() / 1000)
                tell(*told)

            stream._tell = tell_late  # type: ignore[method-assign]
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda number: stream.append(samples(number, 1)), range(EACH)))
            stream.end()
        else:
            stream.end()
            for batch in stream.batches(16):
                used += checked(batch)
    return used


@pytest.mark.slow
def test_threads_may_append() -> None:
    assert sorted(pyfab.spawn(many_append, 2, links="shm", timeout=60)[1]) == wanted([0])


@pytest.mark.slow
def test_memory_that_is_not_coherent_is_synchronised() -> None:
    used = pyfab.spawn(two_and_three, 5, 8192, 16, links={"spec": "shm", "coherent": False}, timeout=90)
    assert sorted(chain(*used)) == wanted([0, 1])


def whole_batches(group: pyfab.Group) -> list[int]:
    with SampleStream(group, FIELDS, timeout=60) as stream:
        append_all(stream, group.rank, 90)
        return [len(checked(batch)) for batch in stream.batches(64, drop_last=True)]


@pytest.mark.slow
def test_a_last_batch_is_left_out() -> None:
    sizes = pyfab.spawn(whole_batches, 2, links="shm", timeout=60)
    assert {size for rank in sizes for size in rank} == {64}
    assert 2 * EACH - 2 * 63 <= sum(map(sum, sizes)) <= 2 * EACH


# --- those who leave, and those who die


class StepFails(Exception):
    """As of a program."""


def leaves(group: pyfab.Group) -> list[int]:
    """Rank 1 leaves with an error in its fourth batch; what it had used, it had used."""
    used: list[int] = []
    with contextlib.suppress(StepFails), SampleStream(group, FIELDS, timeout=60) as stream:
        if group.rank == 0:
            append_all(stream, 0, 50)
        else:
            stream.end()
            for count, batch in enumerate(stream.batches(16)):
                if group.rank == 1 and count == 3:
                    raise StepFails
                used += checked(batch)
    return used


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rank . on host .* is lost:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:closed without waiting:RuntimeWarning")
def test_who_leaves_with_an_error_gives_its_batch_back(links: str) -> None:
    used = pyfab.spawn(leaves, 3, links=links, timeout=90)
    assert len(used[1]) in (0, 48)  # 0: the others had used all before it came
    assert sorted(chain(*used)) == wanted([0])


def dies(group: pyfab.Group, folder: str) -> list[int]:
    """Rank 1 is killed in the middle of its fourth batch. It tells in a file what it has used."""
    used: list[int] = []
    told = Path(folder) / "used"
    warnings.simplefilter("ignore", RuntimeWarning)
    with SampleStream(group, FIELDS, room=8192, timeout=60) as stream:
        if group.rank == 0:
            append_all(stream, 0, 50)
            return used
        stream.end()
        for count, batch in enumerate(stream.batches(16)):
            if group.rank == 1:
                told.write_text(" ".join(map(str, used)))
                if count == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
            elif not count:  # the victim comes first
                while not told.exists():
                    time.sleep(0.001)
            used += checked(batch)
    return used


@pytest.mark.slow
def test_what_a_killed_rank_has_not_used_is_used_by_others(start: Any, tmp_path: Path, links: str) -> None:
    first, third = start(dies, 3, links, str(tmp_path)).results([0, 2])
    by_victim = [int(number) for number in (tmp_path / "used").read_text().split()]
    assert first == [] and len(by_victim) == 48
    assert sorted(by_victim + third) == wanted([0])


def loses_a_source(group: pyfab.Group) -> Any:
    used: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with SampleStream(group, FIELDS, timeout=60) as stream:
            if group.rank == 0:
                stream.append(samples(0, 100))
                os.kill(os.getpid(), signal.SIGKILL)
            if group.rank == 1:
                append_all(stream, 1, 50)
            else:
                stream.end()
                for batch in stream.batches(16):
                    used += checked(batch)
    return [used, [str(warning.message) for warning in caught]]


@pytest.mark.slow
def test_a_killed_source_is_named_and_the_others_go_on(start: Any, links: str) -> None:
    _, (used, told) = start(loses_a_source, 3, links).results([1, 2])
    assert [number for number in used if number >= FAR] and set(wanted([1])) <= set(used)
    assert len(used) == len(set(used))
    assert any("rank 0 on host" in text and "samples that it had appended" in text for text in told)


# --- what is refused


@pytest.fixture
def stream() -> Iterator[SampleStream]:
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        SampleStream(group, FIELDS, room=4096, timeout=0.2) as made,
    ):
        yield made


@pytest.mark.slow
def test_no_room_and_no_samples(stream: SampleStream) -> None:
    batches = stream.batches(8)
    with pytest.raises(pyfab.OperationTimeout, match=r"no samples came .* have not called end\(\): \[0\]"):
        next(batches)
    with pytest.raises(pyfab.OperationTimeout, match=r"no room for \d+ bytes of samples within"):
        stream.append(samples(0, 10**4))
    appended = stream.appended
    stream.end()
    assert sorted(number for batch in batches for number in checked(batch)) == list(range(appended))


def test_wrong_samples(stream: SampleStream) -> None:
    good = samples(0, 4)
    for name, given, text in (
        ("id", [1.5] * 4, "the schema says 'id': int64"),
        ("image", np.zeros((4, 2)), "the schema says 'image'"),
        ("image", np.float32(0), "is a scalar"),
        ("text", np.zeros((4, 2, 2), np.int32), "the schema says 'text': ragged"),
        ("id", [1, 2], "different numbers of samples"),
        ("id", np.ma.masked_equal([1, 2, 3, 4], 2), "masked"),
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match=text):
            stream.append(good | {name: given})
    with pytest.raises(pyfab.InvalidArgumentError, match="the stream has id, image, text"):
        stream.append({"id": [1]})
    with pytest.raises(pyfab.InvalidArgumentError, match="has no place in room=4096"):
        stream.append(samples(0, 1) | {"text": [np.zeros(2000, np.int32)]})
    with pytest.raises(pyfab.InvalidArgumentError, match="batch_size=0"):
        stream.batches(0)
    assert stream.appended == 0 and stream.append(samples(0, 0)) == 0
    stream.end()
    with pytest.raises(pyfab.InvalidArgumentError, match=r"has called end\(\)"):
        stream.append(good)
    assert list(stream.batches(8)) == []
    stream.close()
    for call in (lambda: stream.append(good), stream.end, stream.commit, lambda: stream.batches(1)):
        with pytest.raises(pyfab.ClosedError):
            call()


def test_what_was_committed_is_given_to_nobody_else(stream: SampleStream) -> None:
    stream.append(samples(0, 12))
    stream.end()
    first: Any = stream.batches(5)
    second = stream.batches(5)
    assert checked(next(first)) == [0, 1, 2, 3, 4]
    stream.commit()
    (chunk,) = first._taken.chunks
    assert stream._intake.change(0, chunk.claim, chunk.claim._replace(taker=0))  # as when its rank dies
    assert checked(next(second)) == [5, 6, 7, 8, 9]
    assert checked(next(second)) == [10, 11]
    assert list(second) == []


def test_what_a_dropped_iterator_has_left_is_given_by_the_next_one(stream: SampleStream) -> None:
    stream.append(samples(0, 12))
    stream.end()
    for batch in stream.batches(5):
        assert checked(batch) == [0, 1, 2, 3, 4]
        break
    assert [checked(batch) for batch in stream.batches(4)] == [[5, 6, 7, 8], [9, 10, 11]]


def stops_early(group: pyfab.Group) -> list[int]:
    """One of the ranks that use samples stops after a batch, and closes."""
    used: list[int] = []
    with SampleStream(group, FIELDS, timeout=30) as stream:
        if group.rank == 0:
            stream.append(samples(0, EACH))
        stream.end()
        for batch in stream.batches(8) if group.rank else ():
            used += checked(batch)
            if group.rank == 1:
                break
    return used


@pytest.mark.slow
def test_what_a_rank_has_left_when_it_closes_is_used_by_others() -> None:
    used = pyfab.spawn(stops_early, 3, links="shm", timeout=60)
    assert len(used[1]) <= 8
    assert sorted(chain(*used)) == list(range(EACH))


def test_what_could_not_be_read_is_read_again(stream: SampleStream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.append(samples(0, 4))
    stream.end()
    tried: list[int] = []

    def fails_once(*given: Any) -> Any:
        tried.append(1)
        if len(tried) == 1:
            raise KeyboardInterrupt
        return unpack(*given)

    monkeypatch.setattr(intake, "unpack", fails_once)
    batches = stream.batches(4)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert [checked(batch) for batch in batches] == [[0, 1, 2, 3]]


def wrong_fields(group: pyfab.Group) -> str:
    with pytest.raises(pyfab.InvalidArgumentError) as caught:
        SampleStream(group, FIELDS[: 1 + group.rank])
    return str(caught.value)


@pytest.mark.slow
def test_fields_that_differ_are_named() -> None:
    assert [
        "rank 1 has other fields than rank 0" in text for text in pyfab.spawn(wrong_fields, 2, links="shm")
    ] == [True] * 2
