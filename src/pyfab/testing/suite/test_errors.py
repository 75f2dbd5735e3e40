"""What a peer has no right to is refused whole: one error, not a byte moved on either side, and the path goes on."""

from __future__ import annotations

import re

import numpy as np
import pyfab
import pytest
from pyfab import Access, AtomicOp
from pyfab.testing.suite.support import TIMEOUT, drain, litmus, rounds

SIZE = 4096
LANDING = 0x5A
PATTERN = (np.arange(SIZE) % 251).astype(np.uint8)

R, W = Access.REMOTE_READ, Access.REMOTE_WRITE
WRONG_KEY = 0x0DD_BA11_0DD_BA11

# By name: access of the region, offset, bytes, and the error.
REFUSED = {
    "unknown key": (R | W, 0, 64, pyfab.KeyRejectedError),
    "key off by one": (R | W, 0, 64, pyfab.KeyRejectedError),
    "no right to put": (R, 0, 64, pyfab.AccessDeniedError),
    "no right to get": (W, 0, 64, pyfab.AccessDeniedError),
    "one byte over": (R | W, SIZE - 63, 64, pyfab.BoundsError),
    "from the end": (R | W, SIZE, 8, pyfab.BoundsError),
    "one byte before": (R | W, 2**64 - 1, 64, pyfab.BoundsError),
    "overflow": (R | W, 2**64 - 8, 16, pyfab.BoundsError),
    "overflow to zero": (R | W, 2**64 - 64, 64, pyfab.BoundsError),
    "far away": (R | W, 2**40, 64, pyfab.BoundsError),
    "larger than the region": (R | W, 0, SIZE + 1, pyfab.BoundsError),
    "much larger": (R | W, 8, 3 << 20, pyfab.BoundsError),
}


def key_of(exposed, what):
    return {"unknown key": WRONG_KEY, "key off by one": exposed.key ^ 1}.get(what, exposed.key)


def still_works(pair):
    """Uses another region of the same peer, over the same path."""
    exposed = pair.expose(np.zeros(16, np.int64))
    pair.put(np.arange(16), exposed.remote)
    back = np.zeros(16, np.int64)
    pair.get(back, exposed.remote)
    assert np.array_equal(back, np.arange(16))
    pair.endpoint.atomic(AtomicOp.SUM, back, pair.handle, exposed.remote).result(TIMEOUT)
    assert np.array_equal(exposed.content(), 2 * np.arange(16))


def fails_once(pair, operation, kind):
    """Checks that there is one error, on which outcome, queue and flush agree, and returns it."""
    error = operation.exception(TIMEOUT)
    assert isinstance(error, kind), error
    (entry,) = pair.endpoint.cq.read(max=10)
    assert isinstance(entry.error, kind)
    pair.endpoint.flush(timeout=TIMEOUT)
    assert pair.endpoint.cq.read(max=10) == []
    return error


@pytest.mark.req("MR-24", "MR-25", "MR-26", "MR-27")
def test_put(pair):
    for what, (access, offset, size, kind) in REFUSED.items():
        if what == "no right to get":
            continue
        exposed = pair.expose(PATTERN, access)
        drain(pair.endpoint.cq)
        source = np.full(size, 0xFF, np.uint8)
        operation = pair.endpoint.write(source, pair.handle, (offset, key_of(exposed, what)))
        fails_once(pair, operation, kind)
        assert np.array_equal(exposed.content(), PATTERN), what
        assert (source == 0xFF).all()
        still_works(pair)


@pytest.mark.req("MR-24", "MR-25", "MR-26", "MR-27")
def test_get(pair):
    for what, (access, offset, size, kind) in REFUSED.items():
        if what == "no right to put":
            continue
        exposed = pair.expose(PATTERN, access)
        drain(pair.endpoint.cq)
        landing = np.full(size + 32, LANDING, np.uint8)
        operation = pair.endpoint.read(landing[16:-16], pair.handle, (offset, key_of(exposed, what)))
        fails_once(pair, operation, kind)
        assert (landing == LANDING).all(), what
        assert np.array_equal(exposed.content(), PATTERN)
        still_works(pair)


@pytest.mark.req("MR-24", "MR-25", "MR-26", "MR-27")
@pytest.mark.parametrize("form", ["atomic", "fetch", "compare"])
def test_atomic(pair, form):
    for what, (access, offset, size, kind) in REFUSED.items():
        if what in ("no right to get", "much larger"):
            continue
        exposed = pair.expose(np.zeros(SIZE, np.uint8), access)
        drain(pair.endpoint.cq)
        ones, zeros = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        result = np.full(size, LANDING, np.uint8)
        to = pair.handle, (offset, key_of(exposed, what))
        if form == "atomic":
            operation = pair.endpoint.atomic(AtomicOp.SUM, ones, *to)
        elif form == "fetch":
            operation = pair.endpoint.fetch_atomic(AtomicOp.SUM, ones, result, *to)
        else:
            operation = pair.endpoint.compare_atomic(AtomicOp.CSWAP, ones, zeros, result, *to)
        fails_once(pair, operation, kind)
        assert not exposed.content().any(), what
        assert (result == LANDING).all(), what
        still_works(pair)


@pytest.mark.req("MR-28")
@pytest.mark.parametrize("offset", [0, 1, 63, 64])
def test_nothing_may_be_put_and_got_anywhere_inside(pair, offset):
    exposed = pair.expose(np.arange(64, dtype=np.uint8))
    none = np.zeros(0, np.uint8)
    assert pair.put(none, (offset, exposed.key)).nbytes == 0
    assert pair.get(none, (offset, exposed.key)).nbytes == 0
    assert np.array_equal(exposed.content(), np.arange(64))


@pytest.mark.req("MR-28")
def test_nothing_needs_a_valid_key_and_place_too(pair):
    exposed = pair.expose(np.zeros(64, np.uint8))
    none = np.zeros(0, np.uint8)
    for remote, kind in [((0, WRONG_KEY), pyfab.KeyRejectedError), ((65, exposed.key), pyfab.BoundsError)]:
        for start in (pair.endpoint.write, pair.endpoint.read):
            assert isinstance(start(none, pair.handle, remote).exception(TIMEOUT), kind)
    still_works(pair)


def expose_neighbours(target, alloc):
    memory = target.memory(128, alloc=alloc)
    target.kept["neighbours"] = (
        memory,
        [target.domain.register(half, Access.REMOTE) for half in np.split(memory, 2)],
    )
    return [region.key for region in target.kept["neighbours"][1]]


def close_neighbours(target):
    memory, regions = target.kept.pop("neighbours")
    for region in regions:
        region.close()
    return memory.copy()


@pytest.mark.req("MR-29")
def test_an_operation_does_not_run_into_the_next_region(pair):
    first, second = pair.peer.run(expose_neighbours, pair.alloc)
    ones = np.ones(32, np.uint8)
    for remote in ((48, first), (2**64 - 16, second)):
        assert isinstance(
            pair.endpoint.write(ones, pair.handle, remote).exception(TIMEOUT), pyfab.BoundsError
        )
    pair.put(ones, (32, first))
    assert pair.peer.run(close_neighbours).tolist() == [0] * 32 + [1] * 32 + [0] * 64


@pytest.mark.req("MR-66", "MR-26")
def test_a_closed_region_is_refused(pair):
    exposed = pair.expose(np.zeros(64, np.uint8))
    remote = exposed.remote
    pair.put(np.ones(64, np.uint8), remote)
    exposed.close()
    landing = np.full(64, LANDING, np.uint8)
    for operation in (
        pair.endpoint.write(np.ones(64, np.uint8), pair.handle, remote),
        pair.endpoint.read(landing, pair.handle, remote),
        pair.endpoint.atomic(AtomicOp.SUM, np.ones(64, np.uint8), pair.handle, remote),
    ):
        assert isinstance(operation.exception(TIMEOUT), pyfab.KeyRejectedError)
    assert (landing == LANDING).all()
    still_works(pair)


@pytest.mark.req("MR-15")
def test_a_key_in_its_second_life_reaches_the_new_region_only(pair):
    key = 0x1234
    old = pair.expose(np.zeros(64, np.uint8), key=key)
    pair.put(np.ones(64, np.uint8), old.remote)
    memory = pair.peer.run(keep_memory, old.name)
    old.close()
    new = pair.expose(np.zeros(32, np.uint8), key=key)
    pair.put(np.full(32, 7, np.uint8), (0, key))
    assert isinstance(
        pair.endpoint.write(np.ones(64, np.uint8), pair.handle, old.remote).exception(TIMEOUT),
        pyfab.BoundsError,
    )
    assert (new.content() == 7).all()
    assert (pair.peer.run(take_memory, memory) == 1).all()


def keep_memory(target, name):
    target.kept["old"] = target.kept[name].array
    return "old"


def take_memory(target, name):
    return target.kept.pop(name).copy()


def hammer_target(target, name):
    """Closes the region under load and watches that not a byte changes afterwards."""
    exposure = target.kept[name]
    exposure.region.close()
    before = exposure.array.copy()
    for _ in range(200):
        if not np.array_equal(exposure.array, before):
            return "changed after close"
    return "quiet"


@litmus
@pytest.mark.req("MR-66")
@pytest.mark.parametrize("size, share", [(64, 1), (1 << 20, 100)])
def test_a_region_closes_under_load(pair, size, share):
    """Operations in flight succeed or fail; after close has returned at the owner nothing is written any more."""
    sources = [np.full(size, number, np.uint8) for number in range(1, 5)]
    puts = 0
    while puts < rounds(200) // share:
        exposed = pair.expose(np.zeros(size, np.uint8))
        operations = [pair.endpoint.write(source, pair.handle, exposed.remote) for source in sources * 25]
        pair.peer.start(hammer_target, exposed.name)
        while not isinstance(operations[-1].exception(TIMEOUT), pyfab.KeyRejectedError):
            operations += [
                pair.endpoint.write(source, pair.handle, exposed.remote) for source in sources * 25
            ]
        for operation in operations:
            error = operation.exception(TIMEOUT)
            assert error is None or isinstance(error, pyfab.KeyRejectedError)
        assert pair.peer.finish() == "quiet"
        exposed.close()
        puts += len(operations)
    still_works(pair)


@pytest.mark.req("MR-17")
def test_a_key_of_another_domain_is_unknown(pair):
    here = pair.register(np.zeros(8), Access.REMOTE, key=4242)
    assert here.key == 4242
    error = pair.endpoint.write(np.ones(8), pair.handle, (0, 4242)).exception(TIMEOUT)
    assert isinstance(error, pyfab.KeyRejectedError)
    there = pair.expose(np.zeros(8), key=4242)
    pair.put(np.ones(8), (0, 4242))
    assert there.content().all()
    assert not np.asarray(here).any()


def test_errors_in_a_crowd_hit_their_own_operations(pair):
    exposed = pair.expose(np.zeros(100, np.int64))
    operations = []
    for number in range(100):
        key = exposed.key if number % 3 else WRONG_KEY
        operations.append(pair.endpoint.write(np.array([number + 1]), pair.handle, (8 * number, key)))
    failed = [operation.exception(TIMEOUT) is not None for operation in operations]
    assert failed == [number % 3 == 0 for number in range(100)]
    assert exposed.content().tolist() == [number + 1 if number % 3 else 0 for number in range(100)]


@pytest.mark.parametrize(
    "verb, what",
    [("write", "unknown key"), ("write", "one byte over"), ("read", "no right to get"), ("read", "overflow")],
)
def test_a_message_says_what_was_asked(pair, verb, what):
    """It names the operation, the peer and the range; the error has its code and name for programs."""
    access, offset, size, kind = REFUSED[what]
    exposed = pair.expose(np.zeros(SIZE, np.uint8), access)
    start = getattr(pair.endpoint, verb)
    error = start(np.zeros(size, np.uint8), pair.handle, (offset, key_of(exposed, what))).exception(TIMEOUT)
    assert isinstance(error, kind)
    text = str(error)
    assert verb in text
    assert re.search(rf"peer {pair.handle}\b", text)
    assert str(size) in text and str(offset) in text
    assert (
        error.name
        == {
            pyfab.KeyRejectedError: "FI_EKEYREJECTED",
            pyfab.AccessDeniedError: "FI_EACCES",
            pyfab.BoundsError: "FI_EFAULT",
        }[kind]
    )
    assert error.errno == {"FI_EKEYREJECTED": 129, "FI_EACCES": 13, "FI_EFAULT": 14}[error.name]


def test_the_error_tree():
    assert issubclass(pyfab.FabricError, OSError)
    for error, builtin in {
        pyfab.AccessDeniedError: PermissionError,
        pyfab.BoundsError: IndexError,
        pyfab.BadFlagsError: ValueError,
        pyfab.InvalidArgumentError: ValueError,
        pyfab.UnreachableError: pyfab.PeerLostError,  # whoever waits for a death need not know when it was noticed
        pyfab.PeerLostError: ConnectionError,
        pyfab.OperationTimeout: TimeoutError,
        pyfab.ClosedError: ValueError,
    }.items():
        assert issubclass(error, pyfab.FabricError)
        assert issubclass(error, builtin)
    for name in ("KeyInUse", "KeyRejected", "Busy", "TooSmall", "NoEventQueue", "Truncated", "Canceled"):
        assert issubclass(getattr(pyfab, f"{name}Error"), pyfab.FabricError)
    assert issubclass(pyfab.NotSupportedError, pyfab.FabricError)
    assert issubclass(pyfab.InsertError, pyfab.FabricError)
