"""Ranks meet before any fabric exists: over tcp, in a folder, through a communicator; whoever stays away is named."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyfab import _core
from pyfab.core.deadline import Deadline
from pyfab.core.errors import (
    AccessDeniedError,
    FabricError,
    InvalidArgumentError,
    OperationTimeout,
    PeerLostError,
)
from pyfab.meeting import private_files
from pyfab.meeting.channel import Channel
from pyfab.meeting.rendezvous import exchange, meeting
from pyfab.meeting.sealing import derive


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(params=["tcp", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"tcp://127.0.0.1:{free_port()}"
        if request.param == "tcp"
        else f"file://{tmp_path}/a%20folder/meeting"
    )


def meet(place: Any, size: int, ranks: list[int], timeout: float = 20) -> list[Future[list[bytes]]]:
    """Each of `ranks` in a thread; all futures are done."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [pool.submit(exchange, place, rank, size, b"value %d" % rank, timeout) for rank in ranks]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_everyone_gets_every_value_by_rank(place: str, size: int) -> None:
    expected = [b"value %d" % rank for rank in range(size)]
    for met in meet(place, size, list(reversed(range(size)))):
        assert met.result() == expected


def test_a_place_serves_one_meeting_after_another(place: str) -> None:
    def thrice(rank: int) -> list[list[bytes]]:
        return [exchange(place, rank, 3, b"%d in round %d" % (rank, turn), 20) for turn in range(3)]

    with ThreadPoolExecutor(3) as pool:
        for rounds in pool.map(thrice, range(3)):
            assert rounds == [[b"%d in round %d" % (rank, turn) for rank in range(3)] for turn in range(3)]


def test_values_of_any_bytes(place: str) -> None:
    values = [b"", bytes(range(256)) * 1000]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda rank: exchange(place, rank, 2, values[rank], 20), range(2))) == [
            values,
            values,
        ]


@pytest.mark.slow
def test_missing_ranks_are_named(place: str) -> None:
    for met in meet(place, 4, [0, 1, 3], timeout=3):  # in which a busy machine starts three threads
        with pytest.raises(
            OperationTimeout, match=r"rank 2 of 4 did not arrive at .* within 3 s; arrived: 0, 1, 3"
        ):
            met.result()


@pytest.mark.slow
def test_missing_rank_zero_is_named() -> None:
    (met,) = meet(f"tcp://127.0.0.1:{free_port()}", 2, [1], timeout=1)
    with pytest.raises(
        OperationTimeout, match=r"rank 0 of 2 did not answer .* within 1 s: Connection refused"
    ):
        met.result()


def test_a_call_without_time_is_told_what_is_there() -> None:
    with pytest.raises(ConnectionRefusedError):
        Channel.connect("127.0.0.1", free_port(), "meeting", None, Deadline(0))


@pytest.mark.slow
def test_two_processes_with_one_rank_are_told(place: str) -> None:
    errors = [met.exception() for met in meet(place, 3, [0, 1, 1], timeout=1)]
    assert any("rank 1" in str(error) for error in errors if isinstance(error, InvalidArgumentError))


@pytest.mark.slow
def test_ranks_that_count_differently_are_told(place: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        met = [pool.submit(exchange, place, rank, size, b"", 1) for rank, size in ((0, 3), (1, 2))]
    assert any("3" in str(m.exception()) for m in met if isinstance(m.exception(), InvalidArgumentError))


def test_the_folder_is_removed_by_the_last(tmp_path: Path) -> None:
    meet(f"file://{tmp_path}/meeting", 3, [0, 1, 2])
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_dead_job_are_told(tmp_path: Path) -> None:
    meet(f"file://{tmp_path}/meeting", 2, [1], timeout=0)
    (met,) = meet(f"file://{tmp_path}/meeting", 2, [1], timeout=5)
    with pytest.raises(InvalidArgumentError, match="remove the folder"):
        met.result()


@pytest.mark.parametrize(
    "place",
    ["", "tcp://", "tcp://host", "tcp://host:port", "file:relative", "file://host/x", "http://x:1", 7],
)
def test_what_is_no_meeting_place(place: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="rendezvous="):
        exchange(place, 0, 2, b"", 1)


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidArgumentError, match=r"cannot listen on .*PYFAB_RENDEZVOUS"):
            exchange(place, 0, 2, b"", 1)


def test_a_communicator_is_used_as_it_is() -> None:
    class Communicator:
        def Get_rank(self) -> int:
            return 1

        def Get_size(self) -> int:
            return 2

        def allgather(self, value: bytes) -> list[bytes]:
            return [b"other", value]

    assert exchange(Communicator(), 1, 2, b"mine", 1) == [b"other", b"mine"]
    with pytest.raises(InvalidArgumentError, match="rank 0 of 2"):
        exchange(Communicator(), 0, 2, b"mine", 1)


def test_a_wrong_token_is_refused_and_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"tcp://127.0.0.1:{free_port()}"
    monkeypatch.setenv("PYFAB_TOKEN", "right")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(exchange, place, 0, 2, b"0", 20)
        wait_until_listening(place)
        monkeypatch.setenv("PYFAB_TOKEN", "wrong")
        with pytest.raises(AccessDeniedError, match="PYFAB_TOKEN"):
            exchange(place, 1, 2, b"1", 20)
        monkeypatch.setenv("PYFAB_TOKEN", "right")
        assert exchange(place, 1, 2, b"1", 20) == first.result() == [b"0", b"1"]


def test_a_place_is_kept_between_two_exchanges_of_a_meeting(place: str) -> None:
    """Else another user may take the port, or make the folder, while the ranks do something else."""
    folder = Path(place.removeprefix("file://").replace("%20", " "))

    def take() -> None:
        if place.startswith("tcp"):
            socket.create_server(("127.0.0.1", int(place.rpartition(":")[2]))).close()
        else:
            folder.mkdir()

    def twice(rank: int) -> list[list[bytes]]:
        with meeting(place, rank, 2, 20) as exchange_next:
            first = exchange_next(b"%d" % rank)
            if rank == 0:
                with pytest.raises(OSError, match=r"in use|exists"):
                    take()
            return [first, exchange_next(b"again %d" % rank)]

    with ThreadPoolExecutor(2) as pool:
        for met in pool.map(twice, range(2)):
            assert met == [[b"0", b"1"], [b"again 0", b"again 1"]]


def test_another_version_of_the_protocol_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        place = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as connection:
                        connection.sendall(frame({"nonce": "0" * 64}, magic=b"pyf2"))

        answering = pool.submit(answer)
        with pytest.raises(OperationTimeout, match=r"speaks version 2 of pyfab's .*, this side version 3"):
            exchange(place, 1, 2, b"", 0.5)
        listener.shutdown(socket.SHUT_RDWR)
        answering.result()


def test_who_waits_for_a_rank_zero_that_has_left_is_told() -> None:
    place = f"tcp://127.0.0.1:{free_port()}"

    def leave() -> None:
        with meeting(place, 0, 2, 20) as exchange_next:
            exchange_next(b"")

    with ThreadPoolExecutor(1) as pool, meeting(place, 1, 2, 20) as exchange_next:
        left = pool.submit(leave)
        exchange_next(b"")
        left.result()
        with pytest.raises(PeerLostError, match=r"rank 0 of 2 ended the meeting at tcp://"):
            exchange_next(b"")


def test_a_listener_that_hands_calls_on_to_another_job_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both jobs have the same token, and somebody else listens where one of them should."""
    monkeypatch.setenv("PYFAB_TOKEN", "of all jobs")
    place, port = f"tcp://127.0.0.1:{free_port()}", free_port()
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", port)) as listener:
        first = pool.submit(exchange, place, 0, 2, b"0", 20)
        wait_until_listening(place)

        def hand_on() -> None:
            caller, _ = listener.accept()
            with caller, socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2]))) as called:
                called.settimeout(20)
                caller.sendall(called.recv(1 << 16))
                called.sendall(caller.recv(1 << 16))
                caller.sendall(called.recv(1 << 16))

        handing = threading.Thread(target=hand_on)
        handing.start()
        with pytest.raises(
            AccessDeniedError, match=rf"for meeting at 127.0.0.1:{port}, and .* is 'meeting at"
        ):
            exchange(f"tcp://127.0.0.1:{port}", 1, 2, b"1", 20)
        handing.join()
        with pytest.raises(AccessDeniedError, match=r"for meeting one at .* is 'meeting at"):
            exchange(f"{place}/one", 1, 2, b"1", 20)
        assert exchange(place, 1, 2, b"1", 20) == first.result() == [b"0", b"1"]


def test_a_proof_is_no_quick_test_of_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens gets the caller's proof, and can try words on it; each of them has to be stretched."""
    monkeypatch.setenv("PYFAB_TOKEN", "hunter2")
    heard: list[dict[str, Any]] = []
    nonce = "5" * 64
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(frame({"nonce": nonce, "token": ""}))
                heard.append(json.loads(connection.recv(1 << 16)[12:]))

        hearing = threading.Thread(target=listen)
        hearing.start()
        with pytest.raises(OperationTimeout):
            exchange(f"tcp://127.0.0.1:{listener.getsockname()[1]}", 1, 2, b"", 0.5)
        hearing.join()
    (said,) = heard
    parts = b"proof client", said["to"].encode(), nonce.encode(), said["nonce"].encode()
    assert said["proof"] == derive(_core.stretched_key(b"hunter2"), *parts).hex()
    assert said["proof"] != derive(b"hunter2", *parts).hex()


def test_what_a_folder_holds_beside_a_meeting_stays_there(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir(mode=0o700)
    (folder / "table.csv").write_text("1")
    with pytest.raises(
        InvalidArgumentError, match=r"holds what is not of a meeting: 'table.csv'; name an empty"
    ):
        exchange(f"file://{folder}", 0, 1, b"", 20)
    assert (folder / "table.csv").read_text() == "1"
    shutil.rmtree(folder)
    with meeting(f"file://{folder}", 0, 1, 20) as exchange_next:
        exchange_next(b"")
        (folder / "notes").write_text("2")  # while they meet
    assert (folder / "notes").read_text() == "2"
    with pytest.raises(InvalidArgumentError, match="'notes'"):
        exchange(f"file://{folder}", 0, 1, b"", 20)


def wait_until_listening(place: str) -> None:
    host, _, port = place.removeprefix("tcp://").partition(":")
    done = threading.Event()
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except ConnectionRefusedError:
            done.wait(0.01)


def frame(
    header: Any, body: bytes = b"", magic: bytes = b"pyf3", sizes: tuple[int, int] | None = None
) -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<4sII", magic, *(sizes or (len(head), len(body)))) + head + body


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        frame({}, magic=b"nope"),
        frame({}, sizes=(2**31, 0)),
        frame({}, sizes=(2, 2**31)),
        frame(b"not json"),
        frame(b"[" * 100_000),
        frame([1, 2]),
        frame({"nonce": 5, "proof": None}),
        frame({"nonce": "0" * 64, "proof": "forged"}),
        frame({"nonce": "0" * 64, "to": "meeting", "proof": "forged"}),
        frame({"nonce": "0" * 64, "to": ["x"] * 300, "proof": "forged"}),
    ],
)
def test_strangers_harm_nobody(sent: bytes) -> None:
    place = f"tcp://127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(exchange, place, 0, 2, b"0", 20)
        wait_until_listening(place)
        host, _, port = place.removeprefix("tcp://").partition(":")
        with socket.create_connection((host, int(port)), 5) as stranger:
            stranger.sendall(sent)
            with contextlib.suppress(OSError):  # it may have hung up already
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass
        assert exchange(place, 1, 2, b"1", 20) == first.result() == [b"0", b"1"]


@pytest.mark.parametrize(
    "announced", [{"rank": 7}, {"rank": -1}, {"rank": "1"}, {"rank": [1]}, {"rank": 1, "size": 9}, {}]
)
def test_impossible_ranks_are_refused(announced: dict[str, Any]) -> None:
    from pyfab.core.deadline import Deadline
    from pyfab.meeting.channel import Channel

    port = free_port()
    place = f"tcp://127.0.0.1:{port}"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(exchange, place, 0, 2, b"0", 20)
        wait_until_listening(place)
        stranger = Channel.connect("127.0.0.1", port, "meeting", None, Deadline(5))
        stranger.send({"size": 2, **announced}, b"?", deadline=Deadline(5))
        assert "refused" in stranger.receive(Deadline(5))[0]
        stranger.close()
        assert exchange(place, 1, 2, b"1", 20) == first.result() == [b"0", b"1"]


def test_a_server_that_is_none_is_told() -> None:
    def lie(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
        connection, _ = listener.accept()
        with connection:
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        place = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        lying = pool.submit(lie, listener, lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"))
        with pytest.raises(OperationTimeout, match="rank 0 of 2"):
            exchange(place, 1, 2, b"", 0.5)
        lying.result()


UNUSABLE = """
import errno, sys
from pathlib import Path
from pyfab import FabricError
from pyfab.meeting.channel import Channel
from pyfab.meeting.rendezvous import exchange
folder = Path(sys.argv[1])
try:
    with open(folder / "filler", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
except OSError:  # full now, or nothing can be written anyway
    pass
try:
    exchange(f"file://{folder}", 0, 2, bytes(100), 20)
except FabricError as error:
    print(errno.errorcode[error.errno], error)
print([path.name for path in folder.iterdir() if path.name != "filler"])
"""


@pytest.mark.parametrize("option,name", [("size=64k", "ENOSPC"), ("ro", "EROFS")])
def test_a_folder_that_cannot_be_written_is_told(option: str, name: str, tmp_path: Path) -> None:
    """In a name space of its own, so that nobody else sees what is mounted."""
    mounting = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o {option},mode=0700 none {tmp_path}"
    if subprocess.run([*mounting, mount], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("this machine does not let a user mount in a name space of his own")
    ran = subprocess.run(
        [*mounting, f'{mount} && exec "$@"', "sh", sys.executable, "-c", UNUSABLE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = re.fullmatch(r"(\w+) rank 0 of 2 cannot meet .*; .*PYFAB_RENDEZVOUS .*\n\[\]\n", ran.stdout)
    assert found, ran.stdout + ran.stderr
    assert found[1] == name


def two_meet(folder: Path, removed: threading.Event) -> None:
    """Rank 0 comes to a folder that is removed meanwhile, and rank 1 afterwards."""
    with ThreadPoolExecutor() as pool:
        first = pool.submit(exchange, f"file://{folder}", 0, 2, b"a", 30)
        assert removed.wait(30)
        second = pool.submit(exchange, f"file://{folder}", 1, 2, b"b", 30)
        assert (first.result(), second.result()) == ([b"a", b"b"],) * 2


def test_a_folder_whose_files_are_removed_while_a_rank_looks_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 was done in the former meeting. The file that says so is removed before the one that holds its place."""
    folder, swept = tmp_path / "meet", tmp_path / "swept"
    folder.mkdir(0o700)
    exists, removed = private_files.exists, threading.Event()
    for name in ("0-taken", "0-done"):
        (folder / name).touch(0o600)

    def exists_late(descriptor: int, name: str) -> bool:
        if name == "0-done" and not removed.is_set():
            folder.rename(swept)
            (swept / name).unlink()
            removed.set()
        return exists(descriptor, name)

    monkeypatch.setattr(private_files, "exists", exists_late)
    two_meet(folder, removed)


def test_a_folder_that_is_swept_while_a_rank_enters_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 has opened the folder of a former meeting when the last rank there removes it."""
    folder, swept = tmp_path / "meet", tmp_path / "swept"
    create, removed = private_files.create, threading.Event()

    def create_late(descriptor: int, name: str) -> None:
        if name == "0-taken" and not removed.is_set():
            folder.rename(swept)
            removed.set()
        create(descriptor, name)

    monkeypatch.setattr(private_files, "create", create_late)
    two_meet(folder, removed)
    assert not list(swept.glob("0-*")), "nothing of the next meeting is left there"


def test_a_folder_that_goes_while_ranks_wait_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "meeting"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(exchange, f"file://{folder}", 0, 2, b"", 60)
        while not (folder / "bell.0").exists():  # the last file that a rank makes before it waits
            assert not waiting.done()
        shutil.rmtree(folder)
        with pytest.raises(FabricError, match=r"rank 0 of 2 cannot meet .*leave the folder alone"):
            waiting.result()
