"""One group of four ranks for each way, which the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crew import WAYS, Crew


@pytest.fixture(scope="module", params=WAYS, ids=str)
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with Crew(request.param) as crew:
        yield crew
