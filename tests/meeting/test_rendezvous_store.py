"""Ranks meet in a store: that of torch, or any other; each meeting there is one of its own."""

from __future__ import annotations

import sys
import threading
import types

import pytest
from pyfab.core.errors import InvalidArgumentError, OperationTimeout
from pyfab.meeting.rendezvous import exchange
from test_rendezvous import meet


class Once:
    """A store for one meeting of one rank."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.get = self.values.__getitem__
        self.set = self.values.__setitem__

    def wait(self, keys: list[str], _: object) -> None:
        assert set(keys) <= set(self.values)


def test_the_meetings_in_a_store_are_counted_for_that_store_alone() -> None:
    """Another one may get the id of one that is gone. Its first meeting is the first, as it is for the other ranks."""
    for _ in range(20):
        store = Once()
        assert exchange(store, 0, 1, b"", 20) == [b""]
        assert {key.split("/")[2] for key in store.values} == {"1"}
        del store


class FakeStore:
    """The part of torch.distributed.TCPStore that is used, for the threads of one process."""

    values: dict[str, bytes] = {}  # noqa: RUF012
    lock = threading.Lock()

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = b"%d" % total
            return total

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]


class FakePrefixStore:
    """That of torch.distributed.PrefixStore."""

    def __init__(self, prefix: str, store: FakeStore) -> None:
        self.prefix, self.store = prefix, store

    def add(self, key: str, amount: int) -> int:
        return self.store.add(f"{self.prefix}/{key}", amount)

    def set(self, key: str, value: bytes) -> None:
        self.store.set(f"{self.prefix}/{key}", value)

    def get(self, key: str) -> bytes:
        return self.store.get(f"{self.prefix}/{key}")


def test_torchs_store(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.ModuleType("torch")
    torch.distributed = types.ModuleType("torch.distributed")  # type: ignore[attr-defined]
    torch.distributed.is_initialized = lambda: False
    torch.distributed.TCPStore = FakeStore
    torch.distributed.PrefixStore = FakePrefixStore
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    with pytest.raises(InvalidArgumentError, match="MASTER_ADDR"):
        exchange("torch", 0, 2, b"", 1)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    for _ in range(2):
        assert [met.result() for met in meet("torch", 3, [0, 1, 2])] == [
            [b"value 0", b"value 1", b"value 2"]
        ] * 3
    (met,) = meet("torch", 2, [1], timeout=0.1)
    with pytest.raises(OperationTimeout, match="rank 0 of 2 did not arrive at torch's store"):
        met.result()
    # Ranks that the agent has started again find nothing of those before them.
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert [met.result() for met in meet("torch", 2, [0, 1])] == [[b"value 0", b"value 1"]] * 2


def test_torch_is_not_needed_until_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidArgumentError, match="package torch"):
        exchange("torch", 0, 2, b"", 1)
