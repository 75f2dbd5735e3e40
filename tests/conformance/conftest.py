"""The suite runs for each way to move bytes, with the target in a thread of this process and in a process of its own."""

from __future__ import annotations

import pytest
from support import COMBINATIONS, Combination, Pair


@pytest.fixture(scope="module", params=COMBINATIONS, ids=str)
def combination(request):
    return request.param


@pytest.fixture(scope="module")
def shared_pair(combination: Combination):
    with Pair(combination) as pair:
        yield pair


@pytest.fixture
def pair(shared_pair: Pair):
    """A local endpoint and a peer that know each other; regions opened during the test are closed after it."""
    yield shared_pair
    shared_pair.clean()
