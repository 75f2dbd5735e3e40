"""Served files by fsspec and zarr: what their users call, and what becomes of it when the server is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

from pyfab.fsspec import FileSystem  # noqa: E402  where there is fsspec

Serve = Callable[..., "tuple[subprocess.Popen[str], str]"]
ROOT = Path(__file__).parents[2]
LINES = "".join(f"{number},{number * number}\n" for number in range(20_000))


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    """As the entry point does where the package is installed."""
    fsspec.register_implementation("pyfab", FileSystem, clobber=True)


@pytest.fixture(scope="module")
def served(serve_all_tests: Serve, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder and the address where it is served."""
    folder = tmp_path_factory.mktemp("served") / "data"
    folder.mkdir()
    return folder, serve_all_tests(folder)[1]


@pytest.fixture
def folder(served: tuple[Path, str]) -> Path:
    """The folder, with new files."""
    made, _ = served
    shutil.rmtree(made)
    (made / "sub").mkdir(parents=True)
    (made / "table.csv").write_text(LINES)
    for number in range(3):
        (made / "sub" / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    return made


@pytest.fixture
def url(served: tuple[Path, str], folder: Path) -> Iterator[str]:
    assert folder.exists()
    yield f"pyfab://{served[1]}"
    for made in FileSystem._cache.values():
        made.close()
    FileSystem.clear_instance_cache()


def test_what_users_call(url: str, tmp_path: Path) -> None:
    with fsspec.open(f"{url}/data/table.csv", "rt", newline="") as lines:
        assert next(iter(lines)) == "0,0\n"
        lines.seek(0)
        assert lines.read() == LINES
    fs, path = fsspec.url_to_fs(f"{url}/data/")
    assert path == "data"
    assert fs.ls("data", detail=False) == ["data/sub", "data/table.csv"]
    assert {info["name"]: (info["type"], info["size"]) for info in fs.ls(url)} == {"data": ("directory", 0)}
    assert fs.find("") == ["data/sub/0.bin", "data/sub/1.bin", "data/sub/2.bin", "data/table.csv"]
    assert fs.glob("data/**/1.*") == ["data/sub/1.bin"]
    assert (fs.isdir("data/sub"), fs.isfile("data/sub/1.bin"), fs.exists("data/nothing")) == (
        True,
        True,
        False,
    )
    assert fs.info("/data/table.csv")["size"] == fs.size("data/table.csv") == len(LINES)
    assert fs.cat_file("data/table.csv", -10, -2) == LINES.encode()[-10:-2]
    assert fs.cat(["data/sub/1.bin", "data/sub/2.bin"]) == {
        "data/sub/1.bin": b"\1" * 1000,
        "data/sub/2.bin": b"\2" * 1000,
    }
    assert fs.unstrip_protocol("data/sub") == f"{url}/data/sub"
    fs.get("data", str(tmp_path / "copy"), recursive=True)
    assert (tmp_path / "copy" / "table.csv").read_text() == LINES
    assert (tmp_path / "copy" / "sub" / "2.bin").read_bytes() == b"\2" * 1000
    assert pickle.loads(pickle.dumps(fs)).cat_file("data/sub/1.bin", 0, 2) == b"\1\1"


def test_ranges(url: str) -> None:
    fs = fsspec.filesystem("pyfab", address=url.removeprefix("pyfab://"))
    paths = ["data/table.csv", "data/sub/1.bin", "data/nothing", "data/sub"]
    first, second, nothing, folder = fs.cat_ranges(paths, [5, -3, 0, 0], [9, None, 5, 5])
    assert (first, second) == (LINES.encode()[5:9], b"\1" * 3)
    assert isinstance(nothing, FileNotFoundError)
    assert isinstance(folder, IsADirectoryError)
    with pytest.raises(FileNotFoundError, match="data/nothing"):
        fs.cat_ranges(paths, 0, 5, on_error="raise")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("data/../data/table.csv")


def test_nothing_can_be_written(url: str, folder: Path) -> None:
    fs, _ = fsspec.url_to_fs(url)
    attempts: list[Callable[[], object]] = [
        lambda: fs.pipe_file("data/new", b""),
        lambda: fs.put_file(str(folder / "table.csv"), "data/new"),
        lambda: fs.rm("data/table.csv"),
        lambda: fs.mv("data/table.csv", "data/new"),
        lambda: fs.mkdir("data/new"),
        lambda: fs.open("data/new", "wb"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="read only") as caught:
            attempt()
        assert caught.value.errno == errno.EROFS
    assert (folder / "table.csv").read_text() == LINES


def test_a_file_that_changes_while_it_is_open(url: str, folder: Path) -> None:
    fs, _ = fsspec.url_to_fs(url)
    with fs.open("data/table.csv", block_size=1000, cache_type="none") as file:
        assert file.read(3) == LINES.encode()[:3]
        path = folder / "table.csv"
        path.write_text(LINES[::-1])
        os.utime(path, (0, 0))
        with pytest.raises(OSError, match="changed since it was opened"):
            file.read(3)
    assert fs.cat_file("data/table.csv") == LINES[::-1].encode()


def test_a_copy_is_complete_or_not_there(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyfab.fsspec._PIECE", len(LINES) // 2)
    fs, _ = fsspec.url_to_fs(url)
    read = fs._client.read

    def change(parts: Any) -> Any:
        found = read(parts)
        os.utime(folder / "table.csv", (0, 0))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(fs._client, "read", change)
        with pytest.raises(OSError, match="changed since it was opened"):
            fs.get_file("data/table.csv", str(tmp_path / "copy"))
    assert not list(tmp_path.glob("*copy*"))
    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to("there")
    for to in ("link", "/dev/null"):
        fs.get_file("data/table.csv", str(tmp_path / to))
    assert (tmp_path / "there").read_text() == LINES
    assert Path("/dev/null").is_char_device()


@pytest.mark.slow
def test_coroutines_in_one_loop_after_another(url: str) -> None:
    fs = FileSystem(url.removeprefix("pyfab://"), asynchronous=True)

    async def read() -> None:
        many = [fs._cat_file("data/table.csv", start, start + 100) for start in range(0, 10_000, 100)]
        assert b"".join(await asyncio.gather(*many)) == LINES.encode()[:10_000]
        assert (await fs._info("data/sub"))["type"] == "directory"
        task = asyncio.create_task(fs._cat_file("data/table.csv"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for _ in range(2):
        asyncio.run(read())


@pytest.mark.slow
def test_fsspec_finds_it_by_itself(url: str, tmp_path: Path) -> None:
    """With the entry points of pyproject.toml, as they are where the package is installed; and only when it is asked for."""
    (stated,) = re.findall(
        r'^\[project\.entry-points\."fsspec\.specs"\]\n(?:(\w+) = "(.+)")', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )  # fmt: skip
    installed = tmp_path / "site" / "some-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: some\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[fsspec.specs]\n{' = '.join(stated)}\n")
    program = (
        "import sys, pyfab; assert not {'fsspec', 'zarr'} & sys.modules.keys()\n"
        "import fsspec; assert 'pyfab.fsspec' not in sys.modules\n"
        f"with fsspec.open('{url}/data/sub/1.bin') as file: print(file.read(3))"
    )
    paths = os.pathsep.join([str(installed.parent), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "b'\\x01\\x01\\x01'\n", "")


def test_an_address_is_needed() -> None:
    with pytest.raises(ValueError, match="pyfab://HOST:PORT/NAME"):
        fsspec.filesystem("pyfab")


# --- zarr


@pytest.fixture
def zarr() -> Any:
    return pytest.importorskip("zarr", minversion="3", reason="zarr 3 is not installed")


@pytest.fixture
def group(zarr: Any, folder: Path) -> Path:
    path = folder / "cube.zarr"
    made = zarr.open_group(path, mode="w")
    made.create_array("plain", data=np.arange(10_000.0).reshape(100, 100), chunks=(10, 100))
    made.create_array(
        "deep/sharded", data=np.arange(10_000).reshape(100, 100), chunks=(10, 10), shards=(50, 50)
    )
    made.attrs["unit"] = "m"
    return path


@pytest.mark.usefixtures("group")
def test_zarr_opens_a_url(zarr: Any, url: str) -> None:
    opened = zarr.open_group(f"{url}/data/cube.zarr", mode="r")
    assert opened.attrs["unit"] == "m"
    assert sorted(opened.group_keys()) == ["deep"]
    assert np.array_equal(opened["plain"][:], np.arange(10_000.0).reshape(100, 100))
    assert opened["deep/sharded"][35:65:7, -3:].tolist() == [
        [100 * row + 97, 100 * row + 98, 100 * row + 99] for row in range(35, 65, 7)
    ]
    with pytest.raises((ValueError, OSError), match="read"):
        opened["plain"][0, 0] = 1
    with pytest.raises(FileNotFoundError):
        zarr.open_group(f"{url}/data/nothing.zarr", mode="r")


def test_the_store_of_zarr(zarr: Any, group: Path, url: str) -> None:
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    store = zarr.storage.FsspecStore.from_url(f"{url}/data/cube.zarr", read_only=True)
    whole = (group / "zarr.json").read_bytes()
    prototype = default_buffer_prototype()

    async def use() -> None:
        ranges = [None, RangeByteRequest(2, 7), OffsetByteRequest(5), SuffixByteRequest(4)]
        found = await store.get_partial_values(prototype, [("zarr.json", one) for one in ranges])
        assert [one.to_bytes() for one in found] == [whole, whole[2:7], whole[5:], whole[-4:]]
        assert await store.get_partial_values(prototype, [("nothing", None)]) == [None]
        assert await store.get("nothing", prototype) is None
        assert (await store.get("zarr.json", prototype, ranges[1])).to_bytes() == whole[2:7]
        assert (await store.exists("zarr.json"), await store.exists("nothing")) == (True, False)
        assert sorted([name async for name in store.list_dir("deep")]) == ["sharded", "zarr.json"]
        on_disk = sorted(path.relative_to(group).as_posix() for path in group.rglob("*") if path.is_file())
        assert sorted([name async for name in store.list()]) == on_disk

    sync(use())


@pytest.mark.slow
@pytest.mark.usefixtures("group")
def test_chunks_of_a_lost_server_are_no_fill_values(zarr: Any, serve: Serve, folder: Path) -> None:
    server, address = serve(folder)
    array = zarr.open_array(f"pyfab://{address}/data/cube.zarr/plain", mode="r")
    assert array[5, 5] == 505
    server.kill()
    server.wait()
    with pytest.raises(ConnectionError, match="nobody answers"):
        array[50, 5]


def test_chunks_that_are_not_shown_are_no_fill_values(zarr: Any, group: Path, url: str) -> None:
    chunks = group / "plain" / "c"
    (chunks / "5").rename(elsewhere := group.parent / "elsewhere")
    (chunks / "5").symlink_to(elsewhere)
    array = zarr.open_array(f"{url}/data/cube.zarr/plain", mode="r")
    with pytest.raises(PermissionError):
        array[50, 5]


@pytest.mark.usefixtures("group")
def test_a_mapping_of_fsspec(zarr: Any, url: str) -> None:
    mapper = fsspec.get_mapper(f"{url}/data/cube.zarr")
    assert "plain/zarr.json" in mapper
    assert np.array_equal(
        zarr.open_group(mapper, mode="r")["plain"][3:5], np.arange(300.0, 500).reshape(2, 100)
    )
