"""Programs that synchronise where they should run alike on memory that needs it: a part of the suite once more, on such memory.

The peer of the suite synchronises what it stores and before it loads (`Exposed.store`, `Exposed.content`); on coherent memory,
where the other modules run, these calls change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import IN_PROCESS, Combination, Pair
from test_atomics import *  # noqa: F403
from test_remote_data import *  # noqa: F403
from test_write_read import *  # noqa: F403

pytestmark = pytest.mark.req("SYNC-28")


@pytest.fixture(scope="module", params=[c for c in IN_PROCESS if c.name in ("mapped", "tcp")], ids=str)
def combination(request: pytest.FixtureRequest) -> Combination:
    return request.param


@pytest.fixture(scope="module")
def shared_pair(combination: Combination) -> Iterator[Pair]:
    with Pair(combination, coherent=False) as pair:
        yield pair
