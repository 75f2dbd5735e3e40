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
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
from pyfab.bench._operations import IN_FLIGHT, ONE_SIDED, Operations, Source, Words, checked
from pyfab.bench._pair import MEMORY

from protocol import Statement, pin, private_memory, serve

WINDOW_FACE = {
    "put": "win[1].put(local, at).result()",
    "get": "win[1].get(local, at).result()",
    "assign": "win[1][at] = local",
    "element": "win[1][0]",
    "fetch_add": "win[1].fetch_add(1, 0).result()",
    "accumulate": "win[1].accumulate(1, 0).result()",
    "put_rate": "for op in [win[1].put(local, at) for _ in window]:\n    op.result()",
}
OPERATIONS = {"put_rate": IN_FLIGHT}
PUTS = ("put", "assign", "put_rate")


class EndpointFace:
    """Operations of ``Endpoint``, the remote memory described by a ``RemoteRegion``."""

    sources = ONE_SIDED

    def __init__(self, dom: pyfab.Domain, capacity: int, address: bytes, remotes: dict[str, Any]) -> None:
        endpoint = dom.endpoint()
        self._operations = Operations(endpoint, endpoint.av.insert(address), remotes, capacity)

    def statement(self, operation: str, memory: str, count: int) -> Statement:
        return self._operations.one_sided(operation, memory, 8 * count)


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
            "window": range(IN_FLIGHT),
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
            checked(count, read_back) if operation in PUTS else lambda _stamp: None,
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
        with other, pyfab.Domain(link) as dom:
            if face == "window":
                with pyfab.Group(0, 2, rendezvous=meeting, domain=dom) as group:
                    answer(WindowFace(Source(capacity), windows_of(group, capacity)))
                    other.stdin.close()
            else:
                answer(EndpointFace(dom, capacity, *pickle.load(other.stdout)))
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
