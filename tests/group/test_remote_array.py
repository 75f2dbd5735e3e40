"""Remote arrays, with NumPy itself as the judge of every index, cast and broadcast."""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pyfab
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_pair import NON_COHERENT, RECORD, SHAPES, TARGET, Pair, content, name_of


@pytest.fixture(scope="module", params=["shm", "tcp", "shm+tcp", NON_COHERENT], ids=name_of)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    import os
    import subprocess

    meeting = f"file://{tmp_path_factory.mktemp('pair')}/meeting"
    environment = os.environ | {"PYFAB_RANK": "1", "PYFAB_SIZE": "2", "PYFAB_RENDEZVOUS": meeting}
    command = [sys.executable, "-c", TARGET, json.dumps(request.param), str(Path(__file__).parent)]
    with subprocess.Popen(command, env=environment) as process:
        try:
            with pyfab.Group(0, 2, meeting, request.param) as group:
                pair = Pair(group)
                yield pair
                pair.check()
                group.broadcast("end")
            assert process.wait(30) == 0
        finally:
            process.kill()


def rows_of(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """An array of row numbers, a list of them, or a mask; and perhaps indices of the other axes."""
    extent = shape[0]
    numbers = st.just(np.empty(0, int))
    if extent:
        some = hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=4)
        dtypes = st.sampled_from([np.int64, np.int32, np.int8])
        numbers = dtypes.flatmap(
            lambda dtype: hnp.arrays(dtype, some, elements=st.integers(-extent, extent - 1))
        )
    masks = hnp.arrays(bool, (extent,))
    rows = st.one_of(numbers, numbers.filter(lambda n: n.ndim == 1).map(lambda n: n.tolist()), masks)
    if len(shape) == 1:
        return rows
    rest = hnp.basic_indices(shape[1:], allow_newaxis=False)
    return st.one_of(
        rows, st.tuples(rows, rest).map(lambda t: (t[0], *(t[1] if isinstance(t[1], tuple) else (t[1],))))
    )


@st.composite
def selections(draw: st.DrawFn) -> tuple[str, Any]:
    name = draw(st.sampled_from(list(SHAPES)))
    shape = SHAPES[name][0]
    basic = hnp.basic_indices(shape, allow_newaxis=False)
    return name, draw(st.one_of(basic, rows_of(shape)) if shape else basic)


many = settings(max_examples=200, deadline=None)


@pytest.mark.slow
@many
@given(selection=selections())
def test_reading_is_numpys(pair: Pair, selection: tuple[str, Any]) -> None:
    name, index = selection
    remote, mirror = pair.at(name)
    expected, found = mirror[index], remote[index]
    assert type(found) is type(expected)
    assert (found.shape, found.dtype, found.tobytes()) == (expected.shape, expected.dtype, expected.tobytes())
    out = np.zeros_like(expected) if isinstance(expected, np.ndarray) else np.zeros((), expected.dtype)
    assert remote.get(out, index).result(20).nbytes == expected.nbytes
    assert out.tobytes() == expected.tobytes()


def distinct(index: Any) -> bool:
    rows = index[0] if isinstance(index, tuple) and index else index
    numbers = np.asarray(rows) if isinstance(rows, list | np.ndarray) else np.empty(0, bool)
    return numbers.dtype == bool or bool(numbers.size == len(np.unique(numbers)) and (numbers >= 0).all())


@pytest.mark.slow
@many
@given(selection=selections().filter(lambda s: distinct(s[1])), data=st.data())
def test_writing_is_numpys(pair: Pair, selection: tuple[str, Any], data: st.DataObject) -> None:
    name, index = selection
    remote, mirror = pair.at(name)
    shape = mirror[index].shape
    broadcast = data.draw(hnp.broadcastable_shapes(shape, max_dims=len(shape))) if 0 not in shape else shape
    broadcast = broadcast if np.broadcast_shapes(shape, broadcast) == shape else shape
    values = content(broadcast, mirror.dtype, data.draw(st.integers(0, 1000)))
    if data.draw(st.booleans()):
        remote[index] = values
    else:
        remote.put(values, index).result(20)
    mirror[index] = values
    assert remote[...].tobytes() == mirror.tobytes()


def test_peers_memory_is_what_it_was_told_to_be(pair: Pair) -> None:
    pair.check()


OUTSIDE: list[tuple[str, Any]] = [
    ("line", 23),
    ("line", -24),
    ("line", (0, 0)),
    ("block", (0, 5)),
    ("block", (0, 0, 0, 0)),
    ("block", (..., 0, ...)),
    ("block", (0, ..., 4)),
    ("line", [0, 23]),
    ("line", [-24]),
    ("line", np.array([2**63], np.uint64)),
    ("line", np.ones(22, bool)),
    ("line", 1.0),
    ("line", "1"),
    ("line", [0.5]),
    ("scalar", 0),
    ("scalar", [0]),
    ("empty", 0),
    ("empty", [0]),
]


@pytest.mark.parametrize("name,index", OUTSIDE)
def test_indices_that_numpy_refuses(pair: Pair, name: str, index: Any) -> None:
    remote, mirror = pair.at(name)
    with pytest.raises(IndexError):
        mirror[index]
    for use in (lambda: remote[index], lambda: remote.put(1, index), lambda: remote.get(np.zeros(1), index)):
        with pytest.raises(IndexError):
            use()
    with pytest.raises(IndexError):
        remote[index] = 1


@pytest.mark.parametrize(
    "index", [None, (None, 0), True, (0, [1]), (0, np.ones(5, bool)), np.ones((6, 5), bool)]
)
def test_indices_that_remote_arrays_do_not_take(pair: Pair, index: Any) -> None:
    with pytest.raises(IndexError):
        pair.at("block")[0][index]


def test_slices_with_step_zero(pair: Pair) -> None:
    with pytest.raises(ValueError, match="zero"):
        pair.at("line")[0][::0]


CASTS = [
    ("line", np.arange(23, dtype="i4")),
    ("line", np.arange(23, dtype="u4")),
    ("line", 7),
    ("line", list(range(23))),
    ("line", True),
    ("bytes", 255),
    ("bytes", [1, 2, 3]),
    ("block", 2.5),
    ("block", np.arange(4)),
    ("block", np.arange(120.0).reshape(6, 5, 4)[::-1, :, ::-1]),
    ("block", np.arange(120).reshape(4, 5, 6).T),
    ("block", np.ones((1, 1, 6, 5, 4))),
    ("scalar", 3),
    ("records", np.array((7, (1, 2)), RECORD)),
    ("empty", np.ones(3)),
]


@pytest.mark.parametrize("name,values", CASTS)
def test_values_are_cast_and_broadcast(pair: Pair, name: str, values: Any) -> None:
    remote, mirror = pair.at(name)
    remote[...] = values
    mirror[...] = values
    assert remote[...].tobytes() == mirror.tobytes()


REFUSED: list[tuple[str, Any, type[Exception], str]] = [
    ("line", 1.5, TypeError, "float64 do not go into int64"),
    ("line", np.arange(23.0), TypeError, "float64"),
    ("line", [1j] * 23, TypeError, "complex"),
    ("bytes", np.full((7, 3), 5, "i8"), TypeError, "int64 do not go into uint8"),
    ("bytes", 256, OverflowError, "256"),
    ("bytes", -1, OverflowError, "-1"),
    ("line", "text", TypeError, "do not go into"),
    (
        "line",
        np.arange(22),
        pyfab.InvalidArgumentError,
        r"shape \(22,\) do not fit the selected shape \(23,\)",
    ),
    ("block", np.zeros((2, 6, 5, 4)), pyfab.InvalidArgumentError, "do not fit"),
    ("scalar", [1, 2], pyfab.InvalidArgumentError, "do not fit"),
]


@pytest.mark.parametrize("name,values,error,message", REFUSED)
def test_values_that_do_not_fit(
    pair: Pair, name: str, values: Any, error: type[Exception], message: str
) -> None:
    remote, mirror = pair.at(name)
    with pytest.raises(error, match=message):
        remote[...] = values
    with pytest.raises(error, match=message):
        remote.put(values)
    assert remote[...].tobytes() == mirror.tobytes()


def test_landing_arrays_are_checked(pair: Pair) -> None:
    remote, _ = pair.at("block")
    for out in (np.zeros((6, 5, 3), "f4"), np.zeros((6, 5, 4), "f8")):
        with pytest.raises(pyfab.InvalidArgumentError, match="out has shape"):
            remote.get(out)
    with pytest.raises(pyfab.InvalidArgumentError, match="ascontiguousarray"):
        remote.get(np.zeros((4, 5, 6), "f4").T)
    with pytest.raises(TypeError, match="out is of type list"):
        remote.get([0.0])
    read_only = np.zeros((6, 5, 4), "f4")
    read_only.flags.writeable = False
    with pytest.raises(pyfab.AccessDeniedError, match="read-only"):
        remote.get(read_only)


def test_taking_rows(pair: Pair) -> None:
    remote, mirror = pair.at("block")
    for indices in ([5, 0, 0, -1], np.array([[1], [2]]), 3, [], range(6)):
        expected = mirror.take(np.asarray(indices, int), axis=0)
        assert np.array_equal(remote.take(indices).result(20), expected)
        out = np.empty_like(expected)
        assert remote.take(indices, out=out).result(20).nbytes == expected.nbytes
        assert np.array_equal(out, expected)
    with pytest.raises(pyfab.InvalidArgumentError, match="axis=1"):
        remote.take([0], axis=1)
    with pytest.raises(IndexError):
        remote.take([6])


def test_many_rows_are_one_operation(pair: Pair) -> None:
    remote, mirror = pair.at("line")
    rows = np.random.default_rng(3).integers(0, 23, 100_000)
    out = np.empty(100_000, np.int64)
    completion = remote.take(rows, out=out).result(60)
    assert completion.nbytes == 800_000
    assert np.array_equal(out, mirror[rows])
    order = np.random.default_rng(4).permutation(23)
    remote.put_at(order, np.arange(23)).result(20)
    mirror[order] = np.arange(23)
    assert np.array_equal(remote[...], mirror)


@pytest.mark.req("WIN-67")
def test_memory_seen_as_another_type(pair: Pair) -> None:
    """A view names the same bytes, belongs to the same window, and is made once."""
    line = pair.windows["line"][1]
    whole = line[...]
    halves = line.view(np.int32)
    assert halves is line.view("i4")
    assert halves.shape == (46,)
    assert (halves[...] == whole.view(np.int32)).all()
    try:
        halves.put(np.full(2, 7, np.int32), slice(2, 4))
        pair.windows["line"].flush(1)
        assert (line[1:2].view(np.int32) == 7).all()
    finally:
        line[...] = whole
    with pytest.raises(pyfab.InvalidArgumentError, match="no whole number of elements"):
        line.view([("a", "u1", (5,))])


def test_atomics(pair: Pair) -> None:
    remote, mirror = pair.at("line")
    remote[...] = mirror[...] = np.arange(23)
    assert remote.fetch_add(5, 3).result(20) == 3
    former = remote.fetch_add([1, 2, 3], np.s_[4:7]).result(20)
    assert former.tolist() == [4, 5, 6]
    mirror[3:7] += [5, 1, 2, 3]
    out = np.zeros(2, np.int64)
    assert remote.fetch_add(1, np.s_[:2], out=out).result(20).nbytes == 16
    assert out.tolist() == [0, 1]
    mirror[:2] += 1
    remote.accumulate(10).result(20)
    mirror += 10
    remote.accumulate(4, 0, pyfab.AtomicOp.MAX).result(20)
    remote.accumulate([100, 0], np.s_[:2], op=pyfab.AtomicOp.MAX).result(20)
    mirror[0] = 100
    assert remote.compare_and_swap(100, -1, 0).result(20) == 100
    assert remote.compare_and_swap(100, -2, 0).result(20) == -1
    mirror[0] = -1
    assert remote.compare_and_swap(mirror[1:3], 0, np.s_[1:3]).result(20).tolist() == mirror[1:3].tolist()
    mirror[1:3] = 0
    assert np.array_equal(remote[...], mirror)
    with pytest.raises(pyfab.NotSupportedError):
        pair.at("records")[0].accumulate(np.zeros((5, 2), RECORD))
    with pytest.raises(TypeError):
        remote.fetch_add(0.5, 0)
    with pytest.raises(IndexError):
        remote.compare_and_swap(0, 1, 23)


def test_fetches_are_operations(pair: Pair) -> None:
    remote, mirror = pair.at("line")
    called: queue.Queue[Any] = queue.Queue()
    fetch = remote.take([1, 2])
    fetch.add_done_callback(called.put)
    assert np.array_equal(fetch.result(20), mirror[1:3])
    assert fetch.done()
    assert fetch.exception(0) is None
    assert called.get(timeout=20) is fetch
    assert fetch.cancel() is False

    async def wait() -> Any:
        return await remote.fetch_add(0, 7)

    assert asyncio.run(wait()) == mirror[7]


def test_arrays_like_numpys(pair: Pair) -> None:
    remote, mirror = pair.at("block")
    assert (remote.shape, remote.dtype, remote.ndim, remote.nbytes, len(remote)) == (
        (6, 5, 4),
        "f4",
        3,
        480,
        6,
    )
    assert np.array_equal(np.asarray(remote), mirror)
    assert np.asarray(remote, "f8").dtype == np.float64
    assert [row.shape for row in remote] == [(5, 4)] * 6
    assert repr(remote) == "RemoteArray(peer=1, shape=(6, 5, 4), dtype=float32)"
    with pytest.raises(ValueError, match="copying"):
        remote.__array__(copy=False)
    with pytest.raises(TypeError):
        len(pair.at("scalar")[0])


def test_windows_know_their_peers(pair: Pair) -> None:
    window = pair.windows["line"]
    assert window[1] is window[np.int64(1)]
    assert window[0].peer == 0
    window.local[:] = np.arange(23)
    window.sync()
    assert np.array_equal(window[0][::-1], np.arange(23)[::-1])
    assert (window.shape, window.dtype) == ((23,), "i8")
    for peer in (2, -1, "1", 1.5):
        with pytest.raises(IndexError, match="ranks are 0 to 1"):
            window[peer]
    window.flush()
    window.flush(1, timeout=20)
    window.sync()
    assert "rank 0 of 2" in repr(window)
