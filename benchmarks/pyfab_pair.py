"""pyfab between two processes: ``pyfab_pair.py <capacity> <link> endpoint|window``.

The initiator answers the harness; the target registers memory and then sleeps in ``select`` until its stdin
ends: what it serves, it serves without its Python. Operations are named ``<operation>_<memory>``: memory
``mapped`` is made by pyfab (``dom.alloc``, ``group.window(shape=...)``), ``other`` is a plain NumPy array.
"""

from __future__ import annotations

import pickle
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyfab

from protocol import Statement, pin, private_memory, serve

Words = npt.NDArray[np.int64]
MEMORY = ("mapped", "other")
WINDOW = 64
MANY = 4096
"""Transfers in one call of write_many or read_many."""

ENDPOINT = {
    "put": "ep.write(local, peer, at).result()",
    "get": "ep.read(local, peer, at).result()",
    "fetch_add": "ep.fetch_atomic(add, one, before, peer, first).result()",
    "put_rate": "for op in [ep.write(local, peer, at) for _ in window]:\n    op.result()",
    "get_rate": "for op in [ep.read(local, peer, at) for _ in window]:\n    op.result()",
    "write_many": "ep.write_many(peer, region, source, offsets, offsets, lengths).result()",
    "read_many": "ep.read_many(peer, region, source, offsets, offsets, lengths).result()",
    "post": "op = ep.write(local, peer, at)",
    "slice": "region[0:1]",
}
WINDOW_FACE = {
    "put": "win[1].put(local, at).result()",
    "get": "win[1].get(local, at).result()",
    "assign": "win[1][at] = local",
    "select": "win[1][at]",
    "fetch_add": "win[1].fetch_add(1, 0).result()",
    "accumulate": "win[1].accumulate(1, 0).result()",
    "put_rate": "for op in [win[1].put(local, at) for _ in window]:\n    op.result()",
}
OPERATIONS = {"put_rate": WINDOW, "get_rate": WINDOW, "write_many": MANY, "read_many": MANY}
PUTS = ("put", "assign", "put_rate", "write_many", "post")


class Source:
    """The initiator's buffer."""

    def __init__(self, capacity: int) -> None:
        self.words: Words = private_memory(capacity).view(np.int64)

    def stamped(self, count: int) -> Callable[[int], None]:
        def stamp(value: int) -> None:
            self.words[[0, count - 1]] = value

        return stamp


def checked(operation: str, count: int, read_back: Callable[[Words], None]) -> Callable[[int], None]:
    """Reads a put's target again and raises when the stamp is not there."""

    def check(stamp: int) -> None:
        if operation in PUTS:
            back = np.zeros(count, np.int64)
            read_back(back)
            if (back[[0, -1]] != stamp).any():
                raise RuntimeError("the bytes did not arrive")

    return check


class EndpointFace:
    """Operations of ``Endpoint``, the remote memory described by a ``RemoteRegion``."""

    sources = ENDPOINT

    def __init__(self, dom: pyfab.Domain, source: Source, address: bytes, remotes: dict[str, Any]) -> None:
        self._source = source
        self._ep = dom.endpoint()
        self._peer = self._ep.av.insert(address)
        self._remotes = remotes

    def statement(self, operation: str, memory: str, count: int) -> Statement:
        ep, peer, remote = self._ep, self._peer, self._remotes[memory]
        # A shuffled order, so that no transfer can be merged with the one before it.
        offsets = np.random.default_rng(1).permutation(MANY).astype(np.uint64) * 8
        span = MANY if operation in ("write_many", "read_many") else count
        names = {
            "ep": ep,
            "peer": peer,
            "region": remote,
            "at": remote[0:count],
            "first": remote[0:1],
            "local": self._source.words[:count],
            "source": self._source.words[:span],
            "window": range(WINDOW),
            "offsets": offsets,
            "lengths": np.full(MANY, 8, np.uint64),
            "add": pyfab.AtomicOp.SUM,
            "one": np.ones(1, np.int64),
            "before": np.zeros(1, np.int64),
        }

        def read_back(out: Words) -> None:
            ep.flush(peer)
            ep.read(out, peer, remote[0 : len(out)]).result()

        return Statement(
            self.sources[operation],
            names,
            OPERATIONS.get(operation, 1),
            self._source.stamped(span),
            checked(operation, span, read_back),
        )


class WindowFace:
    """Operations of ``Window``."""

    sources = WINDOW_FACE

    def __init__(self, source: Source, windows: dict[str, Any]) -> None:
        self._source = source
        self._windows = windows

    def statement(self, operation: str, memory: str, count: int) -> Statement:
        win = self._windows[memory]
        names = {
            "win": win,
            "local": self._source.words[:count],
            "at": np.s_[0:count],
            "window": range(WINDOW),
            "one": np.ones(1, np.int64),
            "first": np.s_[0:1],
        }

        def read_back(out: Words) -> None:
            win[1].get(out, np.s_[0 : len(out)]).result()

        return Statement(
            self.sources[operation],
            names,
            OPERATIONS.get(operation, 1),
            self._source.stamped(count),
            checked(operation, count, read_back),
        )


def windows_of(group: pyfab.Group, capacity: int) -> dict[str, Any]:
    """Collective: both sides call it."""
    count = capacity // 8
    return {
        "mapped": group.window(shape=(count,), dtype=np.int64),
        "other": group.window(private_memory(capacity).view(np.int64)),
    }


def target(capacity: int, link: str, face: str, meeting: str) -> None:
    pin(1)
    with pyfab.Domain(link) as dom:
        if face == "window":
            with pyfab.Group(1, 2, rendezvous=meeting, domain=dom) as group:
                held: Any = windows_of(group, capacity)
                select.select([sys.stdin], [], [])
                del held
            return
        arrays = {
            "mapped": dom.alloc(capacity // 8, np.int64),
            "other": private_memory(capacity).view(np.int64),
        }
        access = pyfab.Access.REMOTE_READ | pyfab.Access.REMOTE_WRITE
        regions = {name: dom.register(array, access) for name, array in arrays.items()}
        ep = dom.endpoint()
        card = ep.address, {name: region.remote for name, region in regions.items()}
        pickle.dump(card, sys.stdout.buffer)
        sys.stdout.flush()
        select.select([sys.stdin], [], [])


def initiator(capacity: int, link: str, face: str) -> None:
    pin(0)
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        arguments = [sys.executable, __file__, str(capacity), link, face, meeting]
        other = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdin and other.stdout
        source = Source(capacity)
        with other, pyfab.Domain(link) as dom:
            if face == "window":
                with pyfab.Group(0, 2, rendezvous=meeting, domain=dom) as group:
                    answer(WindowFace(source, windows_of(group, capacity)))
                    other.stdin.close()
            else:
                answer(EndpointFace(dom, source, *pickle.load(other.stdout)))
                other.stdin.close()


def answer(face: EndpointFace | WindowFace) -> None:
    def find(what: str, size: int) -> Statement:
        operation, _, memory = what.rpartition("_")
        if operation not in face.sources or memory not in MEMORY:
            raise ValueError(f"no operation called {what}")
        return face.statement(operation, memory, size // 8)

    serve(find)


def main() -> None:
    capacity, link, face, *meeting = sys.argv[1:]
    if meeting:
        target(int(capacity), link, face, *meeting)
    else:
        initiator(int(capacity), link, face)


if __name__ == "__main__":
    main()
