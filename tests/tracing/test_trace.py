"""Time lines: every operation once, with what it was and how it ended; a file that viewers read; nothing in the way when off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pyfab.data
import pytest
from pyfab import _core
from pyfab.testing import Peer

Event = dict[str, Any]


def identity(event: Event) -> tuple[int, str]:
    """What an operation's two events have in common."""
    return event["pid"], event["id2"]["local"]


def events_of(path: Path) -> list[Event]:
    """The events of a trace, after the rules of the format have been checked."""
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    begun: dict[tuple[int, str], float] = {}
    ended: set[tuple[int, str]] = set()
    slices: dict[tuple[int, int], list[float]] = {}
    last = 0.0
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and event["tid"] >= 0
        if event["ph"] == "M":
            assert event["args"]["name"]
            continue
        assert event["ts"] >= last, "in order of time"
        last = event["ts"]
        if event["ph"] == "X":
            open_slices = slices.setdefault((event["pid"], event["tid"]), [])
            while open_slices and open_slices[-1] <= event["ts"]:
                open_slices.pop()
            end = event["ts"] + event["dur"]
            assert not open_slices or end <= open_slices[-1] + 0.002, "slices of a thread nest"
            open_slices.append(end)
            continue
        name = identity(event)
        if event["ph"] == "b":
            assert name not in begun
            begun[name] = event["ts"]
        else:
            assert event["ph"] == "e"
            assert begun[name] <= event["ts"]
            assert name not in ended
            ended.add(name)
    named = {(event["pid"], event["name"]) for event in events if event["ph"] == "M"}
    assert {(event["pid"], "process_name") for event in events} <= named
    return events


def operations(events: list[Event], category: str = "operation") -> list[Event]:
    return [event for event in events if event["ph"] == "b" and event["cat"] == category]


def ends(events: list[Event]) -> dict[tuple[int, str], Event]:
    return {identity(event): event for event in events if event["ph"] == "e"}


def in_a_ring(group: pyfab.Group, rounds: int) -> None:
    """Per rank: 2 puts and a get for each round, 1 fetch_add, 1 accumulate, 1 take."""
    with group.window(np.zeros(100)) as window:
        right = window[(group.rank + 1) % group.size]
        for turn in range(rounds):
            right[turn] = 1.0
            right.put(np.ones(3), np.s_[10:13]).result()
            assert right[turn] == 1.0
        right.fetch_add(1.0, 50).result()
        right.accumulate(np.ones(2), np.s_[60:62]).result()
        right.take([1, 2, 3]).result()
        window.fence()


@pytest.mark.parametrize("links", ["shm", "tcp"])
@pytest.mark.parametrize("how", ["fresh", "forked"])
def test_processes_of_spawn(tmp_path: Path, links: str, how: str) -> None:
    work: Callable[..., None] = in_a_ring if how == "fresh" else lambda *a: in_a_ring(*a)
    with pyfab.trace(tmp_path / "trace.json"):
        pyfab.spawn(work, 3, 4, links=links, timeout=60)
    events = events_of(tmp_path / "trace.json")
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    ranks = {pid: name for pid, name in names.items() if name.startswith("rank ")}
    assert sorted(ranks.values()) == [f"rank {r} of 3" for r in range(3)]
    for pid in ranks:
        mine = [event for event in operations(events) if event["pid"] == pid]
        assert Counter(event["name"] for event in mine) == {
            "put": 8,
            "get": 4,
            "fetch_add": 1,
            "accumulate": 1,
            "take": 1,
        }
        assert {event["args"]["outcome"] for event in mine} == {"ok"}
        assert {event["args"]["link"] for event in mine} == {f"{links}.0"}
        assert Counter(event["args"]["bytes"] for event in mine) == {8: 9, 24: 5, 16: 1}
        assert all(identity(event) in ends(events) for event in mine)
        assert any(e["pid"] == pid for e in operations(events, "group")), "what the fence needs, apart"
        assert any(e["name"] == "Window.fence" and e["ph"] == "X" and e["pid"] == pid for e in events)


@pytest.mark.slow
def test_what_is_told_of_an_operation(tmp_path: Path) -> None:
    with Peer("tcp") as peer, pyfab.Domain("tcp") as domain, domain.endpoint(contexts=2) as endpoint:
        exposed = peer.expose(np.zeros(100, np.uint8))
        handle = endpoint.av.insert(peer.address)
        with pyfab.trace(tmp_path / "trace.json"):
            endpoint.write(np.ones(10, np.uint8), handle, exposed.remote[:10]).result(60)
            endpoint.context(1).read(np.zeros(20, np.uint8), handle, exposed.remote[:20]).result(60)
            endpoint.put(np.ones(30, np.uint8), handle, exposed.remote[:30])
            endpoint.inject(np.ones(5, np.uint8), handle, exposed.remote[:5])
            endpoint.flush(handle)
            with pytest.raises(pyfab.KeyRejectedError):
                endpoint.write(np.ones(7, np.uint8), handle, (0, exposed.key + 1)).result(60)
            with pytest.raises(pyfab.BoundsError):
                endpoint.write(np.ones(101, np.uint8), handle, exposed.remote[:10])
            receive = endpoint.trecv(np.zeros(8, np.uint8), 1)
            assert receive.cancel()
            left = endpoint.trecv(np.zeros(8, np.uint8), 2)
        assert not left.done()
        number = endpoint._number
    events = events_of(tmp_path / "trace.json")
    told = [
        (
            event["name"],
            event["args"]["peer"],
            event["args"]["context"],
            event["args"].get("link"),
            event["args"].get("bytes"),
            event["args"]["outcome"],
            identity(event) in ends(events),
        )
        for event in operations(events)
    ]
    first, second = f"{number}.0", f"{number}.1"
    assert told == [
        ("write", handle, first, "tcp.0", 10, "ok", True),
        ("read", handle, second, "tcp.0", 20, "ok", True),
        ("put", handle, first, "tcp.0", 30, "ok", True),
        ("inject", handle, first, "tcp.0", 5, "ok, buffer reusable", True),
        ("write", handle, first, "tcp.0", 7, "FI_EKEYREJECTED", True),
        ("write", handle, first, "tcp.0", 101, "FI_EFAULT", True),
        ("trecv", "any", first, None, 8, "FI_ECANCELED", True),
        ("trecv", "any", first, None, None, "outstanding", False),
    ]
    assert {event["tid"] for event in operations(events)} == {threading.get_native_id()}


@pytest.mark.slow
def test_an_operation_ends_when_it_is_complete_not_when_python_looks(tmp_path: Path) -> None:
    with Peer("tcp") as peer, pyfab.Domain("tcp") as domain, domain.endpoint() as endpoint:
        exposed = peer.expose(np.zeros(1 << 20, np.uint8))
        handle = endpoint.av.insert(peer.address)
        seen = threading.Event()
        with pyfab.trace(tmp_path / "trace.json"):
            started = time.monotonic_ns()
            operation = endpoint.write(np.ones(1 << 20, np.uint8), handle, exposed.remote)
            operation.add_done_callback(lambda _: seen.set())
            assert seen.wait(60)
            complete = time.monotonic_ns()
            operation.result()
            looked = endpoint.read(np.zeros(1, np.uint8), handle, exposed.remote[:1])  # begins later
            looked.result(60)
    write, read = operations(events_of(tmp_path / "trace.json"))
    end = ends(events_of(tmp_path / "trace.json"))[identity(write)]
    assert end["ts"] - write["ts"] <= (complete - started) / 1000
    assert end["ts"] <= read["ts"]


def test_operations_that_callbacks_start(tmp_path: Path) -> None:
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        memory = domain.alloc(8)
        remote = domain.register(memory, pyfab.Access.REMOTE).remote
        handle = endpoint.av.insert(endpoint.address)
        done = threading.Event()

        def again(_: pyfab.Operation) -> None:
            endpoint.read(np.zeros(8), handle, remote).add_done_callback(lambda _: done.set())

        with pyfab.trace(tmp_path / "trace.json"):
            endpoint.write(np.ones(8), handle, remote).add_done_callback(again)
            assert done.wait(60)
    assert [event["name"] for event in operations(events_of(tmp_path / "trace.json"))] == ["write", "read"]


WHAT = ("peer", "link", "bytes", "outcome")


@pytest.mark.slow
def test_rows_that_were_prepared(tmp_path: Path) -> None:
    with Peer("tcp") as peer, pyfab.Domain("tcp") as domain, domain.endpoint() as endpoint:
        exposed = peer.expose(np.zeros(40, np.uint8))
        handle = endpoint.av.insert(peer.address)
        offsets, lengths = [0, 10, 20], [5, 5, 5]
        puts = endpoint.prepare_write(
            handle, exposed.remote, np.ones(15, np.uint8), offsets, [0, 5, 10], lengths
        )
        gets = endpoint.prepare_read(
            handle, exposed.remote, np.zeros(15, np.uint8), offsets, [0, 5, 10], lengths
        )
        with pyfab.trace(tmp_path / "trace.json"):
            puts.start().result(60)
            puts.start([2, 0]).result(60)
            gets.start().result(60)
            with pytest.raises(IndexError):
                puts.start([3])
        puts.start().result(60)
    events = events_of(tmp_path / "trace.json")
    told = [(event["name"], *(event["args"].get(what) for what in WHAT)) for event in operations(events)]
    assert told == [
        ("write_many (prepared)", handle, "tcp.0", 15, "ok"),
        ("write_many (prepared)", handle, "tcp.0", 10, "ok"),
        ("read_many (prepared)", handle, "tcp.0", 15, "ok"),
        ("write_many (prepared)", handle, "tcp.0", None, "FI_EFAULT"),
    ]


def gather(group: pyfab.Group) -> None:
    rows = np.arange(8.0).reshape(4, 2) + 8 * group.rank
    with pyfab.data.ShardedStore(group, {"rows": rows}) as store:
        assert store.gather([0, 5, 2])["rows"].tolist() == [[0, 1], [10, 11], [4, 5]]


@pytest.mark.slow
def test_gathers_of_a_data_set(tmp_path: Path) -> None:
    with pyfab.trace(tmp_path / "trace.json"):
        pyfab.spawn(gather, 2, timeout=60)
    gathers = [e for e in operations(events_of(tmp_path / "trace.json")) if e["name"] == "gather"]
    assert [(e["args"]["peer"], e["args"]["outcome"]) for e in gathers] == [("several", "ok")] * 2


def test_off_nothing_is_in_the_way(tmp_path: Path) -> None:
    kinds = (_core.Context.write, pyfab.RemoteArray.__getitem__, pyfab.Group.barrier, _core.Operation.result)
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        plain = type(endpoint.write)
        with pyfab.trace(tmp_path / "trace.json"):
            assert type(endpoint.write) is not plain
            late = domain.endpoint()
        assert type(endpoint.write) is type(late.write) is plain
    assert kinds == (
        _core.Context.write,
        pyfab.RemoteArray.__getitem__,
        pyfab.Group.barrier,
        _core.Operation.result,
    )
    assert "put" not in pyfab.RemoteArray.__dict__
    assert "PYFAB_TRACE" not in os.environ


def test_one_at_a_time_and_a_file_that_can_be_written(tmp_path: Path) -> None:
    with (
        pyfab.trace(tmp_path / "trace.json"),
        pytest.raises(pyfab.BusyError),
        pyfab.trace(tmp_path / "other"),
    ):
        pass
    with pytest.raises(FileNotFoundError), pyfab.trace(tmp_path / "missing" / "trace.json"):
        pass
    assert events_of(tmp_path / "trace.json") == [] or not operations(events_of(tmp_path / "trace.json"))


# --- the command

PROGRAM = """
import os, signal, sys
import numpy as np, pyfab

def work(group):
    with group.window(np.zeros(4)) as window:
        window[1 - group.rank][0] = 1.0
        window.fence()
        if sys.argv[1] == "die" and group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.barrier()

if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    try:
        pyfab.spawn(work, 2, timeout=60)
    except ChildProcessError:
        sys.exit(7)
    if sys.argv[1] == "signal":
        signal.raise_signal(signal.SIGTERM)
"""


def trace(tmp_path: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    program, out = tmp_path / "program.py", tmp_path / "trace.json"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "pyfab", "trace", "-o", str(out), *arguments]
    command = [str(program) if word == "PROGRAM" else word for word in command]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False), out


@pytest.mark.slow
@pytest.mark.parametrize("how, status", [("well", 0), ("die", 7), ("signal", 128 + signal.SIGTERM)])
def test_the_command(tmp_path: Path, how: str, status: int) -> None:
    ran, out = trace(tmp_path, "PROGRAM", how, "--json", "-o", "x")
    assert ran.returncode == status, ran.stderr
    assert ran.stdout == f"arguments ['{how}', '--json', '-o', 'x']\n"
    events = events_of(out)
    assert [event["name"] for event in operations(events)] == ["put", "put"], "of the killed process, too"
    assert f"{out}: 2 operations of 2 processes" in ran.stderr


@pytest.mark.slow
def test_any_command_that_starts_python(tmp_path: Path) -> None:
    ran, out = trace(tmp_path, "--json", "--", sys.executable, "PROGRAM", "well")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stderr) == {"trace": str(out), "operations": 2, "processes": 2, "status": 0}
    assert len(operations(events_of(out))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "status, arguments, message",
    [
        (2, [], "no program to trace"),
        (1, ["/missing/program"], "/missing/program: No such file"),
        (1, ["-o", "/missing/trace.json", "x.py"], "/missing/trace.json: No such file"),
    ],
)
def test_what_cannot_be_traced(tmp_path: Path, status: int, arguments: list[str], message: str) -> None:
    ran, _ = trace(tmp_path, *arguments)
    assert ran.returncode == status
    assert ran.stderr.startswith("pyfab trace: ")
    assert message in ran.stderr
