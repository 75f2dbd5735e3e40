"""Linked endpoints with peers on each link: one that the tests of a file share, and others with settings of their own."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from linked import Linked
from support import drain


@pytest.fixture
def open_linked():
    with ExitStack() as stack:
        yield lambda **settings: Linked(stack, **settings)


@pytest.fixture(scope="module")
def shared_linked():
    with ExitStack() as stack:
        yield Linked(stack)


@pytest.fixture
def linked(shared_linked):
    drain(shared_linked.endpoint.cq)
    return shared_linked
