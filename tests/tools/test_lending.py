"""What servers lend: how much at once, for how long, what comes back from it, and what is left when something fails."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyfab
import pytest
from pyfab.tools import file_client, served
from pyfab.tools import serve as serving
from pyfab.tools.fetch import ArrayClient
from pyfab.tools.file_client import FileClient, Part
from pyfab.tools.lending import FILES_OF_LOAN, MOST_AT_ONCE, Lending, Room
from pyfab.tools.serve import ArrayServer
from pyfab.tools.served import MOST_NAME, Opened, bounded

Serve = Callable[..., "tuple[subprocess.Popen[str], str]"]
BIG = 32 << 20  # bytes, of which a fetch reads not all at once
NAMES = [f"served/{number}" for number in range(FILES_OF_LOAN)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "served"
    made.mkdir()
    for number in range(len(NAMES)):
        (made / str(number)).write_text(str(number))
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[ArrayServer]:
    with ArrayServer({"served": folder}) as made:
        yield made


@pytest.fixture
def big(folder: Path) -> Path:
    path = folder / "big"
    path.write_bytes(bytes(BIG))
    return path


def lending(shown: Any, most: int = 100) -> tuple[Lending, Room]:
    room = Room(most)
    return Lending(shown, SimpleNamespace(), b"address", room), room  # type: ignore[arg-type]


# --- pyfab fetch


@pytest.mark.parametrize("content", [b"\1" * BIG, b"short"])
def test_a_fetch_has_one_version(server: ArrayServer, big: Path, tmp_path: Path, content: bytes) -> None:
    out = tmp_path / "out.npy"
    out.write_text("former")

    def change(arrived: int, _: int) -> None:
        if arrived < BIG // 2:
            with big.open("r+b") as stream:
                stream.write(content)
                stream.truncate()
            os.utime(big, (0, 0))

    with (
        ArrayClient(server.address) as client,
        pytest.raises(OSError, match="changed while it was read") as caught,
    ):
        client.fetch("served/big", ..., out, change)
    assert caught.value.errno == errno.ESTALE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npy", "served"]
    assert out.read_text() == "former"


@pytest.mark.slow
@pytest.mark.usefixtures("big")
def test_a_fetch_may_be_slow(server: ArrayServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PATIENCE", 0.5)

    def rest(arrived: int, _: int) -> None:
        if arrived <= 4 << 20:
            threading.Event().wait(1)  # longer than the server waits for who has nothing

    with ArrayClient(server.address) as client:
        assert client.fetch("served/big", ..., tmp_path / "out.npy", rest).nbytes == BIG
        assert client.folders() == ["served"]


def test_a_server_is_told_that_its_files_are_still_read(
    client: FileClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_client, "_KEEP", 0.0)
    patience = iter([pyfab.OperationTimeout("not yet"), pyfab.OperationTimeout("not yet"), None])

    def result(_: float) -> None:
        error = next(patience)
        if error is not None:
            raise error

    told: list[str] = []
    ask = client._ask

    def listen(*asked: Any) -> Any:
        told.append(asked[0]["op"])
        return ask(*asked)

    with client.lend(NAMES) as loan:
        monkeypatch.setattr(client, "_ask", listen)
        loan.wait(SimpleNamespace(result=result, done=lambda: False), None)  # type: ignore[arg-type]
    assert told == ["keep"] * 3 + ["return"]


# --- how much at once


@pytest.mark.slow
def test_all_clients_together_have_so_much(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "most_descriptors", lambda: 64)
    with ArrayServer({"served": folder}) as server, FileClient(server.address) as greedy:
        with greedy.lend(NAMES), FileClient(server.address, timeout=2) as other:
            with pytest.raises(TimeoutError, match="has as much open for others as it can"):
                other.read([Part(NAMES[1])])
            assert other.look(NAMES[1])  # what needs nothing is still answered
        with FileClient(server.address, timeout=20) as other, ThreadPoolExecutor(1) as thread:
            with greedy.lend(NAMES):
                waiting = thread.submit(other.read, [Part(NAMES[1])])
            assert waiting.result(20) == [b"1"]


def test_the_command_may_have_many_descriptors(serve: Serve, folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        process, _ = serve(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE) == (hard, hard)


def test_no_descriptor_is_left() -> None:
    def open_none(_: str, __: object) -> Opened:
        raise OSError(errno.EMFILE, "Too many open files")

    of, room = lending(SimpleNamespace(open=open_none), 1)
    assert of.answer({"op": "lend", "names": ["a"]}) == ({"busy": True}, b"")
    assert room.take(1)
    assert of.answer({"op": "lend", "names": ["a"]}) == ({"busy": True}, b"")


def test_names_of_nothing_stay_bounded() -> None:
    asked: list[str] = []

    def note(name: str, *_: object) -> None:
        asked.append(name)

    of, room = lending(SimpleNamespace(look=note, open=note))
    assert "error" in of.answer({"op": "lend", "names": []})[0]
    too_long = "a/" * MOST_NAME
    assert of.answer({"op": "look", "name": too_long}) == ({}, b"")
    (told,) = of.answer({"op": "lend", "names": [too_long]})[0]["lent"]
    assert told["errno"] == errno.ENOENT
    assert not asked
    for _ in range(MOST_AT_ONCE - 1):
        assert "loan" in of.answer({"op": "lend", "names": ["a"]})[0]
    assert "error" in of.answer({"op": "lend", "names": ["a"]})[0]
    of.close()
    assert room.take(100)


def test_what_cannot_be_compared_has_changed_and_is_closed() -> None:
    closed: list[int] = []

    def changed() -> bool:
        raise OSError(errno.EIO, "input/output error")

    things = iter(
        [Opened(None, lambda: closed.append(0), changed=changed), Opened(None, lambda: closed.append(1))]
    )
    of, room = lending(SimpleNamespace(open=lambda *_: next(things)))
    loan = of.answer({"op": "lend", "names": ["a", "b"]})[0]["loan"]
    assert of.answer({"op": "return", "loan": loan}) == ({"changed": [0]}, b"")
    assert sorted(closed) == [0, 1]
    assert room.take(100)


def test_a_list_that_is_too_long_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MOST_LISTING", 1000)
    with pytest.raises(OSError, match="too long to be told") as caught:
        bounded((str(number), {}) for number in itertools.count())
    assert caught.value.errno == errno.EFBIG


# --- what one client shares among its threads and children


def test_a_forked_child_has_all_its_room(client: FileClient) -> None:
    with client._room(MOST_AT_ONCE):  # as other threads of the parent have it
        child = os.fork()
        if not child:
            signal.alarm(20)
            found = client.read([Part(NAMES[1])])
            os._exit(0 if (found, client._free._value) == ([b"1"], MOST_AT_ONCE) else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_no_thread_waits_for_others_without_end(server: ArrayServer) -> None:
    with (
        FileClient(server.address, timeout=2) as client,
        ThreadPoolExecutor(1) as thread,
        client._room(MOST_AT_ONCE),
    ):
        waiting = thread.submit(client.read, [Part(NAMES[1])])
        assert isinstance(waiting.exception(20), TimeoutError)
    assert client._free._value == MOST_AT_ONCE


def test_a_read_is_made_again_when_another_thread_lost_the_connection(
    client: FileClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gets, tries = client._gets, []

    def lose(*arguments: Any) -> Any:
        found = gets(*arguments)
        tries.append(found)
        if len(tries) == 1:
            client._drop()  # as after an answer that has not come in time
        return found

    monkeypatch.setattr(client, "_gets", lose)
    assert client.read([Part(NAMES[1])]) == [b"1"]
    assert len(tries) == 2


def test_clients_of_a_closed_server_find_the_next_one(folder: Path) -> None:
    with ArrayServer({"served": folder}) as first, FileClient(first.address) as client:
        assert client.read([Part(NAMES[1])]) == [b"1"]
        first.close()
        with pytest.raises(ConnectionError, match="nobody answers"):
            client.look("served")
        with ArrayServer({"served": folder}, first.address):
            assert client.read([Part(NAMES[1])]) == [b"1"]
