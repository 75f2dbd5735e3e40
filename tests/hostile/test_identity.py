"""Nobody takes the place of an endpoint: who says so must prove it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyfab
import pytest
from pyfab import Access

TIMEOUT = 10
KEY = b"of the job"


class Impostor:
    """impostor.py, under way."""

    def __init__(self, attack: str, *arguments: str) -> None:
        program = str(Path(__file__).with_name("impostor.py"))
        self._process = subprocess.Popen(
            [sys.executable, program, attack, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                break
            self.said.append(line.strip())
        else:
            raise AssertionError(f"the impostor ended: {self.said}")

    def end(self) -> list[str]:
        """What it said after it was ready."""
        return self._process.communicate(timeout=TIMEOUT)[0].splitlines()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def impostor() -> Iterator[Callable[..., Impostor]]:
    started: list[Impostor] = []

    def begin(attack: str, *arguments: str) -> Impostor:
        started.append(Impostor(attack, *arguments))
        return started[-1]

    yield begin
    for one in started:
        one.kill()


class Endpoint:
    """An endpoint in a domain of its own, with a region."""

    def __init__(self, **options: object) -> None:
        self.domain = pyfab.Domain("tcp:lo", **options)
        self.endpoint = self.domain.endpoint()
        self.memory = np.zeros(8, np.uint8)
        self.region = self.domain.register(self.memory, Access.REMOTE)
        self.address = self.endpoint.address.hex()

    def close(self) -> None:
        self.endpoint.close()
        self.region.close()
        self.domain.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Endpoint]]:
    opened: list[Endpoint] = []

    def begin(**options: object) -> Endpoint:
        opened.append(Endpoint(**options))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


Start = Callable[..., Endpoint]
Attack = Callable[..., Impostor]


def put(sender: Endpoint, to: int, receiver: Endpoint, value: int) -> None:
    sender.endpoint.write(np.full(8, value, np.uint8), to, receiver.region.remote).result(TIMEOUT)
    assert (receiver.memory == value).all()


@pytest.mark.parametrize("spoken", [False, True], ids=["before they spoke", "after they spoke"])
def test_nobody_enters_under_the_id_of_another(start: Start, impostor: Attack, spoken: bool) -> None:
    a, b = start(), start()
    to_a, to_b = b.endpoint.av.insert(a.endpoint.address), a.endpoint.av.insert(b.endpoint.address)
    if spoken:
        put(a, to_b, b, 1)
        put(b, to_a, a, 2)
    from_a, from_anybody = np.zeros(8, np.uint8), np.zeros(8, np.uint8)
    named = b.endpoint.recv(from_a, to_a)
    attack = impostor("claim", b.address, a.address)
    assert attack.said == [
        "with its public key refused",
        "with no key for an id of a key refused",
        "with another number refused",
        "as an address in",  # as any stranger may be in where there is no key
    ]
    forged = b.endpoint.recv(from_anybody)
    completion = forged.result(TIMEOUT)
    assert bytes(from_anybody) == b"forged!!"
    assert completion.source == pyfab.ADDR_NOTAVAIL
    assert not named.done()
    put(b, to_a, a, 3)
    got = np.zeros(8, np.uint8)
    b.endpoint.read(got, to_a, a.region.remote).result(TIMEOUT)
    assert (got == 3).all()
    put(a, to_b, b, 4)
    a.endpoint.send(np.full(8, 5, np.uint8), to_b).result(TIMEOUT)
    assert named.result(TIMEOUT).source == to_a
    assert (from_a == 5).all()
    assert attack.end() == []  # nothing went to it


def test_who_listens_where_a_peer_was_gets_neither_puts_nor_proofs(start: Start, impostor: Attack) -> None:
    a, b = start(auth_key=KEY), start(auth_key=KEY)
    to_a = b.endpoint.av.insert(a.endpoint.address)
    remote = a.region.remote
    a.close()
    attack = impostor("take over", a.address)
    for _ in range(4):
        error = b.endpoint.write(np.ones(8, np.uint8), to_a, remote).exception(TIMEOUT)
        assert isinstance(error, pyfab.FabricError), error
    heard = attack.end()
    assert len(heard) >= 4
    assert set(heard) == {"heard 1 0"}  # a hello, and then nothing


def test_what_a_peer_says_gains_nothing_when_it_is_said_back_to_it(start: Start, impostor: Attack) -> None:
    a, b = start(auth_key=KEY), start(auth_key=KEY)
    to_a = b.endpoint.av.insert(a.endpoint.address)
    remote = a.region.remote
    a.close()
    attack = impostor("reflect", a.address, b.address)
    for _ in range(6):
        error = b.endpoint.write(np.ones(8, np.uint8), to_a, remote).exception(TIMEOUT)
        assert isinstance(error, pyfab.FabricError), error
    heard = attack.end()
    assert len(heard) >= 6
    # To its own challenge (2) it proves nothing (0) as the caller. As the called side it lets nobody in: it refuses (5), or
    # hangs up (0).
    assert {line.rpartition(" ")[0] for line in heard} == {"mirrored 2 0"}
    assert {line.rpartition(" ")[2] for line in heard} <= {"0", "5"}


def test_notices_of_strangers_are_not_told(start: Start, impostor: Attack) -> None:
    victim = start()
    attack = impostor("notices", victim.address, str(victim.region.remote.key))
    assert attack.said == ["notice cut"] * 3
    assert victim.endpoint.cq.read() in ([], None)


@pytest.mark.req("MR-87")
def test_nobody_uses_the_grant_of_another(start: Start, impostor: Attack) -> None:
    """Neither under the id of that peer, which is not proven, nor under an id of its own."""
    a, b, c = start(), start(), start()
    grant = b.region.grant([a.endpoint.address])
    attack = impostor("use grant", b.address, a.address, str(grant.remote.key))
    failed = 17  # the frame that tells of a refusal
    assert attack.said == [f"put {failed}", f"put with data {failed}", f"get {failed}"]
    assert b.endpoint.cq.read() in ([], None)
    to_b = c.endpoint.av.insert(b.endpoint.address)
    refused = c.endpoint.write(np.ones(8, np.uint8), to_b, grant.remote)
    assert isinstance(refused.exception(TIMEOUT), pyfab.KeyRejectedError)
    assert not b.memory.any()
    to_b = a.endpoint.av.insert(b.endpoint.address)
    a.endpoint.write(np.ones(8, np.uint8), to_b, grant.remote).result(TIMEOUT)
    assert b.memory.all()


@pytest.mark.parametrize("link", ["tcp:lo", "shm"])
def test_a_key_with_zero_bytes_behind_it_is_another_key(link: str) -> None:
    with (
        pyfab.Domain(link, auth_key=b"red") as domain,
        domain.endpoint() as endpoint,
        pyfab.Domain(link, auth_key=b"red\0") as stranger,
        stranger.endpoint() as outside,
        domain.register(np.zeros(8, np.uint8), Access.REMOTE) as region,
    ):
        there = outside.av.insert(endpoint.address)
        with pytest.raises(pyfab.KeyRejectedError):
            outside.write(np.ones(8, np.uint8), there, region.remote).result(TIMEOUT)
