"""Somebody between two ranks, or in what they share, changes what they tell each other: nothing of it is taken."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from private import TIMEOUT, free_place, two_ranks, wait_until_listening
from pyfab.meeting import channel
from pyfab.meeting.addresses import split_address
from pyfab.meeting.rendezvous import exchange
from pyfab.testing import Peer, RemoteAgent
from pyfab.testing.agent import Agent
from pyfab.versions import CARD
from relay import Relay

pytestmark = pytest.mark.usefixtures("common")


class Mark:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.slow
@pytest.mark.parametrize("of_caller", [True, False])
def test_who_flips_bits_between_two_ranks_is_found_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, of_caller: bool
) -> None:
    place = free_place()
    parts: Counter[tuple[int, bool]] = Counter()

    def flip(number: int, from_caller: bool, data: bytes) -> bytes:
        parts[number, from_caller] += 1
        # The caller's second frame is its value; the third of the other side is the answer.
        changed = number == 1 and from_caller == of_caller and parts[number, from_caller] == 3 - of_caller
        return data[:-1] + bytes([data[-1] ^ 1]) if changed else data

    # As it is where packets are changed on their way to the very address that was called.
    monkeypatch.setattr(channel, "called", lambda service, _: f"{service} at {place}")
    with ThreadPoolExecutor(2) as pool, Relay(split_address(place), flip) as relay:
        first = pool.submit(exchange, f"tcp://{place}", 0, 2, b"0" * 50, TIMEOUT)
        wait_until_listening(place)
        socket.create_connection(("127.0.0.1", relay.port)).close()  # number 0
        second = pool.submit(exchange, f"tcp://127.0.0.1:{relay.port}", 1, 2, b"1" * 50, 2)
        if of_caller:  # rank 0 takes no word of it, and rank 1 comes again
            assert first.result(TIMEOUT) == second.result(TIMEOUT) == [b"0" * 50, b"1" * 50]
            assert "protocol broken: what came was changed on its way" in caplog.text
        else:
            with pytest.raises(pyfab.OperationTimeout, match="rank 0 of 2 did not answer"):
                second.result(TIMEOUT)


@pytest.mark.slow
def test_who_replaces_a_pickle_on_its_way_to_an_agent_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = pickle.dumps(Mark(tmp_path / "mark"))

    def replace(_: int, from_caller: bool, data: bytes) -> bytes:
        if not from_caller or data.startswith(b"pyf"):  # what is no frame is a message of the peer's stream
            return data
        return len(evil).to_bytes(4, "big") + evil

    with Agent("127.0.0.1:0") as agent, Relay(split_address(agent.address), replace) as relay:
        monkeypatch.setattr(channel, "called", lambda service, _: f"{service} at {agent.address}")
        with pytest.raises((OSError, RuntimeError, EOFError)):
            Peer("tcp", where=RemoteAgent("127.0.0.1", relay.port))
        assert RemoteAgent(*split_address(agent.address)).facts()
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("size", [0, 100_000])
def test_a_pickle_that_was_changed_on_its_way_to_a_member_is_not_loaded(
    common: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """What a rank shows is changed where it lies, as somebody between the hosts changes it on its way."""
    evil = b"p\x02" + pickle.dumps((Mark(tmp_path / "mark"), b"." * size))
    with two_ranks(common, "tcp") as (zero, one):
        if size:
            from pyfab.group import control

            real = control.open_region

            def open_other(domain: Any, memory: Any, *args: Any, **how: Any) -> Any:
                return real(
                    domain, np.frombuffer(evil, np.uint8) if domain is one.domain else memory, *args, **how
                )

            monkeypatch.setattr(control, "open_region", open_other)
        show = one._control._show

        def show_other(data: bytes) -> None:
            show(data)
            if not size:
                box = one._control._boxes[(one._control._barrier + 1) % 2]
                box[:8].view(np.uint64)[0] += len(evil) - len(data)
                end = int(box[:8].view(np.uint64)[0]) + 24
                box[end - len(evil) : end] = np.frombuffer(evil, np.uint8)

        monkeypatch.setattr(one._control, "_show", show_other)
        with ThreadPoolExecutor(2) as pool:
            seen = pool.submit(zero.allgather, 0)
            shown = pool.submit(one.allgather, {1, 2} if not size else b"." * (len(evil)))
            with pytest.raises(pyfab.AccessDeniedError, match="rank 1 of 2 shows was changed on its way"):
                seen.result(TIMEOUT)
            shown.result(TIMEOUT)
    assert not (tmp_path / "mark").exists()


class Store:
    """Keeps what it is told, and lets everybody read and write it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.change: Callable[[str, bytes], bytes] = lambda _, value: value
        self._changed = threading.Condition()

    def view(self) -> Any:
        class View:
            set, get, wait = self.set, self.get, self.wait

        return View()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self.values[key] = self.change(key, value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def wait(self, keys: list[str], _: object) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: all(key in self.values for key in keys), 20)


def test_a_store_learns_and_changes_nothing() -> None:
    store = Store()
    views = [store.view(), store.view()]
    value = b"what only the ranks know"
    with ThreadPoolExecutor(2) as pool:
        met = [pool.submit(exchange, view, rank, 2, value, 20) for rank, view in enumerate(views)]
        assert [one.result() for one in met] == [[value] * 2] * 2
        assert not [kept for kept in store.values.values() if value in kept]
        store.values.clear()
        store.change = lambda key, kept: kept[:-1] + bytes([kept[-1] ^ key.endswith("values 0/1")])
        met = [pool.submit(exchange, view, rank, 2, value, 20) for rank, view in enumerate(views)]
        for one in met:
            with pytest.raises(pyfab.AccessDeniedError, match="was not written for this meeting by a rank"):
                one.result()


def test_what_a_store_had_for_one_meeting_counts_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart, or in the next job, with the same token: somebody puts again what a rank has put there before."""
    monkeypatch.setenv("PYFAB_TOKEN", "of all jobs")
    former, store = Store(), Store()
    with ThreadPoolExecutor(2) as pool:
        met = [pool.submit(exchange, former.view(), rank, 2, b"old", 20) for rank in range(2)]
        assert [one.result() for one in met] == [[b"old"] * 2] * 2
        store.change = lambda key, kept: former.values[key] if key.endswith("values 0/1") else kept
        (first, second) = (pool.submit(exchange, store.view(), rank, 2, b"new", 20) for rank in range(2))
        for one in (first, second):
            with pytest.raises(pyfab.AccessDeniedError, match="was not written for this meeting"):
                one.result()


@pytest.mark.parametrize("told", [{"address": "", "host": ""}, {"pyfab": "0.0.1", "card": 1}])
def test_ranks_of_different_versions_are_named(common: Path, told: dict[str, Any]) -> None:
    place = f"file://{common}/meeting"
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(exchange, place, 1, 2, json.dumps(told).encode(), 20)
        with pytest.raises(
            pyfab.InvalidArgumentError,
            match=rf"different versions.* rank 0: pyfab '{pyfab.__version__}', cards {CARD}; rank 1: pyfab '.*0.",
        ):
            pyfab.Group(0, 2, place, "tcp", timeout=20)
        other.result()


@pytest.mark.parametrize("card", [b"\xff\xfe", b"[" * 100_000, b"[1]", b"9" * 5000, b'{"pyfab": "\\ud800"}'])
def test_a_card_of_odd_bytes_is_told(common: Path, card: bytes) -> None:
    place = f"file://{common}/meeting"
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(exchange, place, 1, 2, card, 20)
        with pytest.raises(pyfab.FabricError) as refused:
            pyfab.Group(0, 2, place, "tcp", timeout=20)
        assert str(refused.value).isprintable()
        other.result()
