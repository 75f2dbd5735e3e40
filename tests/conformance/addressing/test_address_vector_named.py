"""Address vectors that processes share by name."""

from __future__ import annotations

import os
import stat
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab import Access, AVType, _core
from pyfab.testing import Peer, Target
from support import TIMEOUT


@pytest.fixture
def name():
    return f"test {uuid.uuid4()}"


@pytest.fixture(scope="module")
def domain():
    with pyfab.Domain("shm+tcp") as domain:
        yield domain


@pytest.fixture(scope="module")
def addresses(domain):
    endpoints = [domain.endpoint() for _ in range(8)]
    yield [endpoint.address for endpoint in endpoints]
    for endpoint in endpoints:
        endpoint.close()


@pytest.fixture(params=["thread", "process"])
def peer(request):
    with Peer("shm+tcp", where=request.param) as peer:
        yield peer


def path_of(domain: pyfab.Domain, name: str) -> Path:
    return Path(_core.named_vector_path(f"{domain.info.provider} {domain.info.domain}", name))


# What a peer does; it keeps what it opened on its target.
def open_there(target: Target, name: str, **options: object) -> tuple[int, int]:
    target.shared_av = target.domain.address_vector(name=name, **options)  # type: ignore[attr-defined]
    return len(target.shared_av), target.shared_av.map_addr  # type: ignore[attr-defined]


def insert_there(target: Target, addresses: list[bytes]) -> list[int]:
    return target.shared_av.insert(addresses)  # type: ignore[attr-defined]


def look_there(target: Target, handle: int) -> bytes:
    return target.shared_av.lookup(handle)  # type: ignore[attr-defined]


def put_there(target: Target, handle: int, remote: pyfab.RemoteRegion) -> None:
    with target.domain.endpoint(target.shared_av) as endpoint:  # type: ignore[attr-defined]
        endpoint.write(np.full(4, 5.0), handle, remote).result(TIMEOUT)


def close_there(target: Target) -> None:
    target.shared_av.close()  # type: ignore[attr-defined]


@pytest.mark.req("AV-63", "AV-66", "AV-69")
def test_two_processes_have_one_vector(domain, addresses, peer, name):
    with domain.address_vector(name=name, count=4) as av:
        assert av.insert(addresses[:3]) == [0, 1, 2]
        assert peer.run(open_there, name)[0] == 3
        assert [peer.run(look_there, handle) for handle in range(3)] == addresses[:3]
        assert peer.run(insert_there, addresses[3:4]) == [3]
        assert av.lookup(3) == addresses[3]
        av.insert([addresses[i % 8] for i in range(1000)])
        assert peer.run(look_there, 999 + 4) == addresses[999 % 8]
        av.remove([1, 500])
        assert peer.run(insert_there, addresses[:3]) == [1, 500, 1004]
        peer.run(close_there)
        assert len(av) == 1005


@pytest.mark.req("AV-67")
def test_a_handle_means_the_same_everywhere(domain, peer, name):
    memory = np.zeros(4)
    with (
        domain.address_vector(name=name) as av,
        domain.endpoint() as endpoint,
        domain.register(memory, Access.REMOTE) as region,
    ):
        av.insert(endpoint.address)
        handle = av.insert(endpoint.address)
        peer.run(open_there, name)
        peer.run(put_there, handle, region.remote)
        assert (memory == 5).all()
        peer.run(close_there)


@pytest.mark.req("AV-63")
def test_names_belong_to_a_domain(addresses, domain, name):
    with (
        pyfab.Domain("tcp") as other,
        domain.address_vector(name=name) as mine,
        other.address_vector(name=name) as theirs,
        domain.address_vector(name=name + "2") as second,
    ):
        mine.insert(addresses[:2])
        assert len(theirs) == len(second) == 0
        with domain.address_vector(name=name) as again:
            assert list(again) == list(mine)
        assert {path_of(owner, name).parent for owner in (domain, other)} == {Path("/dev/shm")}, (
            "of this node"
        )


@pytest.mark.req("AV-64", "AV-65")
def test_reading_only(domain, addresses, name):
    with pytest.raises(pyfab.FabricError) as caught:
        domain.address_vector(name=name, read_only=True)
    assert caught.value.name == "FI_ENOENT"
    with domain.address_vector(name=name) as av:
        av.insert(addresses[:2])
        with domain.address_vector(name=name, read_only=True) as reader:
            assert reader.read_only and list(reader) == list(av)
            for call in (lambda: reader.insert(addresses[0]), lambda: reader.remove(0)):
                with pytest.raises(pyfab.AccessDeniedError):
                    call()
            av.insert(addresses)
            assert reader.lookup(9) == addresses[7]


@pytest.mark.req("AV-68")
def test_the_map_address(domain, peer, name):
    with domain.address_vector(name=name) as av:
        assert av.map_addr != 0
        assert peer.run(open_there, name)[1] == av.map_addr
        peer.run(close_there)
    with domain.address_vector(map_addr=123) as av:
        assert av.map_addr == 123


@pytest.mark.req("AV-71")
def test_the_file_is_private_and_goes_with_the_last(domain, peer, name):
    path = path_of(domain, name)
    with domain.address_vector(name=name):
        status = path.stat()
        assert stat.S_IMODE(status.st_mode) == 0o600 and status.st_uid == os.geteuid()
        peer.run(open_there, name)
    assert path.exists()
    peer.run(close_there)
    assert not path.exists()


def write_own(av: pyfab.AddressVector, address: bytes, turns: int) -> list[int]:
    """Inserts the same address again and again and removes every third of its handles; those that are left."""
    kept: list[int] = []
    for turn in range(turns):
        kept.append(av.insert(address))
        if turn % 3 == 2:
            av.remove(kept.pop(turn % len(kept)))
    return kept


def write_there(target: Target, address: bytes, turns: int) -> list[int]:
    return write_own(target.shared_av, address, turns)  # type: ignore[attr-defined]


@litmus
@pytest.mark.req("AV-70")
def test_writers_of_many_processes_and_threads(domain, addresses, name):
    """Nobody gets the handle of another, and behind each is what its writer put there."""
    turns = rounds(3000)
    with domain.address_vector(name=name) as av, ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        peers = [stack.enter_context(Peer("shm+tcp", where="process")) for _ in range(3)]
        for peer in peers:
            peer.run(open_there, name)
        for peer, address in zip(peers, addresses, strict=False):
            peer.start(write_there, address, turns)
        here = [pool.submit(write_own, av, address, turns) for address in addresses[3:5]]
        owned = [peer.finish() for peer in peers] + [future.result(TIMEOUT) for future in here]
        expected = {
            handle: address for handles, address in zip(owned, addresses, strict=False) for handle in handles
        }
        assert len(expected) == sum(len(handles) for handles in owned)
        assert dict(av) == expected
        assert len(av) == len(expected)


def insert_for_ever(target: Target, addresses: list[bytes]) -> None:
    while True:
        target.shared_av.remove(target.shared_av.insert(addresses)[0])  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.req("AV-70")
def test_a_writer_is_killed(domain, addresses, name):
    """While another goes on. A few times here; the C++ tests do it by the hundred."""
    with domain.address_vector(name=name) as av, Peer("shm+tcp", where="process") as other:
        other.run(open_there, name)
        theirs: set[int] = set()
        for _ in range(4):
            before = len(av)
            with Peer("shm+tcp", where="process") as victim:
                victim.run(open_there, name)
                victim.start(insert_for_ever, addresses[1:])
                other.start(write_there, addresses[0], 500)
                deadline = time.monotonic() + TIMEOUT
                while len(av) < before + 500:
                    assert time.monotonic() < deadline
                victim.kill()
            handles = other.finish()
            assert theirs.isdisjoint(handles)
            theirs.update(handles)
            assert {handle for handle, address in av if address == addresses[0]} == theirs
            lowest = next(handle for handle in range(len(av) + 1) if handle not in av)
            assert av.insert(addresses[1]) == lowest
            assert len(list(av)) == len(av)
            assert {address for _, address in av} <= set(addresses)


@pytest.mark.slow
@pytest.mark.req("AV-71")
def test_what_a_dead_process_left_is_not_found(domain, addresses, name):
    with Peer("shm+tcp", where="process") as victim:
        victim.run(open_there, name)
        victim.run(insert_there, addresses[:3])
        victim.kill()
    with pytest.raises(pyfab.FabricError):
        domain.address_vector(name=name, read_only=True)
    with domain.address_vector(name=name) as av:
        assert len(av) == 0


@pytest.mark.req("AV-72")
@pytest.mark.parametrize("other", [{"type": AVType.MAP}, {"rx_ctx_bits": 3}, {"user_id": True}], ids=str)
def test_other_options_than_those_it_was_made_with(domain, name, other):
    with (
        domain.address_vector(AVType.TABLE, name=name, rx_ctx_bits=2),
        pytest.raises(pyfab.InvalidArgumentError),
    ):
        domain.address_vector(name=name, **{"type": AVType.TABLE, "rx_ctx_bits": 2, **other})


@pytest.mark.req("AV-72")
def test_another_format_than_it_was_made_with(name):
    with (
        pyfab.Domain("tcp", addr_format="str", tcp_listen="127.0.0.1") as domain,
        pyfab.Domain("tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1") as other,
        domain.address_vector(name=name),
        pytest.raises(pyfab.InvalidArgumentError),
    ):
        other.address_vector(name=name)
