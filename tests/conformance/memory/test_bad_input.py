"""Bad input gets a clear error before anything moves, never a crash."""

from __future__ import annotations

import socket

import numpy as np
import pyfab
import pytest
from pyfab import Access, AtomicOp, RMAEvent
from support import COMBINATIONS, TIMEOUT, failure


@pytest.fixture(
    scope="module", params=[c for c in COMBINATIONS if str(c) in ("linked-thread", "tcp-process")], ids=str
)
def combination(request):
    """What is refused before a link is asked needs not all of them."""
    return request.param


def checked(error: BaseException) -> str:
    """The text of an error that a caller can act on."""
    assert isinstance(error, (TypeError, ValueError, IndexError, pyfab.FabricError)), repr(error)
    assert str(error)
    return str(error)


@pytest.mark.parametrize("verb", ["write", "read"])
@pytest.mark.parametrize(
    "local",
    [
        None,
        5,
        "text",
        object(),
        np.zeros((8, 8))[:, ::2],
        np.zeros(16)[::-1],
        [np.zeros(4), None],
        [np.zeros(8)[::2]],
        np.array([object()] * 8),
        ("region", 0, 8),
    ],
    ids=[
        "None",
        "int",
        "str",
        "object",
        "strided",
        "reversed",
        "list with None",
        "strided part",
        "objects",
        "triple",
    ],
)
def test_local_memory_of_the_wrong_kind(pair, verb, local):
    exposed = pair.expose(np.zeros(64))
    error = failure(lambda: getattr(pair.endpoint, verb)(local, pair.handle, exposed.remote))
    text = checked(error)
    if isinstance(local, np.ndarray) and local.dtype != object:
        assert "contiguous" in text
    assert not exposed.content().any()


@pytest.mark.parametrize("local", [bytes(64), np.frombuffer(bytes(64)), memoryview(bytes(64))])
def test_a_get_into_read_only_memory(pair, local):
    exposed = pair.expose(np.ones(8))
    text = checked(failure(lambda: pair.endpoint.read(local, pair.handle, exposed.remote)))
    assert "read-only" in text or "writable" in text
    assert not any(memoryview(local).cast("B"))


def test_an_atomic_into_a_read_only_result(pair):
    exposed = pair.expose(np.ones(8))
    result = np.frombuffer(bytes(64))
    error = failure(
        lambda: pair.endpoint.fetch_atomic(AtomicOp.SUM, np.ones(8), result, pair.handle, exposed.remote)
    )
    checked(error)
    assert (exposed.content() == 1).all()
    assert not result.any()


@pytest.mark.parametrize(
    "remote",
    [
        None,
        5,
        b"bytes",
        (0,),
        (0, 1, 2),
        ("0", 1),
        (0, -1),
        (-1, 1),
        (0, 2**64),
        (2**64, 1),
        (0.5, 1),
    ],
    ids=repr,
)
def test_a_remote_place_of_the_wrong_kind(pair, remote):
    checked(failure(lambda: pair.endpoint.write(np.zeros(8), pair.handle, remote)))


@pytest.mark.parametrize("size", [7, 9])
def test_local_and_remote_sizes_must_fit(pair, size):
    """A slice names its range; writing more than that is a mistake, not a way around it."""
    exposed = pair.expose(np.zeros(16))
    if size > 8:
        checked(failure(lambda: pair.endpoint.write(np.ones(size), pair.handle, exposed.remote[:8])))
        assert not exposed.content().any()
    else:
        pair.put(np.ones(size), exposed.remote[:8])
        assert exposed.content().sum() == size


@pytest.mark.parametrize("verb", ["write", "read"])
def test_local_and_remote_types_must_fit(pair, verb):
    """Numbers of one type are not stored as those of another; raw bytes may go anywhere."""
    exposed = pair.expose(np.zeros(8, np.float64))
    error = failure(lambda: getattr(pair.endpoint, verb)(np.ones(8, np.int64), pair.handle, exposed.remote))
    text = checked(error)
    assert "int64" in text and "float64" in text
    assert not exposed.content().any()
    getattr(pair.endpoint, verb)(np.ones(64, np.uint8), pair.handle, exposed.remote).result(TIMEOUT)


def test_a_call_that_raises_leaves_no_entry_in_the_queue(pair):
    exposed = pair.expose(np.zeros(8))
    for call in (
        lambda: pair.endpoint.write(np.ones(8), 1 << 20, exposed.remote),
        lambda: pair.endpoint.write(np.ones(9), pair.handle, exposed.remote),
        lambda: pair.endpoint.atomic(AtomicOp.BOR, np.ones(8), pair.handle, exposed.remote),
    ):
        with pytest.raises((ValueError, IndexError, pyfab.FabricError)):
            call()
    pair.put(np.ones(8), exposed.remote)
    assert [entry.nbytes for entry in pair.endpoint.cq.read(max=10)] == [64]


@pytest.mark.req("AV-35")
@pytest.mark.parametrize(
    "handle", [None, "0", -1, 1 << 20, 1 << 63, 1 << 64, 0.0, pyfab.ADDR_NOTAVAIL], ids=repr
)
def test_an_unknown_peer(pair, handle):
    exposed = pair.expose(np.zeros(8))
    error = failure(lambda: pair.endpoint.write(np.ones(8), handle, exposed.remote))
    checked(error)
    if handle == 1 << 20:
        assert isinstance(error, pyfab.InvalidArgumentError)
        assert str(handle) in str(error)
    assert not exposed.content().any()


@pytest.mark.parametrize("flags", [1 << 60, -1, "fast"], ids=repr)
def test_unknown_operation_flags(pair, flags):
    exposed = pair.expose(np.zeros(8))
    checked(failure(lambda: pair.endpoint.write(np.ones(8), pair.handle, exposed.remote, flags=flags)))


def test_a_local_part_outside_of_its_region(pair):
    exposed = pair.expose(np.zeros(64, np.uint8))
    region = pair.register(np.ones(64, np.uint8), Access.READ | Access.WRITE)
    for offset, length in [(60, 5), (64, 1), (-1, 4), (0, -1), (0, 65), (2**63, 8), (2**64 - 8, 16)]:
        checked(
            failure(
                lambda o=offset, n=length: pair.endpoint.write((region, o, n), pair.handle, exposed.remote)
            )
        )
    assert not exposed.content().any()


def test_a_local_region_that_is_closed(pair):
    exposed = pair.expose(np.zeros(64, np.uint8))
    region = pair.domain.register(np.ones(64, np.uint8), Access.WRITE)
    region.close()
    error = failure(lambda: pair.endpoint.write((region, 0, 64), pair.handle, exposed.remote))
    assert isinstance(error, pyfab.ClosedError)
    assert not exposed.content().any()


# --- after close


def closed_objects():
    domain = pyfab.Domain("shm")
    endpoint = domain.endpoint()
    peer = endpoint.av.insert(endpoint.address)
    region = domain.register(np.zeros(8), Access.ALL)
    counter, queue, av = domain.counter(), domain.completion_queue(), domain.address_vector()
    remote = region.remote
    for thing in (region, endpoint, counter, queue, av, domain):
        thing.close()
        thing.close()  # harmless
    return domain, endpoint, peer, region, remote, counter, queue, av


def test_every_method_after_close():
    domain, endpoint, peer, region, remote, counter, queue, av = closed_objects()
    data, none = np.zeros(8), np.zeros(0, np.int64)
    calls = {
        "register": lambda: domain.register(data, Access.REMOTE),
        "alloc": lambda: domain.alloc(8),
        "endpoint": lambda: domain.endpoint(),
        "counter": lambda: domain.counter(),
        "completion_queue": lambda: domain.completion_queue(),
        "address_vector": lambda: domain.address_vector(),
        "address": lambda: endpoint.address,
        "write": lambda: endpoint.write(data, peer, remote),
        "read": lambda: endpoint.read(data, peer, remote),
        "inject": lambda: endpoint.inject(data, peer, remote),
        "write_many": lambda: endpoint.write_many(peer, remote, data, none, none, none),
        "read_many": lambda: endpoint.read_many(peer, remote, data, none, none, none),
        "atomic": lambda: endpoint.atomic(AtomicOp.SUM, data, peer, remote),
        "fetch_atomic": lambda: endpoint.fetch_atomic(AtomicOp.SUM, data, data.copy(), peer, remote),
        "compare_atomic": lambda: endpoint.compare_atomic(
            AtomicOp.CSWAP, data, data, data.copy(), peer, remote
        ),
        "flush": lambda: endpoint.flush(timeout=1),
        "context": lambda: endpoint.context(0),
        "remote": lambda: region.remote,
        "bind": lambda: region.bind(counter, RMAEvent.REMOTE_WRITE),
        "enable": lambda: region.enable(),
        "counter wait": lambda: counter.wait(1, 0),
        "counter add": lambda: counter.add(1),
        "counter set": lambda: counter.set(1),
        "queue read": lambda: queue.read(max=1),
        "queue wait": lambda: queue.wait(0),
        "queue fileno": lambda: queue.fileno(),
        "av insert": lambda: av.insert(b"x"),
        "av remove": lambda: av.remove(0),
        "av lookup": lambda: av.lookup(0),
    }
    survived = []
    for name, call in calls.items():
        try:
            call()
        except pyfab.ClosedError:
            continue
        except Exception as error:
            survived.append(f"{name}: {error!r}")
        else:
            survived.append(f"{name}: no error")
    assert survived == []
    assert all("closed" in repr(thing) for thing in (domain, endpoint, region))


def test_operations_outlive_their_endpoint():
    with pyfab.Domain("shm") as domain:
        endpoint = domain.endpoint()
        memory = np.zeros(8)
        region = domain.register(memory, Access.REMOTE)
        operation = endpoint.write(np.ones(8), endpoint.av.insert(endpoint.address), region.remote)
        operation.result(TIMEOUT)
        endpoint.close()
        assert operation.result(0).nbytes == 64
        assert operation.done()


# --- addresses, blobs and specs


def mutations(blob: bytes, count: int):
    generator = np.random.default_rng(5)
    for _ in range(count):
        data = bytearray(blob)
        for _ in range(generator.integers(1, 4)):
            kind = generator.integers(5)
            place = int(generator.integers(len(data))) if data else 0
            if kind == 0 and data:
                data[place] ^= 1 << int(generator.integers(8))
            elif kind == 1 and data:
                data[place] = int(generator.integers(256))
            elif kind == 2:
                del data[place:]
            elif kind == 3:
                data[place:place] = generator.bytes(int(generator.integers(1, 9)))
            else:
                del data[place : place + int(generator.integers(1, 9))]
        if bytes(data) != blob:
            yield bytes(data)


@pytest.mark.req("LNX-17")
def test_mutated_addresses_are_refused(pair):
    """Nothing that is not an address gets a handle."""
    av, good = pair.endpoint.av, pair.peer.address
    before = len(av)
    for data in mutations(good, 10_000):
        with pytest.raises((pyfab.InsertError, pyfab.InvalidArgumentError)):
            av.insert(data)
    assert len(av) == before
    handle = av.insert(good)
    av.remove(handle)


@pytest.mark.parametrize("blob", [b"", b"\0", b"\0" * 1000, b"\xff" * 64, b"127.0.0.1:80"], ids=len)
def test_odd_addresses_are_refused(pair, blob):
    with pytest.raises((pyfab.InsertError, pyfab.InvalidArgumentError)):
        pair.endpoint.av.insert(blob)


@pytest.mark.parametrize("address", [None, 5, "text", np.zeros(4)], ids=repr)
def test_an_address_is_bytes(pair, address):
    with pytest.raises((TypeError, ValueError, pyfab.InsertError)):
        pair.endpoint.av.insert(address)


@pytest.mark.slow
def test_mutated_remote_regions_are_refused(pair):
    exposed = pair.expose(np.zeros((8, 3), np.float32))
    blob = exposed.remote.to_bytes()
    assert pyfab.RemoteRegion.from_bytes(blob).to_bytes() == blob
    for data in mutations(blob, 10_000):
        with pytest.raises((ValueError, TypeError)):
            pyfab.RemoteRegion.from_bytes(data)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "nothing",
        "shm+",
        "+shm",
        "shm++tcp",
        "shm tcp",
        "shm+nothing",
        "tcp:nodevice0",
        "shm:lo:lo",
        "shm,tcp",
        "lnx",
        "shm+shm",
    ],
)
def test_unknown_specs(spec):
    with pytest.raises((pyfab.FabricError, ValueError)) as caught:
        pyfab.Domain(spec)
    if spec not in ("", "+shm", "shm+"):
        assert any(part in str(caught.value) for part in spec.replace("+", " ").replace(":", " ").split())


@pytest.mark.parametrize("spec", [5, b"shm", ["shm"], ...], ids=repr)
def test_specs_of_the_wrong_type(spec):
    with pytest.raises((TypeError, ValueError)):
        pyfab.Domain(spec)


@pytest.mark.parametrize(
    "settings",
    [
        {"shm_copy": "magic"},
        {"shm_copi": "cma"},
        {"no_such_setting": 1},
        {"progress": "sometimes"},
        {"peer_deadline": -1},
        {"peer_deadline": "soon"},
        {"tcp_port": 70_000},
        {"tcp_listen": "not an address"},
        {"mr_mode": 1 << 40},
    ],
    ids=lambda settings: "{}={}".format(*next(iter(settings.items()))),
)
def test_unknown_settings(settings):
    """They are named in the error."""
    with pytest.raises((pyfab.FabricError, TypeError, ValueError), match=next(iter(settings))):
        pyfab.Domain("shm+tcp", **settings).endpoint()


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pyfab.Domain("tcp", tcp_listen=f"127.0.0.1:{port}") as domain,
            pytest.raises(pyfab.FabricError) as caught,
        ):
            domain.endpoint()
    assert str(port) in str(caught.value)
    assert "in use" in str(caught.value)
    assert caught.value.errno == 98


@pytest.mark.parametrize(
    "arguments, error",
    [
        ((-1,), ValueError),
        (((3, -1),), ValueError),
        ((2**62,), (MemoryError, pyfab.FabricError, ValueError)),
        (("x",), TypeError),
        ((4, "no type"), TypeError),
        ((4, object), (TypeError, ValueError)),
    ],
    ids=repr,
)
def test_bad_allocations(pair, arguments, error):
    with pytest.raises(error):
        pair.domain.alloc(*arguments)


@pytest.mark.parametrize("contexts", [0, -1, 65, 10**9, "two"])
def test_bad_numbers_of_contexts(pair, contexts):
    with pytest.raises((pyfab.FabricError, TypeError, ValueError, OverflowError)):
        pair.domain.endpoint(contexts=contexts)


def test_an_unknown_context(pair):
    with pytest.raises((IndexError, ValueError)):
        pair.endpoint.context(1)
