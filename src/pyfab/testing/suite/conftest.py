"""The suite's tests see a `Pair` of the fixtures' domain, endpoint and peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyfab.testing.suite.support import Pair
from pytest_pyfab import session_of


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "req(*numbers): the requirements that a test shows to hold")
    config.addinivalue_line("markers", "litmus: looks for a race, as often as FAB_ROUNDS says")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Reports a link or a peer that is not there once, and not for each test."""
    if session.config.getoption("collectonly"):
        return
    try:
        session_of(session.config).check()
    except OSError as error:
        raise pytest.UsageError(f"pyfab: {error}") from None


@pytest.fixture
def pyfab_record(pyfab_record, fabric) -> Callable[..., None]:
    """Adds links and peer to each finding, because reports show findings of several ways side by side."""
    return lambda kind, **values: pyfab_record(
        kind, **{"links": fabric.links, "peer": str(fabric.where)} | values
    )


@pytest.fixture
def pair(fabric, domain, endpoint, peer) -> Iterator[Pair]:
    pair = Pair(domain, endpoint, peer, alloc=fabric.alloc, open_domain=fabric.open_domain)
    yield pair
    if not (peer.over or peer.busy):
        pair.clean()
