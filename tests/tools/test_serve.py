"""serve and fetch: arrays from their files, one-sidedly, and what happens to those who ask for something else."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyfab.meeting import tokens
from pyfab.tools.fetch import ArrayClient, parse_selection
from pyfab.tools.file_client import FileClient, decoded
from pyfab.tools.serve import ArrayServer

Serve = Callable[..., "tuple[subprocess.Popen[str], str]"]

IMAGES = np.arange(200 * 8 * 8, dtype="f4").reshape(200, 8, 8)
LABELS = np.arange(200, dtype="u1")
RECORDS = np.array([(1, 2.5), (3, 4.5)], [("id", "<u4"), ("x", "<f8")])


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    arrays: dict[str, NDArray[Any]] = {
        "images": IMAGES,
        "labels": LABELS,
        "records": RECORDS,
        "number": np.array(7.5),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return {name: tmp_path / f"{name}.npy" for name in arrays}


@pytest.fixture
def address(files: dict[str, Path]) -> Iterator[str]:
    with ArrayServer(files) as server:
        yield server.address


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyfab", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment
    )


SELECTIONS: list[tuple[str, Any]] = [
    ("images", np.s_[...]),
    ("images", np.s_[10:20]),
    ("images", np.s_[:, 3]),
    ("images", np.s_[-1]),
    ("images", np.s_[::-7, 1:, ::2]),
    ("images", np.s_[5:5]),
    ("images", np.s_[3, 4, 5]),
    ("images", np.s_[..., 0]),
    ("labels", np.s_[...]),
    ("records", np.s_[1:]),
    ("number", np.s_[...]),
]


@pytest.mark.parametrize("name,index", SELECTIONS)
def test_fetching_is_numpys_indexing(
    address: str, files: dict[str, Path], tmp_path: Path, name: str, index: Any
) -> None:
    expected = np.load(files[name])[index]
    with ArrayClient(address) as client:
        returned = client.fetch(name, index, tmp_path / "out.npy")
    found = np.load(tmp_path / "out.npy", allow_pickle=False)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype) == (returned.shape, returned.dtype)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("index", [np.s_[...], np.s_[1:], np.s_[:, 1_000_000:], np.s_[::2, ::500]])
def test_large_arrays_come_in_parts(tmp_path: Path, index: Any) -> None:
    array = np.random.default_rng(0).integers(0, 2**63, (6, 1_500_000))
    np.save(tmp_path / "large.npy", array)
    seen: list[tuple[int, int]] = []
    with ArrayServer({"large": tmp_path / "large.npy"}) as server, ArrayClient(server.address) as client:
        found = client.fetch("large", index, tmp_path / "out.npy", lambda *progress: seen.append(progress))
    assert np.array_equal(found, array[index])
    assert seen[-1] == (found.nbytes, found.nbytes)
    assert len(seen) >= found.nbytes // (4 << 20)
    assert sorted(seen) == seen


def test_from_the_command_line(serve: Serve, files: dict[str, Path], tmp_path: Path) -> None:
    server, address = serve(files["images"], "--name", f"other={files['labels']}")
    assert run("fetch", address).stdout == "images: (200, 8, 8) float32\nother: (200,) uint8\n"
    ran = run("fetch", address, "images[10:20, ..., -1]", "-o", tmp_path / "out.npy")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert np.array_equal(np.load(tmp_path / "out.npy"), IMAGES[10:20, ..., -1])
    assert "(10, 8) float32" in ran.stdout
    server.send_signal(signal.SIGTERM)
    output, _ = server.communicate(timeout=30)
    assert (server.returncode, output) == (0, "stopped\n")


@pytest.mark.slow
def test_ctrl_c_ends_the_server(serve: Serve, files: dict[str, Path]) -> None:
    server, _ = serve(files["labels"])
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 0


def test_over_tcp_alone(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from another machine."""
    import pyfab
    from pyfab.tools import file_client

    specs: list[str] = []

    def over_tcp(spec: str, **settings: Any) -> pyfab.Domain:
        specs.append(spec)
        return pyfab.Domain("tcp", **settings)

    monkeypatch.setattr(file_client, "Domain", over_tcp)
    with ArrayClient(address) as client:
        assert np.array_equal(client.fetch("images", np.s_[:, 2], tmp_path / "out.npy"), IMAGES[:, 2])
    assert specs == ["shm+tcp"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "selection, status",
    [("nothing", 1), ("images[300]", 1), ("images[0, 0, 0, 0]", 1)]
    + [(unreadable, 2) for unreadable in ("images[", "images[x]", "[1]", "images[1](2)")],
)
def test_bad_names_and_slices(address: str, tmp_path: Path, selection: str, status: int) -> None:
    ran = run("fetch", address, selection, "-o", tmp_path / "folder-of-its-own.npy")
    assert ran.returncode == status
    assert ran.stderr.startswith("pyfab fetch: ")
    assert "Traceback" not in ran.stderr
    assert not [path for path in tmp_path.iterdir() if "folder-of-its-own" in path.name]


def test_a_folder_that_is_not_there(address: str, tmp_path: Path) -> None:
    ran = run("fetch", address, "images", "-o", tmp_path / "nowhere" / "out.npy")
    assert ran.returncode == 1
    assert ran.stderr == f"pyfab fetch: {tmp_path / 'nowhere'}: No such file or directory\n"


def test_an_unknown_name_is_answered_with_those_that_exist(address: str, tmp_path: Path) -> None:
    with (
        ArrayClient(address) as client,
        pytest.raises(KeyError, match=r"'nothing'; there are images, labels"),
    ):
        client.fetch("nothing", ..., tmp_path / "out.npy")


def test_a_failed_fetch_leaves_the_former_file(address: str, tmp_path: Path) -> None:
    (tmp_path / "out.npy").write_text("former")
    with ArrayClient(address) as client, pytest.raises(IndexError):
        client.fetch("labels", 200, tmp_path / "out.npy")
    assert (tmp_path / "out.npy").read_text() == "former"
    with ArrayClient(address) as client:
        client.fetch("labels", 5, tmp_path / "out.npy")
    assert np.load(tmp_path / "out.npy") == 5


def test_nobody_can_write(address: str, files: dict[str, Path]) -> None:
    import pyfab

    with FileClient(address) as client, client.lend(["labels"]) as loan:
        region = pyfab.RemoteRegion.from_bytes(decoded(loan.lent[0], "region"))
        with pytest.raises(pyfab.AccessDeniedError):
            loan.data.endpoint.write(np.zeros(1, "u1"), loan.data.peer, region[:1]).result(20)
    assert np.array_equal(np.load(files["labels"]), LABELS)


def test_a_port_in_use(files: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run("serve", files["labels"], "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert ran.returncode == 1
    assert "pyfab serve: cannot listen on 127.0.0.1:" in ran.stderr
    assert "in use" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_files_that_cannot_be_served(tmp_path: Path) -> None:
    contents: dict[str, NDArray[Any]] = {
        "fortran": np.asfortranarray(np.zeros((3, 4))),
        "empty": np.zeros((0, 3)),
        "objects": np.array([None, {}]),
    }
    for name, array in contents.items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
    (tmp_path / "text.npy").write_text("text")
    for name, message in {
        "fortran": "Fortran order",
        "empty": "no elements",
        "objects": "cannot|can't|can be mapped",
        "text": "text.npy is no .npy file$",
        "missing": "missing.npy: No such file",
    }.items():
        ran = run("serve", tmp_path / f"{name}.npy")
        assert ran.returncode == 1
        assert re.search(message, ran.stderr), ran.stderr
        assert "Traceback" not in ran.stderr


def test_what_to_serve(files: dict[str, Path]) -> None:
    for arguments, message in (
        ([], "no file to serve"),
        ([files["labels"], files["labels"]], "two files have one name"),
        (["--name", "labels"], "write NAME=FILE"),
        (["/"], "has no name; give it one"),
        ([files["labels"], "--listen", "here"], "'here' is no address"),
    ):
        ran = run("serve", *arguments)
        assert ran.returncode == 2
        assert message in ran.stderr


@pytest.mark.slow
def test_tokens(files: dict[str, Path], tmp_path: Path) -> None:
    with ArrayServer(files, token="secret") as server:
        with ArrayClient(server.address, "secret") as client:
            assert np.array_equal(client.fetch("labels", ..., tmp_path / "out.npy"), LABELS)
        with pytest.raises(ConnectionError, match="another token"):
            ArrayClient(server.address, "other")
        with pytest.raises(ConnectionError, match="set PYFAB_TOKEN"):
            ArrayClient(server.address)
        for make in (partial(ArrayClient, server.address, ""), partial(ArrayServer, files, token="")):
            with pytest.raises(ValueError, match="an empty token would let in everybody"):
                make()
        ran = run("fetch", server.address, "labels", "-o", tmp_path / "out.npy", PYFAB_TOKEN="secret")
        assert ran.returncode == 0, ran.stderr
        ran = run(
            "fetch",
            server.address,
            "labels",
            "-o",
            tmp_path / "out.npy",
            "--token",
            "wrong",
            PYFAB_TOKEN="secret",
        )
        assert ran.returncode == 1
        assert "token" in ran.stderr


@pytest.mark.slow
def test_a_token_in_a_file_is_seen_by_its_user_alone(files: dict[str, Path], tmp_path: Path) -> None:
    kept, out = tmp_path / "token", tmp_path / "out.npy"
    kept.write_text("secret\n")
    with ArrayServer(files, token="secret") as server:
        kept.chmod(0o640)
        ran = run("fetch", server.address, "labels", "-o", out, "--token-file", kept)
        assert (ran.returncode, "other users can read the token" in ran.stderr) == (2, True), ran.stderr
        kept.chmod(0o600)
        ran = run("fetch", server.address, "labels", "-o", out, "--token-file", kept)
        assert ran.returncode == 0, ran.stderr
        kept.write_text("\n")
        ran = run("fetch", server.address, "labels", "-o", out, "--token-file", kept)
        assert (ran.returncode, "holds no token" in ran.stderr) == (2, True), ran.stderr
    assert "--token " not in tokens.announced("secret")


def test_odd_requests_end_only_their_own_connection(address: str) -> None:
    from pyfab.core.deadline import Deadline

    with ArrayClient(address) as witness:
        for request in (
            {},
            {"op": 1},
            {"op": ["list"]},
            {"op": "open", "name": "images"},
            {"op": "write", "name": "images"},
        ):
            with FileClient(address) as client:
                assert "error" in client.ask(request)[0]
        with FileClient(address) as client:
            channel = client.ask({"op": "list"})[2]
            channel._socket.sendall(b"pyf3" + b"\xff" * 100)
            with pytest.raises(OSError, match=r"ended|reset"):
                channel.receive(Deadline(10))
        assert witness.names().keys() == {"images", "labels", "records", "number"}


numbers = st.one_of(st.none(), st.integers(-(2**70), 2**70))
axes = st.one_of(st.integers(-(2**70), 2**70), st.just(...), st.builds(slice, numbers, numbers, numbers))


def written(part: Any) -> str:
    if isinstance(part, slice):
        return ":".join("" if n is None else str(n) for n in (part.start, part.stop, part.step))
    return "..." if part is ... else str(part)


@given(st.one_of(axes, st.lists(axes, min_size=1, max_size=5).map(tuple)))
def test_any_index_can_be_written(index: Any) -> None:
    parts = index if isinstance(index, tuple) else (index,)
    text = ", ".join(map(written, parts)) + ("," if isinstance(index, tuple) and len(index) == 1 else "")
    assert parse_selection(f"some-name.v2[{text}]") == ("some-name.v2", index)


@pytest.mark.parametrize(
    "text",
    ["", "[0]", "a[", "a[]", "a[0", "a[0]]", "a[0][1]", "a[b]", "a[1.5]", "a[True]", "a['x']", "a[[0, 1]]", "a[print(1)]",
     "a[0] + a[1]", "a[0];b[1]", "a[~1]", "a[+1]", "a[1:b]", "a[None]", "a[lambda: 1]", "a[\0]", "a[" + "(" * 900,
     "a[" + "-" * 900 + "1]", "a[" + "9" * 2000 + "]"],
)  # fmt: skip
def test_what_is_no_index(text: str) -> None:
    with pytest.raises(ValueError, match=r"index|brackets|name"):
        parse_selection(text)


def test_a_list_of_many_names_is_told(files: dict[str, Path], tmp_path: Path) -> None:
    """It was too long for a header, and the connection ended."""
    many = {f"{number:04}{'x' * 1000}": files["labels"] for number in range(1500)}
    with ArrayServer(many) as server, ArrayClient(server.address) as client:
        assert client.names().keys() == many.keys()
        name = next(iter(many))
        assert np.array_equal(client.fetch(name, np.s_[:3], tmp_path / "out.npy"), LABELS[:3])
