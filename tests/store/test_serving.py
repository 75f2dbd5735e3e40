"""A store that is shown to others: what they see, what they are refused, and what they have keeps its bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.store import Store, StoreServer
from pyfab.tools.fetch import ArrayClient
from pyfab.tools.file_client import FileClient, Part
from pyfab.tools.served import Contents


@pytest.fixture
def store() -> Iterator[Store]:
    with pyfab.Group(0, 1, domain="shm") as group, Store(group, replicas=0) as made:
        yield made


def test_arrays_go_by_their_keys_and_by_the_way_to_them(store: Store, tmp_path: Path) -> None:
    images = np.arange(48, dtype=np.float32).reshape(4, 3, 4)
    store.put("images", images)
    store.put(
        "model", {"layers": [{"w": np.arange(5)}, {"w": np.arange(6)}], "name": "small", "empty": np.empty(0)}
    )
    store.put("a/b", {"c": np.ones(2)})
    store.put("number", 7)
    with StoreServer(store) as server, ArrayClient(server.address) as client:
        assert client.names() == {
            "a/b/c": {"shape": [2], "dtype": "float64"},
            "images": {"shape": [4, 3, 4], "dtype": "float32"},
            "model/layers/0/w": {"shape": [5], "dtype": "int64"},
            "model/layers/1/w": {"shape": [6], "dtype": "int64"},
        }
        out = tmp_path / "out.npy"
        assert np.array_equal(client.fetch("images", np.s_[1:3, :, 0], out), images[1:3, :, 0])
        assert client.fetch("model/layers/1/w", np.s_[2:], out).tolist() == [2, 3, 4, 5]
        assert client.fetch("a/b/c", ..., out).tolist() == [1, 1]
        for name in ("number", "model", "model/layers/2/w", "a", "", "nothing"):
            with pytest.raises(KeyError, match="there is no array"):
                client.fetch(name, ..., out)


def test_a_new_value_is_seen_by_who_asks_again(store: Store, tmp_path: Path) -> None:
    with StoreServer(store) as server, ArrayClient(server.address) as client:
        assert client.names() == {}
        for number in range(3):
            store.put("x", np.full(1000, number))
            assert client.fetch("x", ..., tmp_path / "x.npy").tolist() == [number] * 1000
        store.delete("x")
        with pytest.raises(KeyError, match="there is no array 'x'; there are"):
            client.fetch("x", ..., tmp_path / "x.npy")


@pytest.mark.slow
def test_what_clients_had_open_is_let_go(store: Store, tmp_path: Path) -> None:
    store.put("x", np.arange(1000))
    with StoreServer(store) as server:
        for _ in range(3):
            with ArrayClient(server.address) as client:
                for _ in range(3):
                    client.fetch("x", ..., tmp_path / "x.npy")
                assert server._domain.stats()["regions"] == 0


def test_values_are_files_too(store: Store) -> None:
    records = np.array([1.5, 2.5])
    store.put("model", {"layers": [{"w": np.arange(5)}, {"w": np.arange(6)}], "records": records})
    store.put("number", 7)
    with StoreServer(store) as server, FileClient(server.address) as client:
        layers = client.look("model/layers")
        assert layers == Contents({"0": {}, "1": {}})
        told = client.look("model/records")
        assert not isinstance(told, Contents)
        assert (told["size"], told["shape"], told["dtype"]) == (16, [2], "float64")
        part = Part("model/records", 8, 16, told["version"])
        assert client.read([part, Part("number")])[0] == records.tobytes()[8:]
        store.put("model", {"records": records[::-1]})
        old, new = client.read([part, Part("model/records", 0, 8)])
        assert isinstance(old, OSError)
        assert new == records.tobytes()[8:]
        assert server._domain.stats()["regions"] == 0


def test_versions_of_one_server_are_none_of_another(store: Store) -> None:
    store.put("x", np.arange(10))
    parts = []
    for _ in range(2):  # the second store might be another one
        with StoreServer(store) as server, FileClient(server.address) as client:
            told = client.look("x")
            assert not isinstance(told, Contents)
            parts.append(Part("x", 0, 8, told["version"]))
            found = client.read(parts)
    assert isinstance(found[0], OSError)
    assert found[1] == bytes(8)


def test_only_values_are_read_that_a_name_is_about(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("a/b/c", "a/d", "e", "f/g"):
        store.put(key, {"x": np.arange(10)})
    reads: list[list[str]] = []
    read = store.read

    def listen(keys: Any) -> Any:
        reads.append(list(keys))
        return read(keys)

    monkeypatch.setattr(store, "read", listen)
    with StoreServer(store) as server, FileClient(server.address) as client:
        assert client.look("a") == Contents({"b": {}, "d": {}})
        assert reads == [["a"], ["a/b/c", "a/d"]]
        reads.clear()
        deep = "a/b/c" + "/y" * 2000
        for name in (deep, "\ud800/x"):
            assert isinstance(client.read([Part(name)])[0], FileNotFoundError)
            with pytest.raises(FileNotFoundError):
                client.look(name)
        assert max(len(key) for keys in reads for key in keys) <= 1024
        assert len(reads) <= 6


def test_the_command_reads_a_store(store: Store, tmp_path: Path) -> None:
    store.put("x", np.arange(10))
    with StoreServer(store, token="secret") as server:
        ran = subprocess.run(
            [
                sys.executable,
                "-m",
                "pyfab",
                "fetch",
                server.address,
                "x[2:4]",
                "-o",
                tmp_path / "x.npy",
                "--token",
                "secret",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert np.load(tmp_path / "x.npy").tolist() == [2, 3]
        with pytest.raises(ConnectionError):
            ArrayClient(server.address, "another")
