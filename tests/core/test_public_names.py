"""What `help`, `inspect` and completion show of the package."""

from __future__ import annotations

import inspect
from enum import Enum

import numpy as np
import pyfab
import pytest
from pyfab.core.posting import operations

MODULES = (pyfab, pyfab.bench, pyfab.data, pyfab.testing)


def of_the_library(kind: type, name: str) -> bool:
    """Whether a public member comes from a class of the library, in Python or in the core."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    return not name.startswith("_") and owner.__module__.startswith("pyfab")


@pytest.mark.parametrize(
    "kind",
    [
        each
        for each in dict.fromkeys(getattr(module, name) for module in MODULES for name in module.__all__)
        if isinstance(each, type) and not issubclass(each, Enum)
    ],
)
def test_methods_have_signatures_and_texts(kind):
    assert vars(kind).get("__doc__"), f"{kind.__name__} has no text of its own"
    for name in [name for name in dir(kind) if of_the_library(kind, name)]:
        member = inspect.getattr_static(kind, name)
        if callable(member):
            inspect.signature(member)
            inspect.signature(getattr(kind, name))
        if callable(member) or isinstance(member, property):
            assert inspect.getdoc(member), f"{kind.__name__}.{name} has no text"


def test_what_can_be_closed_is_a_context_manager():
    kinds = {getattr(module, name) for module in MODULES for name in module.__all__}
    closable = [kind for kind in kinds if isinstance(kind, type) and hasattr(kind, "close")]
    assert {pyfab.Live, pyfab.testing.Exposed, pyfab.testing.PairedWindow} <= set(closable)
    assert not [kind for kind in closable if not (hasattr(kind, "__enter__") and hasattr(kind, "__exit__"))]


def test_methods_of_the_core_say_what_they_take():
    """As a class has them, and as an object does."""
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        context, region = endpoint.context(0), domain.register(np.zeros(3), pyfab.Access.ALL)
        for owner, name, expected in [
            (region.remote, "view", "(dtype, shape=None)"),
            (region.remote, "from_bytes", "(bytes)"),
            (context, "flush", "(peer=None, timeout=None)"),
            (context, "progress", "()"),
            (context, "peek", "(tag=None, ignore=0, peer=ADDR_UNSPEC, group=None, flags=None)"),
        ]:
            assert str(inspect.signature(getattr(owner, name))) == expected
    of_class = inspect.signature(pyfab.RemoteRegion.view)
    assert str(of_class) == "(self, dtype, shape=None)"
    assert "as elements of another dtype" in inspect.getdoc(pyfab.RemoteRegion.view)
    assert str(inspect.signature(pyfab.RemoteArray.put)) == "(self, /, values, index=Ellipsis, notify=None)"


@pytest.mark.parametrize("name", ["write", "read_many", "put", "get", "inject", "fetch_atomic", "tsend"])
def test_endpoints_take_what_their_contexts_take(name):
    of_the_endpoint, of_the_context = (
        [each.name for each in inspect.signature(getattr(kind, name)).parameters.values()]
        for kind in (pyfab.Endpoint, pyfab.Context)
    )
    assert of_the_endpoint == [each for each in of_the_context if each in of_the_endpoint]
    assert all(each.startswith("_") for each in set(of_the_context) - set(of_the_endpoint))


@pytest.mark.parametrize("bound", [True, False])
def test_operations_go_to_the_first_context(bound):
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        here = np.arange(3)
        region = domain.register(np.zeros(3, int), pyfab.Access.ALL)
        peer = endpoint.av.insert(endpoint.address)
        call = endpoint if bound else operations.Operations()
        call._contexts = endpoint._contexts
        call.put(here, peer, region.remote)
        there = np.zeros(3, int)
        assert call.read(there, peer, region.remote).result().nbytes == here.nbytes
        assert (there == here).all()
        call.fetch_atomic(pyfab.AtomicOp.SUM, here, there, peer, region.remote).result()
        call.read_many(peer, region.remote, there, [8], [0], 8).result()
        assert there.tolist() == [2, 1, 2]
        waiting = call.trecv(there, 7, ignore=1)
        call.tsend(here, peer, 6, data=5).result()
        assert waiting.result(10).data == 5
        call.inject(here[:1], peer, tag=9)
        call.flush(peer, 10)
        assert call.peek(9).nbytes == call.discard(9).nbytes == 8
        call.recv(there, peer, "mine")
        call.cancel("mine")
        assert call.message_stats() == endpoint.context(0).message_stats()


def test_the_package_shows_what_programs_use():
    shown = {name for name in dir(pyfab) if not name.startswith("__")}
    parts = {"bench", "checkpoint", "data", "store", "testing", "torch", "versions", "weights"}
    assert shown == {*pyfab.__all__, *parts}
