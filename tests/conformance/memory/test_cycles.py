"""What programs hold in cycles, through callbacks, contexts and policies, is collected once nobody uses it; and not before."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab import Access
from support import TIMEOUT

SPECS = ["shm", "tcp", "shm+tcp"]


def collected(reference: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + TIMEOUT
    while reference() is not None and time.monotonic() < deadline:
        os.sched_yield()  # the end of an operation is told by another thread
        gc.collect()
    return reference() is None


class Program:
    """An object of the user's that has a domain with an endpoint that reaches itself."""

    def __init__(self, spec: str, **options: Any) -> None:
        self.domain = pyfab.Domain(spec, **options)
        self.endpoint = self.domain.endpoint()
        self.handle = self.endpoint.av.insert(self.endpoint.address)
        self.memory = np.zeros(8)
        self.region = self.domain.register(self.memory, Access.REMOTE)
        self.called: list[Any] = []

    def callback(self, operation: pyfab.Operation) -> None:
        self.called.append(operation.done())

    def write(self, **options: Any) -> pyfab.Operation:
        return self.endpoint.write(np.ones(8), self.handle, self.region.remote, **options)


def policy(program: Program) -> None:
    program.other = pyfab.Domain("shm+tcp", rail_policy=lambda *_: program and None)


def callback(program: Program) -> None:
    operation = program.write()
    operation.add_done_callback(program.callback)
    operation.result(TIMEOUT)
    program.operation = operation


def callback_never_asked_for(program: Program) -> None:
    program.write().add_done_callback(program.callback)


def context(program: Program) -> None:
    program.write(context=program).result(TIMEOUT)


def context_never_asked_for(program: Program) -> None:
    program.write(context=program)


def context_of_a_completion(program: Program) -> None:
    program.write(context=program).result(TIMEOUT)
    program.endpoint.cq.wait(TIMEOUT)
    program.entries = program.endpoint.cq.read()
    assert program.entries[0].context is program


def context_of_a_scope(program: Program) -> None:
    program.scope = program.endpoint.context(0)._scope()
    program.scope.write(np.ones(8), program.handle, program.region.remote, context=program).result(TIMEOUT)


def message(program: Program) -> None:
    landing = np.zeros(8)
    received = program.endpoint.recv(landing, context=program)
    received.add_done_callback(program.callback)
    program.endpoint.send(np.ones(8), program.handle, context=program).result(TIMEOUT)
    received.result(TIMEOUT)


def fetch(program: Program) -> None:
    program.fetched = program.endpoint.fetch_atomic(
        pyfab.AtomicOp.SUM,
        np.ones(1),
        np.zeros(1),
        program.handle,
        program.region.remote[:1],
        context=program,
    )
    program.fetched.result(TIMEOUT)


def asynchronous_registration(program: Program) -> None:
    program.events = program.domain.event_queue()
    program.domain.bind(program.events)
    program.second = program.domain.register(np.zeros(8), Access.REMOTE, context=program)


def asynchronous_insertion(program: Program) -> None:
    program.events = program.domain.event_queue()
    program.av = program.domain.address_vector(asynchronous=True)
    program.av.bind(program.events)
    program.av.insert(program.endpoint.address, context=program)
    assert program.events.read(timeout=TIMEOUT).data == 1


KINDS = [
    policy,
    callback,
    callback_never_asked_for,
    context,
    context_never_asked_for,
    context_of_a_completion,
    context_of_a_scope,
    message,
    fetch,
    asynchronous_registration,
    asynchronous_insertion,
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("spec", SPECS)
def test_cycles_are_collected(spec: str, kind: Callable[[Program], None]) -> None:
    program = Program(spec)
    kind(program)
    seen, domain = weakref.ref(program), weakref.ref(program.domain)
    del program
    assert collected(seen)
    assert collected(domain)


@pytest.mark.parametrize("mode", ["one_sided", "two_sided", "both"])
def test_transports_are_collected(mode: str) -> None:
    class Runtime:
        def __init__(self) -> None:
            self.transport = pyfab.Transport("shm", mode=mode, on_error=self.lost)
            self.peer = self.transport.peer(self.transport.name)
            self.transport.handle(1, self.message)
            if mode != "one_sided":
                arrived = threading.Event()
                self.transport.handle(2, lambda *_: arrived.set())
                while self.transport.send(self.peer, 2, b"x") is pyfab.Outcome.TRY_AGAIN:
                    pass
                assert arrived.wait(TIMEOUT)

        def lost(self, *_: Any) -> None:
            pass

        def message(self, *_: Any) -> None:
            pass

    runtime = Runtime()
    seen, domain = weakref.ref(runtime), weakref.ref(runtime.transport._modules[0].domain)
    del runtime
    assert collected(seen)
    assert collected(domain)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_what_is_outstanding_is_not_collected(spec: str) -> None:
    """A receive that waits keeps its memory, its callback and, through that, its endpoint."""
    program = Program(spec)
    arrived = threading.Event()
    landing = np.zeros(8)

    def callback(_: pyfab.Operation, program: Program = program) -> None:
        program.called.append("arrived")
        arrived.set()

    program.endpoint.recv(landing, context=program).add_done_callback(callback)
    seen, memory, called = weakref.ref(program), weakref.ref(landing), program.called
    address = program.endpoint.address
    del program, landing, callback
    for _ in range(3):
        gc.collect()
    assert seen() is not None
    assert memory() is not None
    with pyfab.Domain(spec) as domain, domain.endpoint() as endpoint:
        endpoint.send(np.ones(8), endpoint.av.insert(address)).result(TIMEOUT)
        assert arrived.wait(TIMEOUT)
    assert called == ["arrived"]
    assert collected(seen)


def test_a_policy_is_asked_as_long_as_operations_can_be_started() -> None:
    """Also by one who has nothing but a context."""
    asked: list[list[str]] = []

    def rails(_: int, links: list[str]) -> None:
        asked.append(links)

    domain = pyfab.Domain("shm+tcp", rail_policy=rails)
    endpoint = domain.endpoint()
    kept, seen = endpoint.context(0), weakref.ref(rails)
    del domain, endpoint, rails
    gc.collect()
    assert seen() is not None
    del kept
    assert collected(seen)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["tcp"])
def test_collecting_beside_threads_that_work(spec: str) -> None:
    """The collector looks at what other threads fill and empty at the same time."""
    over, failures = threading.Event(), []

    def work() -> None:
        try:
            while not over.is_set():
                program = Program(spec)
                for number in range(20):
                    operation = program.write(context=[program, number])
                    operation.add_done_callback(program.callback)
                assert operation.result(TIMEOUT).context == [program, 19]
                program.endpoint.cq.wait(TIMEOUT)
                assert all(entry.context[0] is program for entry in program.endpoint.cq.read())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            gc.collect()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []
