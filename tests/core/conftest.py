"""Registered memory of domains that need synchronisation, and of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sync_memory import Memory


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory(coherent=False) as memory:
        yield memory


@pytest.fixture(params=[True, False], ids=["coherent", "non-coherent"])
def either(request: pytest.FixtureRequest) -> Iterator[Memory]:
    with Memory(coherent=request.param) as memory:
        yield memory
