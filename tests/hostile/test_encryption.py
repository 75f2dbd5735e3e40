"""Somebody between two hosts who encrypt what they say learns nothing, changes nothing and repeats nothing."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyfab
import pytest
from pyfab import Access
from relay import Change, Relay
from sealed_caller import BLOCK, TEXT, block, sealing

KEY = "a long and random key of both sides"
HERE = Path(__file__).parent
TIMEOUT = 60


class Called:
    """An endpoint with a region, and what callers say who reach it through a relay or directly."""

    def __init__(self, detour: Path, *, encrypt: bool = True, blocks: int = 2) -> None:
        self._detour = detour
        self.domain = pyfab.Domain("tcp:lo", auth_key=KEY.encode(), **sealing(encrypt))
        self.endpoint = self.domain.endpoint()
        self.memory = np.zeros(blocks * BLOCK, np.uint8)
        self.region = self.domain.register(self.memory, Access.REMOTE)
        self.port = _port_of(self)

    def call(
        self, through: Change | None = None, *, key: str = KEY, encrypt: bool = True, count: int = 1
    ) -> list[str]:
        if through is None:
            return self._call({}, key, encrypt, count)
        with Relay(("127.0.0.1", self.port), through) as relay:
            detour = {
                "LD_PRELOAD": str(self._detour),
                "DETOUR_FROM": str(self.port),
                "DETOUR_TO": str(relay.port),
            }
            return self._call(detour, key, encrypt, count)

    def _call(self, detour: dict[str, str], key: str, encrypt: bool, count: int) -> list[str]:
        done = subprocess.run(
            [
                sys.executable,
                str(HERE / "sealed_caller.py"),
                self.endpoint.address.hex(),
                self.region.remote.to_bytes().hex(),
                key,
                "yes" if encrypt else "no",
                str(count),
            ],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=True,
            env={**os.environ, **detour},
        )
        return done.stdout.splitlines()

    def close(self) -> None:
        self.endpoint.close()
        self.region.close()
        self.domain.close()


def _port_of(called: Called) -> int:
    """The port in the endpoint's address, which stands before the only socket address there (docs/wire.md)."""
    raw = bytes(called.endpoint.address)
    at = raw.index(bytes([127, 0, 0, 1]))
    return int.from_bytes(raw[at - 2 : at], "little")


@pytest.fixture(scope="module")
def detour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for detour.c")
    library = tmp_path_factory.mktemp("detour") / "detour.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, HERE / "detour.c", "-ldl"], check=True)
    return library


@pytest.fixture
def start(detour: Path) -> Iterator[Callable[..., Called]]:
    opened: list[Called] = []

    def begin(**options: bool | int) -> Called:
        opened.append(Called(detour, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


class Recorder:
    """Keeps all that goes by, and may change it."""

    def __init__(self) -> None:
        self.said = {True: b"", False: b""}  # by the caller, and by the called side

    def __call__(self, _: int, from_caller: bool, data: bytes) -> bytes:
        self.said[from_caller] += data
        return data


@pytest.mark.slow
def test_who_records_sees_nothing_of_what_is_put(start: Callable[..., Called]) -> None:
    plain, sealed = Recorder(), Recorder()
    assert start(encrypt=False).call(plain, encrypt=False) == ["ok"]
    assert TEXT in plain.said[True]  # so the recorder would see it
    called = start()
    assert called.call(sealed) == ["ok"]
    assert np.array_equal(called.memory[:BLOCK], block())
    everything = sealed.said[True] + sealed.said[False]
    assert len(sealed.said[True]) > BLOCK
    assert TEXT[:8] not in everything
    assert b"pft1" not in everything  # nor who calls, or under which key
    assert called.endpoint.address[-24:] not in everything


@pytest.mark.slow
@pytest.mark.parametrize("where", [100, 800, 3000, 100_000, 260_000])
def test_a_flipped_byte_ends_the_connection_and_changes_nothing(
    start: Callable[..., Called], where: int
) -> None:
    called = start()
    flipped = []

    class Flipper(Recorder):
        def __call__(self, _: int, from_caller: bool, data: bytes) -> bytes:
            before = len(self.said[True])
            super().__call__(_, from_caller, data)
            at = where - before
            if not from_caller or flipped or not 0 <= at < len(data):
                return data
            flipped.append(where)
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    (outcome,) = called.call(Flipper())
    assert flipped
    assert re.search("FI_ECONNRESET|FI_EHOSTUNREACH|FI_EPROTO|FI_EKEYREJECTED", outcome)
    # What came unchanged before that byte may have been stored. Nothing else was.
    whole = int((called.memory[:BLOCK] != 0).sum())
    assert np.array_equal(called.memory[:whole], block()[:whole])
    assert whole <= max(0, where - 1000)
    assert not called.memory[BLOCK:].any()
    assert called.call() == ["ok"]  # and others are served as before


def test_a_recording_gains_nothing_when_it_is_played_again(start: Callable[..., Called]) -> None:
    called = start()
    recorder = Recorder()
    assert called.call(recorder) == ["ok"]
    called.memory[:] = 0
    with socket.create_connection(("127.0.0.1", called.port), 20) as again:
        again.sendall(recorder.said[True])
        answer = b""
        try:
            while data := again.recv(1 << 16):
                answer += data
        except ConnectionResetError:
            pass
    assert not called.memory.any()
    assert answer != recorder.said[False]


@pytest.mark.slow
def test_nobody_brings_two_sides_that_encrypt_to_speak_plainly(start: Callable[..., Called]) -> None:
    """What a plain side would say is put in the place of what an encrypting one says, both ways."""
    plain = Recorder()
    assert start(encrypt=False).call(plain, encrypt=False) == ["ok"]
    called = start()

    def as_caller(_: int, from_caller: bool, data: bytes) -> bytes:
        return plain.said[True][:400] if from_caller else data

    def as_called(_: int, from_caller: bool, data: bytes) -> bytes:
        return data if from_caller else plain.said[False]

    for change in (as_caller, as_called):
        (outcome,) = called.call(change)
        assert re.search("FI_EPROTO", outcome), outcome
    assert not called.memory.any()


@pytest.mark.slow
@pytest.mark.parametrize("called_encrypts", [True, False])
def test_one_side_that_does_not_encrypt_is_refused_by_name(
    start: Callable[..., Called], called_encrypts: bool
) -> None:
    called = start(encrypt=called_encrypts)
    (outcome,) = called.call(encrypt=not called_encrypts)
    assert "encrypt" in outcome
    assert not called.memory.any()
    assert called.call(encrypt=called_encrypts) == ["ok"]


def test_a_wrong_key_is_refused(start: Callable[..., Called]) -> None:
    called = start()
    (outcome,) = called.call(key="another key")
    assert "FI_EKEYREJECTED" in outcome
    assert not called.memory.any()
    assert called.domain.stats()["security"]["refused_keys"] == 1  # the text of the error calls nobody
