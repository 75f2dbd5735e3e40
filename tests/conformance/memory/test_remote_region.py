"""What is handed to a peer: slices as NumPy slices, survives being sent, and says no more than needed."""

from __future__ import annotations

import json
import pickle
import zlib

import numpy as np
import pyfab
import pytest
from pyfab import Access
from support import TIMEOUT

SHAPE = (4, 6, 5)


@pytest.fixture(scope="module")
def space():
    """An array, what describes it, and an endpoint that reaches it as peer 0."""
    memory = np.arange(np.prod(SHAPE), dtype=np.int32).reshape(SHAPE)
    with (
        pyfab.Domain("shm") as domain,
        domain.endpoint() as endpoint,
        domain.register(memory, Access.REMOTE) as region,
    ):
        endpoint.av.insert(endpoint.address)
        yield memory, region.remote, endpoint


def read(endpoint, remote) -> np.ndarray:
    landing = np.zeros(remote.shape, remote.dtype)
    endpoint.read(landing, 0, remote).result(TIMEOUT)
    return landing


def test_it_describes_the_array(space):
    memory, remote, _ = space
    assert remote.shape == SHAPE
    assert remote.dtype == np.int32
    assert remote.nbytes == memory.nbytes
    assert len(remote) == len(memory)


@pytest.mark.parametrize(
    "index",
    [
        np.s_[2],
        np.s_[-1],
        np.s_[1:3],
        np.s_[:],
        np.s_[...],
        np.s_[2:],
        np.s_[-3:-1],
        np.s_[3, 2],
        np.s_[3, :],
        np.s_[3, 1:4],
        np.s_[3, 2, 4],
        np.s_[3, 2, 1:4],
        np.s_[0, ..., 2],
        np.s_[1:2, 2:4],
        np.s_[()],
        np.s_[2:2],
        np.s_[1:100],
        np.s_[np.int64(2)],
        np.s_[1:3, ...],
        np.s_[3, 5, 4:5],
    ],
    ids=repr,
)
def test_slices_of_contiguous_parts(space, index):
    memory, remote, endpoint = space
    expected = memory[index]
    part = remote[index]
    assert part.shape == expected.shape
    assert part.dtype == expected.dtype
    assert part.nbytes == expected.nbytes
    if expected.flags.c_contiguous:
        assert np.array_equal(read(endpoint, part), expected)


def test_slices_of_slices(space):
    memory, remote, endpoint = space
    assert np.array_equal(read(endpoint, remote[1:4][1][2:5]), memory[1:4][1][2:5])
    assert np.array_equal(read(endpoint, remote[3][5][1:]), memory[3][5][1:])


@pytest.mark.parametrize("index", [4, -5, np.s_[0, 6], np.s_[0, 0, 0, 0], np.s_[..., ...]], ids=repr)
def test_indices_out_of_range_are_index_errors(space, index):
    with pytest.raises(IndexError):
        space[1][index]


@pytest.mark.parametrize("index", [1.0, "a", None, [0, 1], np.array([0, 2]), np.zeros(4, bool)], ids=repr)
def test_other_indices_are_refused(space, index):
    with pytest.raises((TypeError, IndexError, ValueError)):
        space[1][index]


@pytest.mark.parametrize("index", [np.s_[::2], np.s_[::-1], np.s_[:, 2:4], np.s_[:, :, 1]], ids=repr)
def test_what_is_not_contiguous_is_never_taken_for_its_hull(space, index):
    """A part with gaps is refused, at the slice or at the operation, or moves exactly its elements."""
    memory, remote, endpoint = space
    try:
        landing = read(endpoint, remote[index])
    except (ValueError, IndexError, pyfab.FabricError) as refusal:
        landing, reason = None, str(refusal)
    if landing is None:
        assert "contiguous" in reason
    else:
        assert np.array_equal(landing, memory[index])


def test_iteration_gives_rows(space):
    memory, remote, endpoint = space
    rows = list(remote)
    assert len(rows) == len(memory)
    assert all(
        np.array_equal(read(endpoint, row), expected) for row, expected in zip(rows, memory, strict=True)
    )


def test_bytes(space):
    memory, remote, endpoint = space
    part = remote.bytes(7, 91)
    assert (part.nbytes, part.dtype, part.shape) == (84, np.uint8, (84,))
    assert read(endpoint, part).tobytes() == memory.tobytes()[7:91]
    assert remote.bytes(480, 480).nbytes == 0
    assert read(endpoint, remote[1:2].bytes(4, 12)).tobytes() == memory[1].tobytes()[4:12]


@pytest.mark.parametrize(
    "start, stop", [(0, 481), (481, 481), (-1, 4), (8, 4), (2**64, 2**64), ("a", 4), (0.0, 8)]
)
def test_bytes_out_of_range(space, start, stop):
    with pytest.raises((IndexError, ValueError, TypeError, OverflowError)):
        space[1].bytes(start, stop)


DTYPES = [
    "i1",
    "u8",
    "f4",
    "f2",
    "c16",
    "?",
    "S7",
    "U3",
    "M8[ns]",
    ">i4",
    [("id", "i4"), ("xyz", "f8", (3,))],
    np.dtype([("id", "i1"), ("x", "f8")], align=True),
    np.dtype({"names": ["late"], "formats": ["i2"], "offsets": [6], "itemsize": 16}),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", ["pickle", "bytes"])
def test_it_survives_being_sent(dtype, way):
    memory = (
        np.frombuffer(np.random.default_rng(0).bytes(6 * np.dtype(dtype).itemsize), dtype)
        .reshape(3, 2)
        .copy()
    )
    with pyfab.Domain("shm") as domain, domain.register(memory, Access.REMOTE_READ) as region:
        for remote in (region.remote, region.remote[1:], region.remote[2, 1]):
            if way == "pickle":
                copy = pickle.loads(pickle.dumps(remote))
            else:
                assert isinstance(remote.to_bytes(), bytes)
                copy = pyfab.RemoteRegion.from_bytes(remote.to_bytes())
            assert (copy.shape, copy.dtype, copy.nbytes) == (remote.shape, remote.dtype, remote.nbytes)
            assert copy.to_bytes() == remote.to_bytes()
            assert copy == remote


def test_fields_in_no_order_cannot_be_sent():
    """NumPy has no description of them that another version would read."""
    turned = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]})
    with (
        pyfab.Domain("shm") as domain,
        domain.register(np.zeros(3, turned), Access.REMOTE_READ) as region,
        pytest.raises(
            pyfab.InvalidArgumentError, match=r"'offsets': \[4, 0\].* in the order of their offsets"
        ),
    ):
        region.remote.to_bytes()


@pytest.mark.parametrize("dtype", ["(3,)f4", "(1,)f4", "|O", "T"])
def test_a_dtype_that_no_array_has_is_refused(space, dtype):
    """An array's elements are no arrays, and no objects of Python."""
    with pytest.raises(pyfab.InvalidArgumentError, match="these bytes are no remote region: the dtype"):
        pyfab.RemoteRegion.from_bytes(with_dtype(space[1].to_bytes(), dtype))


def with_dtype(written: bytes, dtype: str) -> bytes:
    """The bytes of a remote region of int32 with the text of another dtype."""
    text = len(b"<i4").to_bytes(4, "little") + b"<i4"
    assert written.count(text) == 1
    body = written[8:].replace(text, len(dtype).to_bytes(4, "little") + dtype.encode())
    return written[:4] + zlib.crc32(body).to_bytes(4, "little") + body


def test_a_copy_reaches_the_same_memory(space):
    memory, remote, endpoint = space
    for copy in (pickle.loads(pickle.dumps(remote[2])), pyfab.RemoteRegion.from_bytes(remote[2].to_bytes())):
        assert np.array_equal(read(endpoint, copy), memory[2])
        assert np.array_equal(read(endpoint, copy[1:3]), memory[2, 1:3])


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "V20", "u4,u4", "S3", "S16"])
@pytest.mark.parametrize(
    "index",
    [np.s_[:], np.s_[:, ::2], np.s_[..., ::2], np.s_[..., :1], np.s_[0, 0, 0], np.s_[:0], np.s_[..., 1:5]],
    ids=str,
)
def test_views_are_those_of_numpy(space, index, dtype):
    """Shapes, contents and refusals."""
    memory, remote, endpoint = space
    try:
        expected = memory[index].view(dtype)
    except ValueError:
        with pytest.raises(pyfab.InvalidArgumentError, match=r"^view\(\) .* \[FI_EINVAL\]$"):
            remote[index].view(dtype)
        return
    view = remote[index].view(dtype)
    assert (view.shape, view.dtype, view.nbytes) == (expected.shape, expected.dtype, expected.nbytes)
    if view.contiguous:
        assert read(endpoint, view).tobytes() == expected.tobytes()


def test_views_with_a_shape_are_of_the_beginning(space):
    memory, remote, endpoint = space
    assert (
        read(endpoint, remote[1].view("u2", (3, 4))) == memory[1].view("u2").ravel()[:12].reshape(3, 4)
    ).all()
    with pytest.raises(
        pyfab.BoundsError, match="an array of 500 bytes does not fit the 480 bytes of the view"
    ):
        remote.view("u1", (500,))
    with pytest.raises(pyfab.InvalidArgumentError, match="with a shape needs a contiguous remote array"):
        remote[:, ::2].view("u1", (3,))
    for dtype in ("O", "(2,)i4", "V0"):
        for shape in (None, (1,)):
            with pytest.raises(pyfab.InvalidArgumentError, match="elements of plain values, not of dtype"):
                remote.view(dtype, shape)


def test_bytes_from_text(space):
    """Small enough for any channel that carries text."""
    remote = space[1]
    text = json.dumps(remote.to_bytes().hex())
    assert len(text) < 1000
    assert pyfab.RemoteRegion.from_bytes(bytes.fromhex(json.loads(text))) == remote


def test_other_buffers_are_described_as_bytes():
    with pyfab.Domain("shm") as domain:
        for buffer, dtype, shape in [
            (bytearray(10), np.uint8, (10,)),
            ([np.zeros(2), bytearray(3)], np.uint8, (19,)),
            (memoryview(np.zeros((2, 3), np.float32)), np.float32, (2, 3)),
        ]:
            with domain.register(buffer, Access.REMOTE_READ) as region:
                assert (region.remote.dtype, region.remote.shape) == (dtype, shape)


def test_what_it_says_of_itself(space):
    text = repr(space[1])
    assert "int32" in text and "(4, 6, 5)" in text


def test_without_remote_rights_there_is_nothing_to_hand_out():
    with (
        pyfab.Domain("shm") as domain,
        domain.register(np.zeros(8), Access.LOCAL) as region,
        pytest.raises(pyfab.AccessDeniedError),
    ):
        region.remote  # noqa: B018
