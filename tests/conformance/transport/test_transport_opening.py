"""Opening a transport: what it takes and why, its limits and tunables, and that nothing is left when it fails or closes."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import threading
import time
import warnings
from typing import Any

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab import Access, AtomicOp, MRMode, Transport
from pyfab.transport.settings import Limits, Tunables, candidates, contexts_for, slice_of
from sides import resident
from support import SANITIZED, TIMEOUT

# --- the other side, in a process of its own


def info(**changes: Any) -> pyfab.Info:
    return dataclasses.replace(pyfab.getinfo("shm")[0], **changes)


# --- opening


@pytest.mark.req("WIN-1")
def test_what_is_not_suitable_is_skipped_with_a_reason() -> None:
    found = [
        info(links=("a",), caps=pyfab.Caps.MSG),
        info(links=("b",), ep_type=pyfab.EPType.UNSPEC),
        info(links=("c",)),
    ]
    taken, verdicts = candidates(Tunables(), found=found)
    assert [entry.links for entry in taken] == [("c",)]
    assert [(verdict.link, verdict.taken) for verdict in verdicts] == [
        ("a", False),
        ("b", False),
        ("c", True),
    ]
    assert "lacks" in verdicts[0].reason
    assert "not reliable" in verdicts[1].reason
    with Transport() as transport:
        assert transport.candidates
        assert all(candidate.reason for candidate in transport.candidates)


@pytest.mark.req("WIN-6")
def test_each_capability_is_tested_by_itself() -> None:
    for bit in (pyfab.Caps.ATOMIC, pyfab.Caps.REMOTE_READ, pyfab.Caps.RMA):
        whole = info().caps
        taken, verdicts = candidates(Tunables(), found=[info(caps=whole & ~bit)])
        assert taken == []
        assert str(bit.name) in verdicts[0].reason
    levels = info().delivery
    assert (
        levels
        == pyfab.Delivery.INJECT | pyfab.Delivery.TRANSMIT | pyfab.Delivery.DELIVERY | pyfab.Delivery.COMMIT
    )
    taken, verdicts = candidates(Tunables(), found=[info(delivery=levels & ~pyfab.Delivery.DELIVERY)])
    assert taken == []
    assert "DELIVERY" in verdicts[0].reason


@pytest.mark.req("WIN-3")
def test_demands_that_a_transport_does_not_meet() -> None:
    for mode in (MRMode.LOCAL, MRMode.RMA_EVENT, MRMode.MMU_NOTIFY, MRMode.RAW):
        with pytest.raises(pyfab.FabricError, match="demands"):
            Transport(mr_mode=mode)
        with pytest.raises(pyfab.FabricError, match="demands"):
            Transport("shm", mr_mode=mode)


@pytest.mark.req("WIN-4")
def test_lists_of_what_to_take_and_what_not() -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match="one of them"):
        Transport(include=["shm"], exclude=["tcp"])
    with Transport(include=["tcp:lo"], device_memory=False) as transport:
        assert [entry.links for entry in transport.modules] == [("tcp:lo",)]
    with Transport(exclude=["tcp"]) as transport:
        assert all(entry.provider != "tcp" for entry in transport.modules)
    with pytest.raises(pyfab.FabricError, match="not in include=nothing"):
        Transport(include=["nothing"])


@pytest.mark.req("WIN-5")
def test_processes_of_a_node_share_the_devices_out() -> None:
    nics = [pyfab.Nic(name, "", "", 0, 0, "up") for name in ("d3", "d1", "d0", "d2", "d1")]
    found = [info(links=(f"tcp:{nic.name}{i}",), nics=(nic,), nic=nic) for i, nic in enumerate(nics)]
    taken, verdicts = candidates(Tunables(), found=found)
    assert [entry.nic.name for entry in taken if entry.nic] == ["d0", "d1", "d2", "d3"]
    assert "in use" in verdicts[4].reason
    shares = [slice_of(taken, rank, 2) for rank in (0, 1)]
    assert [[entry.nic.name for entry in share if entry.nic] for share in shares] == [
        ["d0", "d1"],
        ["d2", "d3"],
    ]
    uneven = [slice_of(range(5), rank, 3) for rank in range(3)]
    assert sorted(number for share in uneven for number in share) == list(range(5))
    assert slice_of(["only"], 3, 4) == ["only"]


@pytest.mark.req("WIN-74")
def test_devices_stand_in_the_order_of_their_latency() -> None:
    """Whatever they are called, and in whatever order they were found."""
    nics = {"tcp:a0": "a0", "tcp:z0": "z0", "verbs:m0": "m0", "verbs:y0": "y0"}
    found = [
        info(links=(link,), nics=(nic,), nic=nic)
        for link, nic in ((link, pyfab.Nic(name, "", "", 0, 0, "up")) for link, name in nics.items())
    ] + [info(links=("shm",))]
    for order in (found, found[::-1]):
        taken, _ = candidates(Tunables(), found=order)
        assert [entry.links[0] for entry in taken] == ["shm", "verbs:m0", "verbs:y0", "tcp:a0", "tcp:z0"]


@pytest.mark.req("WIN-7", "WIN-28")
def test_limits_belong_to_the_module() -> None:
    small, large = info(inject_size=64, max_rma_size=1 << 16), info(inject_size=256)
    assert Limits.of(small, Tunables())[:3] == (1 << 16, 1 << 16, 64)
    assert Limits.of(large, Tunables())[:3] == (8 << 20, 8 << 20, 256)
    with Transport(["shm", "tcp"]) as transport:
        assert [limit.inject_size for limit in transport.limits] == [
            entry.inject_size for entry in transport.modules
        ]
        assert transport.limits[0].inject_size != transport.limits[1].inject_size


def open_things() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.req("WIN-8")
@pytest.mark.parametrize("failing", ["Domain.endpoint", "Endpoint.context", "Messages._post_receive"])
def test_opening_that_fails_leaves_nothing(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Transport(["shm", "tcp"]):  # what a first life leaves for the process is there from now on
        pass
    before = open_things()
    for position in range(1, 3):
        calls = 0
        kind, name = {
            "Domain.endpoint": (pyfab.Domain, "endpoint"),
            "Endpoint.context": (pyfab.Endpoint, "context"),
            "Messages._post_receive": (pyfab.transport.messages.Messages, "_post_receive"),  # type: ignore[attr-defined]
        }[failing]
        original = getattr(kind, name)

        def fail(*args: Any, _original: Any = original, _position: int = position, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == _position:
                raise MemoryError("injected")
            return _original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(kind, name, fail)
            with pytest.raises(MemoryError, match="injected"):
                Transport(["shm", "tcp"])
        assert open_things() == before


def one_life(number: int) -> None:
    with Transport(["shm", "tcp"][number % 2]) as transport:
        peer = transport.peer(transport.name)
        memory = np.zeros(512, np.uint8)
        registration = transport.register(memory, Access.REMOTE)
        for _ in range(5):
            transport.put(peer, np.ones(64, np.uint8), registration.address, registration)
            transport.atomic(peer, AtomicOp.SUM, 1, registration.address + 64, registration)
            transport.send(peer, 1, b"hello")
        if number % 3:
            transport.flush(timeout=TIMEOUT)
            transport.deregister(registration)


@litmus
@pytest.mark.req("WIN-9", "WIN-82", "WIN-81")
def test_lives_of_one_process_leave_nothing() -> None:
    lives = rounds(40)

    def live() -> None:
        for number in range(lives // 4):
            one_life(number)

    one_life(0)
    one_life(1)
    before: tuple[int, int] | None = None
    memory = 0
    for part in range(2):
        threads = [threading.Thread(target=live) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if part == 0:
            before, memory = open_things(), resident()
    assert open_things() == before
    assert SANITIZED or resident() - memory < 16 << 20


@pytest.mark.req("WIN-81")
@pytest.mark.parametrize("contexts", [1, 3])
def test_everything_closes_in_order(contexts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache, contexts, endpoint, queue, address vector, domain; without a busy error or a sleep, with operations under way."""
    seen: list[str] = []
    transport = Transport("tcp", contexts=contexts, mr_mode=MRMode.ENDPOINT, domain={"mr_cache": True})
    domain, endpoint = transport._modules[0].domain, transport._modules[0].endpoint
    registration = transport.register(np.zeros(512, np.uint8), Access.REMOTE)
    transport.deregister(transport.register(np.zeros(4096, np.uint8), Access.REMOTE))  # stays in the cache
    for _ in range(20):
        transport.put(
            transport.peer(transport.name), np.ones(64, np.uint8), registration.address, registration
        )

    def watch(kind: type, name: str, what: str) -> None:
        original = getattr(kind, name)

        def call(self: Any) -> None:
            if what == "endpoint":
                cache = domain._core.cache_stats
                seen.extend(["cache"] * (cache["cached_count"] == 0))
            if what not in seen:
                seen.append(what)
            original(self)

        monkeypatch.setattr(kind, name, call)

    watch(pyfab.Endpoint, "close", "endpoint")
    watch(type(endpoint.cq), "_end", "queue")
    watch(pyfab.AddressVector, "_end", "address vector")
    watch(pyfab.Domain, "_end", "domain")
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("slept"))
    assert domain._core.cache_stats["cached_count"] > 0
    transport.close()
    assert seen == ["cache", "endpoint", "queue", "address vector", "domain"]


# --- contexts, tunables


@pytest.mark.req("WIN-42", "WIN-43")
def test_numbers_of_contexts() -> None:
    limit = pyfab.getinfo("shm")[0].max_contexts
    with pytest.raises(pyfab.InvalidArgumentError, match=f"the device has {limit}"):
        Transport("shm", contexts=limit + 1)
    with Transport("shm", contexts=limit, posted_receives=1) as transport:
        assert transport._modules[0].endpoint.contexts == limit
    with Transport("shm", contexts=4, single_context=True) as transport:
        assert transport._modules[0].endpoint.contexts == 1
    with pytest.warns(RuntimeWarning, match="one context"):
        assert contexts_for(Tunables(contexts=4), [1]) == 1


@pytest.mark.req("WIN-46")
def test_tunables_come_from_keywords_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Tunables()
    assert (defaults.progress_threshold, defaults.posted_receives, defaults.mode) == (64, 10, "both")
    monkeypatch.setenv("PYFAB_TRANSPORT_CONTEXTS", "3")
    monkeypatch.setenv("PYFAB_TRANSPORT_INJECT", "0")
    monkeypatch.setenv("PYFAB_TRANSPORT_EXCLUDE", "tcp, nothing")
    with Transport("shm") as transport:
        tunables = transport.tunables
        assert (tunables.contexts, tunables.inject, tunables.exclude) == (3, False, ("tcp", "nothing"))
    with Transport("shm", contexts=2) as transport:
        assert transport.tunables.contexts == 2
    for name, value in (
        ("MODE", "sideways"),
        ("PROGRESS", "maybe"),
        ("CONTEXTS", "-1"),
        ("CONTEXTS", "0"),
        ("SINGLE_CONTEXT", "perhaps"),
        ("COMPLETIONS_PER_READ", "x"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"PYFAB_TRANSPORT_{name}", value)
            with pytest.raises(pyfab.InvalidArgumentError):
                Tunables.read()
    for wrong in ({"mode": "x"}, {"contexts": 0}, {"contexts": "2"}, {"inject": 1}, {"no_such": 1}):
        with pytest.raises(pyfab.InvalidArgumentError):
            Tunables.read(**wrong)


# --- flush and errors


@pytest.mark.req("WIN-83")
def test_no_function_of_the_system_is_replaced() -> None:
    libc = ctypes.CDLL(None)
    names = ("mmap", "munmap", "mremap", "brk", "madvise", "free", "malloc")

    def code() -> list[bytes]:
        return [
            ctypes.string_at(ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0, 16)
            for name in names
        ]

    before = code()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Transport("shm", domain={"mr_cache": True}) as transport:
            transport.deregister(transport.register(np.zeros(10_000), Access.REMOTE))
            assert code() == before
    assert code() == before
