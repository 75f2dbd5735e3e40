"""Files and folders that are served: which bytes come, what is out of reach, and what is told of changes and losses."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.tools import file_client
from pyfab.tools.fetch import ArrayClient
from pyfab.tools.file_client import FileClient, Part
from pyfab.tools.folder import _mapped
from pyfab.tools.lending import MOST_AT_ONCE
from pyfab.tools.serve import ArrayServer
from pyfab.tools.served import Contents

Serve = Callable[..., "tuple[subprocess.Popen[str], str]"]

LARGE = np.random.default_rng(0).bytes(20 << 20)  # more than one operation moves
SMALL = bytes(range(256)) * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "served"
    (made / "deep" / "er").mkdir(parents=True)
    (made / "large.bin").write_bytes(LARGE)
    (made / "deep" / "er" / "small").write_bytes(SMALL)
    (made / "deep" / "empty").touch()
    (tmp_path / "secret").write_text("secret")
    np.save(tmp_path / "images.npy", np.arange(48.0).reshape(4, 12))
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[ArrayServer]:
    with ArrayServer({"served": folder, "images": folder.parent / "images.npy"}) as server:
        yield server


@pytest.fixture
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from another machine."""
    monkeypatch.setattr(file_client, "Domain", lambda _, **settings: pyfab.Domain("tcp", **settings))


def in_between(client: FileClient, monkeypatch: pytest.MonkeyPatch, event: Callable[[], object]) -> None:
    """Has something happen after the server has lent files, and before they are read."""
    gets = client._gets

    def after(*arguments: Any) -> Any:
        event()
        return gets(*arguments)

    monkeypatch.setattr(client, "_gets", after)


def rewrite(path: Path, content: bytes) -> None:
    """Changes a file in its place, at another time than before, however coarse the clock of the file system is."""
    before = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def failure(found: bytes | OSError) -> int | None:
    assert isinstance(found, OSError), found
    return found.errno


def test_parts_of_files_are_slices(client: FileClient) -> None:
    parts = [
        (None, None), (0, 10), (-5, None), (5, -5), (100, 70_000), (70_000, 3), (10**12, None), (-(10**12), 3),
        (len(LARGE) - 1, len(LARGE) + 1),
    ]  # fmt: skip
    contents = {
        "served/large.bin": LARGE,
        "served/deep/er/small": SMALL,
        "served/deep/empty": b"",
        "images": np.arange(48.0).tobytes(),
    }
    asked = [Part(name, *part) for part in parts for name in contents]
    found = client.read(asked)
    assert all(
        one == contents[part.name][part.start : part.stop] for part, one in zip(asked, found, strict=True)
    )


def test_small_parts_of_a_file_are_one_vector(client: FileClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.read([Part("images", 0, 8)])
    data, vectors = client._data, []
    assert data is not None

    def read_many(*arguments: Any) -> Any:
        vectors.append(len(arguments[-1]))
        return data.endpoint.read_many(*arguments)

    parts = [Part("served/large.bin", start, start + 100) for start in range(0, 100_000, 1000)]
    with monkeypatch.context() as patched:
        patched.setattr(client, "_data", data._replace(endpoint=SimpleNamespace(read_many=read_many)))
        assert client.read(parts) == [LARGE[part.start : part.stop] for part in parts]
    assert vectors == [100]


def test_what_is_told(client: FileClient, folder: Path) -> None:
    def names(path: str) -> dict[str, int | None]:
        found = client.look(path)
        assert isinstance(found, Contents)
        return {name: entry.get("size") for name, entry in found.entries.items()}

    assert names("") == {"served": None, "images": 384}
    assert names("served") == {"large.bin": len(LARGE), "deep": None}
    assert names("served/deep") == {"er": None, "empty": 0}
    small = client.look("served/deep/er/small")
    assert not isinstance(small, Contents)
    assert small["mtime"] == (folder / "deep/er/small").stat().st_mtime
    assert client.look("images") == {"size": 384, "shape": [4, 12], "dtype": "float64"}


def test_no_name_leads_out(client: FileClient, folder: Path) -> None:
    (folder / "out").symlink_to(folder.parent)
    (folder / "deep" / "link").symlink_to(folder.parent / "secret")
    os.mkfifo(folder / "pipe")
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)
    nothing = [
        "served/../secret", "served/deep/../../secret", "../secret", "/etc/passwd", "served//etc/passwd", "served/.",
        "served/large.bin/x", "served/deep/",
        "served/\0", "served/\ud800", "served/" + "x" * 300, "x" * 10_000, "nothing", "/", "..", "images/x",
    ]  # fmt: skip
    hidden = ["served/out", "served/out/secret", "served/deep/link", "served/pipe", "served/socket"]
    for names, error in ((nothing, FileNotFoundError), (hidden, PermissionError)):
        for name, found in zip(names, client.read([Part(name) for name in names]), strict=True):
            assert isinstance(found, error), name
            with pytest.raises(error):
                client.look(name)
    for path in ("served", "served/deep"):
        contents = client.look(path)
        assert isinstance(contents, Contents)
        assert contents.entries.keys().isdisjoint({"out", "link", "pipe", "socket"})
    assert failure(client.read([Part("served/deep")])[0]) == errno.EISDIR


def test_a_root_in_whose_place_comes_a_link(
    client: FileClient, server: ArrayServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rename(folder.with_name("before"))
    folder.symlink_to(folder.parent)
    assert isinstance(client.read([Part("served/secret")])[0], PermissionError)
    assert client.look("") == Contents(
        {"images": client.look("images")}
    )  # and no error of all that is served
    with ArrayClient(server.address) as arrays:
        assert (list(arrays.names()), arrays.folders()) == (["images"], [])
    monkeypatch.setattr("pyfab.tools.folder._check", lambda _: None)  # as if it came a moment later
    assert failure(client.read([Part("served/secret")])[0]) == errno.ELOOP


def test_the_names_of_what_is_served_are_told_without_a_look_into_it(
    client: FileClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: int) -> None:
        raise AssertionError("a folder is read")

    monkeypatch.setattr("pyfab.tools.folder._contents", read)
    assert isinstance(client.look(""), Contents)
    with pytest.raises(FileNotFoundError):
        client.look("nothing")


def test_a_pipe_is_left_alone(client: FileClient, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    writer = threading.Thread(target=lambda: os.close(os.open(folder / "pipe", os.O_WRONLY)))
    writer.start()
    try:
        while "S" not in Path(f"/proc/self/task/{writer.native_id}/stat").read_text().rsplit(")", 1)[1]:
            threading.Event().wait(0.01)
        assert failure(client.read([Part("served/pipe")])[0]) == errno.EACCES
        writer.join(0.2)
        assert writer.is_alive()  # it still waits for somebody who reads
    finally:
        os.close(os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK))
        writer.join()


@pytest.mark.usefixtures("over_tcp")
def test_over_tcp_alone(client: FileClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Part("served/large.bin"), Part("served/large.bin", 5, 9), Part("served/deep/er/small")]
    assert client.read(parts) == [LARGE, LARGE[5:9], SMALL]
    in_between(client, monkeypatch, lambda: rewrite(folder / "large.bin", b""))
    large, part, small = client.read(parts)
    assert failure(large) == failure(part) == errno.ESTALE
    assert small == SMALL


@pytest.mark.parametrize("how", ["shorter", "same size"])
def test_a_file_that_changes_while_it_is_read(
    client: FileClient, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = folder / "large.bin"
    (folder / "other").write_text("other")
    changed = b"" if how == "shorter" else bytes(len(LARGE))
    with monkeypatch.context() as patched:
        in_between(client, patched, lambda: rewrite(path, changed))
        large, small, other = client.read(
            [Part("served/large.bin"), Part("served/large.bin", 0, 5), Part("served/other")]
        )
    assert failure(large) == failure(small) == errno.ESTALE
    assert "changed while it was read" in str(large)
    assert other == b"other"
    assert client.read([Part("served/large.bin")]) == [changed]


def test_versions(client: FileClient, folder: Path) -> None:
    path = folder / "deep" / "er" / "small"
    told = client.look("served/deep/er/small")
    assert not isinstance(told, Contents)
    part = Part("served/deep/er/small", 0, 10, told["version"])
    assert client.read([part]) == [SMALL[:10]]
    rewrite(path, SMALL[::-1])
    assert failure(client.read([part])[0]) == errno.ESTALE
    path.unlink()
    assert failure(client.read([part])[0]) == errno.ENOENT


def test_a_file_that_changes_while_it_is_lent(
    server: ArrayServer, client: FileClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is told together with its version: it would be a whole file with bytes that are missing."""
    register = server._domain.register

    def late(*arguments: Any) -> Any:
        rewrite(folder / "large.bin", LARGE + SMALL)
        return register(*arguments)

    monkeypatch.setattr(server._domain, "register", late)
    assert failure(client.read([Part("served/large.bin", 0, 5)])[0]) == errno.ESTALE
    with (
        (folder / "large.bin").open("rb") as stream,
        pytest.raises(OSError, match="became shorter") as caught,
    ):
        _mapped(stream.fileno(), 1 << 40)
    assert caught.value.errno == errno.ESTALE


def test_a_time_that_is_set_back_hides_nothing(
    client: FileClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "deep" / "er" / "small"

    def rewrite_secretly() -> None:
        before = path.stat()
        while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of the file system is coarse
            path.write_bytes(bytes(len(SMALL)))
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    told = client.look("served/deep/er/small")
    assert not isinstance(told, Contents)
    rewrite_secretly()
    part = Part("served/deep/er/small", 0, 10)
    assert failure(client.read([part._replace(version=told["version"])])[0]) == errno.ESTALE
    in_between(client, monkeypatch, rewrite_secretly)
    assert failure(client.read([part])[0]) == errno.ESTALE


def test_a_file_that_is_taken_away_is_read_to_its_end(
    client: FileClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_between(client, monkeypatch, (folder / "large.bin").unlink)
    assert client.read([Part("served/large.bin")]) == [LARGE]


@pytest.mark.slow
def test_files_are_let_go(server: ArrayServer, client: FileClient, folder: Path) -> None:
    files = [f"served/{number}" for number in range(3 * MOST_AT_ONCE)]
    for number in range(len(files)):
        (folder / str(number)).write_text(str(number))
    client.read([Part("images")])  # which stays registered

    def there() -> tuple[int, int]:
        """Descriptors of files in the folder, and regions."""
        open_here = 0
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the list itself
                open_here += folder in Path(f"/proc/self/fd/{number}").readlink().parents
        return open_here, server._domain.stats()["regions"]

    def let_go_to(these: tuple[int, int]) -> None:
        """The server answers a little before its thread has let go of the last memory."""
        deadline = time.monotonic() + 20
        while (now := there()) != these:
            assert time.monotonic() < deadline, f"{now} descriptors and regions, and not {these}"
            threading.Event().wait(0.01)

    before = there()
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(client.read, [[Part(name) for name in files]] * 8):
            assert found == [str(number).encode() for number in range(len(files))]
    let_go_to(before)
    # Of a client that leaves without a word, too.
    client._ask({"op": "lend", "names": files[:MOST_AT_ONCE]})
    assert there()[1] == before[1] + MOST_AT_ONCE
    client.close()
    deadline = time.monotonic() + 20
    while there()[1] != before[1]:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_odd_requests(server: ArrayServer, client: FileClient) -> None:
    for request in (
        {"op": "lend"},
        {"op": "lend", "names": "images"},
        {"op": "lend", "names": [1]},
        {"op": "lend", "names": ["images"] * (MOST_AT_ONCE + 1)},
        {"op": "return"},
        {"op": "return", "loan": 0},
        {"op": "return", "loan": [0]},
    ):
        assert "error" in client._ask(request)[0]
    assert client._ask({"op": "look", "name": 1})[0] == {}
    assert client.read([Part("images", 0, 8)]) == [bytes(8)]
    with ArrayClient(server.address) as arrays:
        assert arrays.folders() == ["served"]


def test_a_connection_that_was_ended_is_made_again(client: FileClient) -> None:
    for _ in range(2):
        assert client.read([Part("images", 8, 16)]) == [np.ones(1).tobytes()]
        assert client._channel is not None
        client._channel.end()


def test_a_forked_child_has_a_connection_of_its_own(client: FileClient) -> None:
    assert client.read([Part("images", 0, 8)]) == [bytes(8)]
    child = os.fork()
    if not child:
        os._exit(0 if client.read([Part("images", 8, 16)]) == [np.ones(1).tobytes()] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert client.read([Part("served/large.bin")]) == [LARGE]


@pytest.mark.slow
def test_a_server_that_is_killed_and_one_that_comes_after_it(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, address = serve(folder)
    with FileClient(address, timeout=20) as client:
        assert client.read([Part("served/large.bin", 0, 5)]) == [LARGE[:5]]

        def kill() -> None:
            server.kill()
            server.wait()

        with monkeypatch.context() as patched:
            in_between(client, patched, kill)
            with pytest.raises(ConnectionError):
                client.read([Part("served/large.bin")])
        with pytest.raises(ConnectionError, match=f"nobody answers at {address}.*pyfab serve"):
            client.look("")
        serve(folder, "--listen", address)
        assert client.read([Part("served/large.bin")]) == [LARGE]


@pytest.mark.slow
def test_a_server_that_does_not_answer(serve: Serve, folder: Path) -> None:
    server, address = serve(folder)
    with FileClient(address, timeout=2) as client:  # a busy machine is not taken for such a server
        client.look("")
        server.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(server.pid, os.WUNTRACED)[1])  # all of its threads
        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(client.look, "") for _ in range(4)]
            errors = [answer.exception(60) for answer in answers]  # told to each within its own time
        assert any("does not answer within 2 s" in str(error) for error in errors), errors
        assert all(isinstance(error, TimeoutError | ConnectionError) for error in errors), errors
        server.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_the_commands_say_what_is_served(serve: Serve, folder: Path, tmp_path: Path) -> None:
    _, address = serve(folder, tmp_path / "secret", "--name", f"a/b={folder / 'deep'}")

    ran = subprocess.run(
        [sys.executable, "-m", "pyfab", "fetch", address],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == "secret: (6,) uint8\nserved: a folder\na/b: a folder\n"
    with ArrayClient(address) as client:
        assert client.fetch("a/b/er/small", np.s_[:3], tmp_path / "out.npy").tolist() == [0, 1, 2]
