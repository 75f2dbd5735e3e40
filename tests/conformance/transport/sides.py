"""A transport here and one in another process, for the tests of this folder."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pyfab
from crew import Way
from pyfab import Access, Transport
from pyfab.testing import Peer, Target
from support import TIMEOUT

# --- the other side, in a process of its own


def open_there(
    target: Target, spec: Any, options: dict[str, Any], nbytes: int, access: int, alloc: bool
) -> Any:
    transport = Transport(spec, **options)
    memory = target.memory(nbytes, alloc=False)
    if alloc:
        memory = transport._modules[0].domain.alloc(nbytes, np.uint8)
    registration = transport.register(memory, Access(access))
    target.kept["transport"] = transport, memory, registration
    target.kept["messages"] = []
    return transport.name, registration.to_bytes(), memory.ctypes.data


def content_there(target: Target) -> bytes:
    return bytes(target.kept["transport"][1])


def meet_there(target: Target, name: bytes) -> None:
    target.kept["peer"] = target.kept["transport"][0].peer(name)


def close_there(target: Target) -> None:
    transport, _, registration = target.kept.pop("transport")
    transport.deregister(registration)
    transport.close()


class Sides:
    """A transport here and one in another process, with registered memory there."""

    def __init__(
        self,
        way: Way,
        *,
        nbytes: int = 1 << 16,
        access: Access = Access.REMOTE,
        progress: str = "unspecified",
        **options: Any,
    ) -> None:  # progress: of this side
        settings = {name: value for name, value in way.links.items() if name != "spec"}
        given = {"domain": settings, **options}
        spec = way.links["spec"]
        self.process = Peer("shm")
        name, handle, self.address_there = self.process.run(
            open_there, spec, given, nbytes, int(access), way.alloc
        )
        self.transport = Transport(spec, progress=progress, **given)
        self.peer = self.transport.peer(name)
        self.process.run(meet_there, self.transport.name)
        self.handle_bytes = handle
        self.handle = pyfab.RemoteHandle(handle)
        self.at = self.handle.address

    def wait(self, call: Any, *args: Any, **kwargs: Any) -> None:
        self.transport.wait(call, self.peer, *args, timeout=TIMEOUT, **kwargs)

    def put(self, values: Any, offset: int = 0) -> None:
        self.wait(self.transport.put, values, self.at + offset, self.handle)

    def get(self, out: Any, offset: int = 0) -> Any:
        self.wait(self.transport.get, out, self.at + offset, self.handle)
        return out

    def words(self, count: int, offset: int = 0) -> list[int]:
        return list(self.get(np.zeros(count, np.int64), offset).tolist())

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()
        if self.process._over:
            return
        self.process.run(close_there)
        self.process.close()


# --- opening


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


# --- peers


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()
