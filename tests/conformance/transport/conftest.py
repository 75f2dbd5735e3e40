"""One pair of transports for each way, which the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crew import WAYS
from sides import Sides


@pytest.fixture(scope="module", params=WAYS, ids=str)
def sides(request: pytest.FixtureRequest) -> Iterator[Sides]:
    with Sides(request.param) as sides:
        yield sides
