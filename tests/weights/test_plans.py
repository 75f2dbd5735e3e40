"""Which bytes are read from whom: boxes, shards of any shape, replicas that share, and what is refused with which words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.weights import Publisher, Reader, Shard
from pyfab.weights._boxes import Runs, cover, split, without
from pyfab.weights._tensors import Box, elements

WHOLE = np.arange(6 * 8 * 10, dtype=np.int32).reshape(6, 8, 10)


@pytest.fixture
def ends() -> Iterator[tuple[pyfab.Endpoint, pyfab.Endpoint]]:
    """An endpoint for publishers and one for readers, of two domains in this process."""
    with (
        pyfab.Domain("shm") as here,
        pyfab.Domain("shm") as there,
        here.endpoint() as one,
        there.endpoint() as other,
    ):
        yield one, other


def random_box(random: np.random.Generator, shape: tuple[int, ...]) -> Box:
    ends = (sorted(random.choice(length + 1, 2, replace=False).tolist()) for length in shape)
    return tuple((start, stop) for start, stop in ends)


def where(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def shard(box: Box, array: Any = WHOLE) -> Shard:
    """A copy of this part of an array."""
    return Shard(array[where(box)].copy(), [start for start, _ in box], array.shape)


def test_boxes_cover_each_element_once():
    random = np.random.default_rng(1)
    for _ in range(200):
        wanted = random_box(random, WHOLE.shape)
        offered = [random_box(random, WHOLE.shape) for _ in range(random.integers(1, 6))]
        pieces, missing = cover(wanted, offered)
        times = np.zeros(WHOLE.shape, int)
        for piece, number in pieces:
            assert all(a >= c and b <= d for (a, b), (c, d) in zip(piece, offered[number], strict=True))
            times[where(piece)] += 1
        for piece in missing:
            times[where(piece)] += 1
            assert not any(set(cover(piece, [box])[0]) for box in offered)
        expected = np.zeros(WHOLE.shape, int)
        expected[where(wanted)] = 1
        np.testing.assert_array_equal(times, expected)
    assert cover((), [()]) == ([((), 0)], [])
    assert without(((0, 4),), ((0, 4),)) == []
    assert split(((3, 3 + 7), (0, 2)), 3) == [((3, 5), (0, 2)), ((5, 7), (0, 2)), ((7, 10), (0, 2))]


def test_runs_copy_what_slices_copy():
    random = np.random.default_rng(2)
    for _ in range(200):
        source, target = random_box(random, WHOLE.shape), random_box(random, WHOLE.shape)
        for piece, _ in cover(target, [source])[0]:
            read = WHOLE[where(source)].copy().view(np.uint8).ravel()
            filled = np.zeros_like(WHOLE[where(target)])
            memory = filled.reshape(-1).view(np.uint8)
            runs = Runs(piece, source, target, 4)
            for start, place in zip(runs.source, runs.target, strict=True):
                memory[place : place + runs.length] = read[start : start + runs.length]
            expected = np.zeros_like(WHOLE)
            expected[where(piece)] = WHOLE[where(piece)]
            np.testing.assert_array_equal(filled, expected[where(target)])
            assert len(runs.source) * runs.length == 4 * elements(piece)
    assert (
        Runs(((0, 6), (0, 8), (2, 4)), ((0, 6), (0, 8), (2, 4)), ((0, 6), (0, 8), (2, 4)), 4).length
        == 6 * 8 * 2 * 4
    )


@pytest.mark.slow
def test_any_shards_from_any_shards(ends):
    """Shards that overlap, and small tensors with gaps between them, once more of them than one operation reads."""
    random = np.random.default_rng(3)
    for count in (1200, 20, 20, 20, 20, 20):
        small = {f"small {number}": np.full(number % 5, number, np.int16) for number in range(count)}
        first = random_box(random, WHOLE.shape)
        boxes = [first, *without(((0, 6), (0, 8), (0, 10)), first), random_box(random, WHOLE.shape)]
        publishers = [Publisher(ends[0], {"x": shard(box), **small}) for box in boxes]
        reader = Reader(ends[1], [publisher.card for publisher in publishers], timeout=5)
        for publisher in publishers:
            publisher.publish(3)
        wanted = random_box(random, WHOLE.shape)
        into = {"x": shard(wanted, np.zeros_like(WHOLE))}
        into |= {name: np.zeros_like(array) for name, array in small.items()}
        assert reader.pull(into) == 3
        np.testing.assert_array_equal(into["x"].array, WHOLE[where(wanted)])
        for name, array in small.items():
            np.testing.assert_array_equal(into[name], array)
        for publisher in publishers:
            publisher.close()


def test_replicas_share_what_is_read(ends):
    state = {"large": np.arange(1 << 20, dtype=np.float32), "a": np.ones(100), "b": np.ones(100)}
    publishers = [Publisher(ends[0], state) for _ in range(2)]
    reader = Reader(ends[1], [publisher.card for publisher in publishers], timeout=5)
    for publisher in publishers:
        publisher.publish()
    into = {name: np.zeros_like(array) for name, array in state.items()}
    plan = reader.plan(into)
    asked = [
        sum(stop - start for start, stop, _ in vector._reads)
        for vector in plan._vectors(frozenset({0, 1})).values()
    ]
    assert asked == [(1 << 21) + 800] * 2
    reader.pull(into, plan=plan)
    np.testing.assert_array_equal(into["large"], state["large"])
    publishers[0].publish()  # the newest version, of which there is only one holder
    assert reader.pull(into, plan=plan) == 1
    publishers[0].close()  # the other one has the version before
    assert reader.pull(into, plan=plan) == 0
    assert len(reader.lost) == 1
    publishers[1].close()
    with pytest.raises(pyfab.PeerLostError, match=r"tensor 'large': nobody has \[0:1048576\].*lost"):
        reader.pull(into, plan=plan)


def test_values_are_converted_and_copied_where_asked(ends):
    state = {"x": np.linspace(-3, 3, 12).reshape(3, 4), "n": [np.arange(4)]}
    with Publisher(ends[0], state, checksums=True) as publisher, Reader(ends[1], [publisher.card]) as reader:
        publisher.publish(1)
        wide = np.zeros((3, 8), np.float32)
        into = {"x": wide[:, ::2], "n": (np.zeros(4, np.int64),)}
        with pytest.raises(
            pyfab.InvalidArgumentError, match="'x' is published as float64, and asked for as float32"
        ):
            reader.plan(into)
        plan = reader.plan(into, convert=True)
        reader.pull(into, plan=plan)
        np.testing.assert_array_equal(wide[:, ::2], state["x"].astype(np.float32))
        assert not wide[:, 1::2].any()
        assert into["n"][0].tolist() == [0, 1, 2, 3]
        publisher.publish(2, {"x": -state["x"], "n": [np.arange(4) + 1]})
        assert reader.pull(into, plan=plan, newer_than=1) == 2
        np.testing.assert_array_equal(wide[:, ::2], -state["x"].astype(np.float32))
        assert into["n"][0].tolist() == [1, 2, 3, 4]
    with pytest.raises(pyfab.ClosedError):
        reader.pull(into)
    with pytest.raises(pyfab.ClosedError):
        publisher.publish()


def test_damage_is_told(ends):
    box = ((0, 6), (0, 8), (0, 5))
    rest = ((0, 6), (0, 8), (5, 10))
    publishers = [Publisher(ends[0], {"x": shard(part)}, checksums=True) for part in (box, rest)]
    reader = Reader(ends[1], [publisher.card for publisher in publishers])
    for publisher in publishers:
        publisher.publish(7)
    into = {"x": np.zeros_like(WHOLE)}
    reader.pull(into)
    np.testing.assert_array_equal(into["x"], WHOLE)
    publishers[1]._memory[-64] ^= 1  # the second buffer
    reader.pull(into)
    publishers[1]._memory[publishers[1]._card.layout.start(0) + 64 + 100] ^= 1
    with pytest.raises(
        pyfab.FabricError, match=r"tensor 'x' of version 7: what came has the CRC-32 \w{8}, and process"
    ):
        reader.pull(into)


def refused(text: str) -> Any:
    return pytest.raises(pyfab.InvalidArgumentError, match=re.escape(text))


def test_what_is_refused(ends):
    for state, text in [
        ({"x": 3.0}, "'x': a float is no array"),
        ({}, "has no tensors"),
        ({"a": {"b": np.ones(1)}, "a.b": np.ones(1)}, "two tensors of the state are called 'a.b'"),
        ({"x": np.array(["text"])}, "'x': dtype <U4 is not one of numbers"),
        (
            {"x": Shard(np.ones(3), [2], [4])},
            "of shape (3,) at (2,) does not lie within a tensor of shape (4,)",
        ),
        ({"x": Shard(np.ones(3), [2], [4, 4])}, "does not lie within"),
    ]:
        with refused(text):
            Publisher(ends[0], state)
    with refused("there is no publisher"):
        Reader(ends[1])
    with refused("not the card of a publisher"):
        Reader(ends[1], [b"[]"])
    one = Publisher(ends[0], {"x": shard(((0, 6), (0, 8), (0, 5))), "y": np.ones(3)})
    with refused("'y': process"):
        Reader(ends[1], [one.card, Publisher(ends[0], {"y": np.ones(4)}).card])
    with refused("has format 9, this pyfab reads 1"):
        Reader(ends[1], [one.card.replace(b'"format": 1', b'"format": 9')])
    with refused("names more memory than its region has"):
        Reader(ends[1], [one.card.replace(b'"buffers": 2', b'"buffers": 3')])
    with refused("version -1: it is greater than the last one, None"):
        one.publish(-1)
    one.publish(4)
    with refused("version 4: it is greater than the last one, 4"):
        one.publish(4)
    with refused("tensor 'y' is missing"):
        one.publish(state={"x": shard(((0, 6), (0, 8), (0, 5)))})
    reader = Reader(ends[1], [one.card], timeout=0)
    for into, text in [
        ({"z": np.ones(3)}, "'z' is published by nobody; there are 'x', 'y'"),
        ({"x": WHOLE.copy()}, "tensor 'x': nobody has [0:6, 0:8, 5:10] of shape (6, 8, 10)"),
        ({"y": np.ones(2)}, "published with shape (3,), and asked for with (2,)"),
        ({"y": np.broadcast_to(1.0, 3)}, "read-only"),
    ]:
        with refused(text):
            reader.plan(into)
    into = {"y": np.zeros(3)}
    with refused("made for other arrays"):
        reader.pull({"y": np.zeros(3)}, plan=reader.plan(into))
    with refused("version='new'"):
        reader.pull(into, "new")
    with pytest.raises(
        pyfab.OperationTimeout,
        match=r"version newer than 4: .* within 0 s: process \d+ on host \S+ has \[4\]",
    ):
        reader.pull(into, newer_than=4)
    one.publish(5)
    one.publish(6)
    with refused("version 4 is not held any more; there are [5, 6]"):
        reader.pull(into, 4)
    assert reader.pull(into, np.int64(5)) == 5
    assert list(reader.versions().values()) == [(5, 6)]
    assert into["y"].tolist() == [1, 1, 1]


def test_a_lost_publisher_is_told_as_lost_whatever_version_is_asked_for(ends):
    publisher = Publisher(ends[0], {"x": np.zeros(4)})
    reader = Reader(ends[1], [publisher.card], timeout=0)
    publisher.publish(np.int64(1))
    for wrong in (1.7, "7"):
        with refused(f"version={wrong!r}: it is a whole number"):
            publisher.publish(wrong)
    into = {"x": np.ones(4)}
    assert reader.pull(into, 1) == 1
    publisher.close()
    for version in (1, "latest"):  # and not: the version is not held any more
        with pytest.raises(pyfab.PeerLostError, match="as these publishers are lost"):
            reader.pull(into, version)


def test_a_copy_that_fails_shows_nothing(ends):
    publisher = Publisher(ends[0], {"x": np.zeros(4)})
    reader = Reader(ends[1], [publisher.card], timeout=0)
    into = {"x": np.ones(4)}
    with pytest.raises(pyfab.OperationTimeout, match="has none"):
        reader.pull(into)
    publisher.publish(1)
    broken = np.ones(4)
    publisher._leaves["x"].give = lambda memory: memory.fill(9) or 1 / 0  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(ZeroDivisionError):
        publisher.publish(2)
    assert list(reader.versions().values()) == [(1,)]
    assert reader.pull(into) == 1
    assert into["x"].tolist() == [0] * 4
    publisher.publish(2, {"x": broken})
    assert reader.pull(into) == 2
    assert into["x"].tolist() == [1] * 4
