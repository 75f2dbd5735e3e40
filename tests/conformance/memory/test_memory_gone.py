"""A file was cut short under its mapping: the operation fails, the process lives, and later operations are right."""

from __future__ import annotations

import os

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from support import TIMEOUT, Pair, random_bytes

SIZE = 256 * 1024  # bytes
SIZES = [8, 200, 3000, 40_000, SIZE]


@pytest.fixture
def gone(tmp_path):
    """Memory whose pages are not there any more."""
    return Gone(tmp_path / "short")


class Gone:
    """Has a text that does not touch the memory, for reports of tests."""

    def __init__(self, path, left=0):
        path.write_bytes(bytes(SIZE))
        self._memory = np.memmap(path, np.uint8, "r+")
        os.truncate(path, left)

    def __getitem__(self, part):
        return self._memory[part]


def works(pair: Pair) -> None:
    """Puts, gets and messages, after which nothing of the former operations is left."""
    data, exposed = random_bytes(SIZE, 1), pair.expose(np.zeros(SIZE, np.uint8))
    back = np.zeros_like(data)
    pair.put(data, exposed.remote)
    pair.get(back, exposed.remote)
    assert (back == data).all()
    pair.peer.run(expect)
    pair.endpoint.send(data[:100], pair.handle).result(TIMEOUT)
    assert (pair.peer.run(received) == data[:100]).all()


def expect(target):
    target.kept["into"] = np.zeros(SIZE, np.uint8)
    target.kept["receive"] = target.endpoint.recv(target.kept["into"])


def received(target):
    length = target.kept.pop("receive").result(TIMEOUT).nbytes
    return target.kept.pop("into")[:length]


@pytest.mark.req("MR-26")
@pytest.mark.parametrize("size", SIZES)
def test_puts_and_gets(pair, gone, size):
    exposed = pair.expose(np.full(SIZE, 7, np.uint8))
    for begin in (pair.endpoint.write, pair.endpoint.read):
        with pytest.raises(pyfab.BoundsError):
            begin(gone[:size], pair.handle, exposed.remote.bytes(0, size)).result(TIMEOUT)
    assert (exposed.content()[size:] == 7).all()
    works(pair)


@pytest.mark.req("MR-26")
@pytest.mark.parametrize("size", SIZES[:3])  # longer ones are fetched when there is a receive
def test_messages(pair, gone, size):
    with pytest.raises(pyfab.BoundsError):
        pair.endpoint.send(gone[:size], pair.handle).result(TIMEOUT)
    works(pair)


@pytest.mark.req("MR-26")
def test_updates(pair, gone):
    exposed = pair.expose(np.zeros(32, np.int64))
    for count in (1, 32):
        operand = gone[: 8 * count].view(np.int64)
        with pytest.raises(pyfab.BoundsError):
            pair.endpoint.atomic(AtomicOp.SUM, operand, pair.handle, exposed.remote[:count]).result(TIMEOUT)
    assert not exposed.content().any()
    works(pair)


@pytest.mark.req("MR-26")
def test_no_element_is_updated_if_a_part_of_the_operands_is_gone(pair, tmp_path):
    half_gone = Gone(tmp_path / "half", left=4096)[:8192].view(np.int64)
    half_gone[:512] = 1
    exposed = pair.expose(np.zeros(1024, np.int64))
    with pytest.raises(pyfab.BoundsError):
        pair.endpoint.atomic(AtomicOp.SUM, half_gone, pair.handle, exposed.remote).result(TIMEOUT)
    assert not exposed.content().any()
    works(pair)


@pytest.mark.req("MR-26")
def test_rows(pair, gone):
    exposed = pair.expose(np.zeros(SIZE, np.uint8))
    offsets = np.arange(0, 6400, 100)
    for begin in (pair.endpoint.write_many, pair.endpoint.read_many):
        with pytest.raises(pyfab.BoundsError):
            begin(pair.handle, exposed.remote, gone[:], offsets, offsets, 100).result(TIMEOUT)
    works(pair)


@pytest.mark.req("MR-26")
def test_results(pair, gone):
    exposed = pair.expose(np.zeros(32, np.int64))
    for count in (1, 32):
        ones, zeros, place = np.ones(count, np.int64), np.zeros(count, np.int64), exposed.remote[:count]
        words = gone[: 8 * count].view(np.int64)
        with pytest.raises(pyfab.BoundsError):
            pair.endpoint.fetch_atomic(AtomicOp.SUM, ones, words, pair.handle, place).result(TIMEOUT)
        for compare, result in ((words, zeros), (zeros, words)):
            started = pair.endpoint.compare_atomic(AtomicOp.CSWAP, ones, compare, result, pair.handle, place)
            with pytest.raises(pyfab.BoundsError):
                started.result(TIMEOUT)
    works(pair)
