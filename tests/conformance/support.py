"""What the tests of this folder share."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer, Target
from pyfab.testing.suite import support as suite
from pyfab.testing.suite.support import TIMEOUT, collect, drain, failure, random_bytes
from rails import ENCRYPTED, RAILS

_TSAN = "TSAN_OPTIONS" in os.environ
SANITIZED = _TSAN or "ASAN_OPTIONS" in os.environ  # what is freed stays with the sanitizer for a while
without_tsan = pytest.mark.skipif(
    _TSAN,
    reason="the thread sanitizer makes accesses inside its own locks, which a fault would leave locked",
)
without_tsan_fork = pytest.mark.skipif(
    _TSAN, reason="the thread sanitizer ends children of fork() that start threads (dup thread with used id)"
)
without_asan_fork = pytest.mark.skipif(
    SANITIZED and not _TSAN,
    reason="gcc 12's address sanitizer may leave its allocator locked in a child of fork(), where new threads then wait",
)
__all__ = ["TIMEOUT", "collect", "drain", "failure", "random_bytes"]  # of the suite, for the tests here


@dataclass(frozen=True)
class Combination:
    """A way for the bytes, and where the target runs."""

    name: str
    where: Literal["thread", "process"]
    spec: str
    settings: dict[str, Any]
    alloc: bool  # what kind of memory the target exposes
    link: str  # what the endpoint reports
    how: str

    def __str__(self) -> str:
        return f"{self.name}-{self.where}"


# Links of this machine to run the suite over in place of the usual ones: "verbs:rxe0 shm+verbs:rxe0".
OTHER_LINKS = os.environ.get("PYFAB_TEST_LINKS", "").split()


def _combinations(where: Literal["thread", "process"]) -> list[Combination]:
    if OTHER_LINKS:
        return [
            Combination(spec, where, spec, {}, spec.startswith("shm"), spec.split(":")[0].split("+")[0], "")
            for spec in OTHER_LINKS
        ]
    return [
        Combination("mapped", where, "shm", {"shm_copy": "mapped"}, True, "shm", "mapped"),
        Combination("cma", where, "shm", {"shm_copy": "cma"}, False, "shm", "cross-memory attach"),
        Combination("ring", where, "shm", {"shm_copy": "ring"}, False, "shm", "ring"),
        Combination("tcp", where, "tcp", {}, False, "tcp", "127.0.0.1:"),
        Combination("tcp-encrypted", where, "tcp", ENCRYPTED, False, "tcp", "127.0.0.1:"),
        Combination("linked", where, "shm+tcp", {}, True, "shm", "mapped"),
        *(
            Combination(name, where, RAILS, settings, False, "tcp.0+tcp.1", "tcp.0 127.0.0.1")
            for name, settings in (("rails", {}), ("rails-encrypted", ENCRYPTED))
            if RAILS
        ),
    ]


COMBINATIONS = _combinations("thread") + _combinations("process")
IN_PROCESS = _combinations("process")


def insert(target: Target, address: bytes) -> int:
    return target.endpoint.av.insert(address)


class Pair(suite.Pair):
    """A local endpoint and a peer of its own, each in the other's address vector."""

    def __init__(self, combination: Combination, **settings: Any) -> None:
        self.combination = combination
        with ExitStack() as stack:
            options = {**combination.settings, **settings}

            def open_domain() -> pyfab.Domain:
                return pyfab.Domain(combination.spec, **options)

            peer = stack.enter_context(Peer(combination.spec, where=combination.where, **options))
            domain = stack.enter_context(open_domain())
            endpoint = stack.enter_context(domain.endpoint())
            peer.meet(endpoint)
            super().__init__(domain, endpoint, peer, alloc=combination.alloc, open_domain=open_domain)
            stack.enter_context(self._during_test)
            self._stack = stack.pop_all()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_PRIVATE_ANONYMOUS_NORESERVE = 0x2 | 0x20 | 0x4000


class Reserved:
    """Addresses of this process with nothing behind them, until back() puts pages there."""

    def __init__(self, pages: int) -> None:
        self.length = pages * mmap.PAGESIZE
        address = _libc.mmap(None, self.length, 0, _MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
        assert address not in (None, ctypes.c_void_p(-1).value)
        self.address: int = address

    @property
    def range(self) -> pyfab.Range:
        return pyfab.Range(self.address, self.length)

    def back(self, first: int = 0, count: int | None = None) -> None:
        """Puts zeroed pages behind `count` pages from number `first` on (None: all)."""
        length = self.length if count is None else count * mmap.PAGESIZE
        assert _libc.mprotect(self.address + first * mmap.PAGESIZE, length, 3) == 0

    def empty(self) -> None:
        """Takes the pages away and keeps the addresses."""
        fixed = _MAP_PRIVATE_ANONYMOUS_NORESERVE | 0x10
        assert _libc.mmap(self.address, self.length, 0, fixed, -1, 0) == self.address

    def unmap(self) -> None:
        if self.length:
            assert _libc.munmap(self.address, self.length) == 0
            self.length = 0

    def words(self, page: int = 0, count: int = 8) -> np.ndarray:
        """The first words of a page, which must be there."""
        pointer = ctypes.cast(self.address + page * mmap.PAGESIZE, ctypes.POINTER(ctypes.c_int64))
        return np.ctypeslib.as_array(pointer, (count,))
