"""Commands that have another side, between two machines made of name spaces."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from netns import TIMEOUT, Bench, Node, finish

COMMAND = "from pyfab.__main__ import main\nsys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def machines() -> Iterator[Bench]:
    with Bench(nodes=2) as bench:
        yield bench


@contextlib.contextmanager
def listening(node: Node, *arguments: str) -> Iterator[dict[str, Any]]:
    """What a command of that machine that serves says in its first line; it ends well when it is told to."""
    process = node.popen(COMMAND, *arguments, "--listen", f"{node.address()}:0", "--json")
    assert process.stdout
    line = process.stdout.readline()
    assert line.startswith("{"), line + process.communicate(timeout=TIMEOUT)[0]
    yield json.loads(line)
    (command,) = psutil.Process(process.pid).children()
    command.send_signal(signal.SIGTERM)
    finish(process)


def refused(node: Node, *arguments: str) -> str:
    """What a command says that fails."""
    process = node.popen("import os; os.dup2(1, 2)\n" + COMMAND, *arguments)
    said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1, said
    return said


def test_bench_and_pingpong(machines: Bench) -> None:
    here, there = machines.node(0), machines.node(1)
    with listening(there, "bench", "--token", "secret") as told:
        assert told["listening"].startswith(there.address())
        assert told["open_to"] == "those who have the token"
        quick = ("--token", "secret", "--rounds", "1", "--round-ms", "1", "--sizes", "8", "64K", "--json")
        ran = json.loads(here.run(COMMAND, "bench", told["listening"], "--links", "tcp:r0", *quick))
        assert {one["link"] for one in ran["measurements"]} == {"tcp.0"}
        assert {one["operation"] for one in ran["measurements"]} == {
            *("put", "get", "fetch_add", "atomic", "message", "write_many", "read_many")
        }
        assert ran["facts"].keys() == {"initiator", "target"}
        received = there.counters(0)[0]
        ran = json.loads(here.run(COMMAND, "pingpong", told["listening"], *quick))
        assert [(one["operation"], one["size"]) for one in ran["measurements"]] == [
            ("message", 8),
            ("message", 1 << 16),
        ]
        assert there.counters(0)[0] > received + (1 << 16)
        assert "another token" in refused(here, "bench", told["listening"], "--token", "guess")


@pytest.mark.slow
def test_two_links_are_measured_interleaved(machines: Bench) -> None:
    """Within the machine that listens, so that shared memory is one of them."""
    there = machines.node(1)
    with listening(there, "bench") as told:
        assert told["open_to"] == "those who have the token"
        assert len(told["token"]) == 64  # which a process of the same user finds
        links = ("--links", "shm", "--links", "tcp:r0", "--metrics", "rate", "--operations", "put")
        ran = json.loads(there.run(COMMAND, "bench", told["listening"], *links, "--rounds", "2", "--json"))
        assert [(one["links"], one["link"]) for one in ran["measurements"]] == [
            ("shm", "shm.0"),
            ("tcp:r0", "tcp.0"),
        ]


@pytest.mark.slow
def test_serve_and_fetch(machines: Bench, tmp_path: Path) -> None:
    here, there = machines.node(0), machines.node(1)
    rows = np.arange(4000).reshape(1000, 4)
    np.save(tmp_path / "rows.npy", rows)
    with listening(there, "serve", str(tmp_path / "rows.npy"), "--token", "secret") as told:
        assert told["arrays"] == {"rows": {"shape": [1000, 4], "dtype": "int64"}}
        out = tmp_path / "part.npy"
        fetch = ("fetch", told["serving"], "rows[10:20, 1]", "-o", str(out), "--json")
        ran = json.loads(here.run(COMMAND, *fetch, PYFAB_TOKEN="secret"))
        assert ran == {"file": str(out), "shape": [10], "dtype": "int64", "nbytes": 80}
        assert (np.load(out) == rows[10:20, 1]).all()
        assert "set PYFAB_TOKEN" in refused(here, *fetch)
