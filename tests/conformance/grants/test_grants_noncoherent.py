"""Grants of memory that is not coherent: the same tests once more, and what the checker says of accesses under a grant."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyfab
import pytest
from pyfab import Access
from support import IN_PROCESS, TIMEOUT, Combination, Pair
from test_grants import *  # noqa: F403


@pytest.fixture(scope="module", params=[c for c in IN_PROCESS if c.name in ("mapped", "tcp")], ids=str)
def combination(request: pytest.FixtureRequest) -> Combination:
    return request.param


@pytest.fixture(scope="module")
def shared_pair(combination: Combination) -> Iterator[Pair]:
    with Pair(combination, coherent=False) as pair:
        yield pair


@pytest.mark.req("MR-85")
@pytest.mark.parametrize("until", [None, 3600.0])
def test_the_checker_knows_where_in_the_region_a_grant_was_used(until):
    with pyfab.Domain("tcp:lo", checker=True) as domain, domain.endpoint() as endpoint:
        region = domain.register(np.zeros(64, np.int64), Access.REMOTE)
        me = endpoint.av.insert(endpoint.address)
        grant = region.grant(offset=256, nbytes=64, until=until)
        endpoint.write(np.ones(2, np.int64), me, grant.remote[1:3]).result(TIMEOUT)
        domain.sync_rdma_write([region[264:280]])
        assert domain.sync_reports == []
        endpoint.write(np.ones(2, np.int64), me, grant.remote[1:3]).result(TIMEOUT)
        (report,) = domain.sync_reports
        assert report.range == range(264, 280)
        region.close()
