"""Domains with settings of their own: pairs of them, and such with a registration cache."""

from __future__ import annotations

import pytest
from caching import opened
from support import COMBINATIONS, Combination, Pair

CACHE = ("FI_MR_CACHE_MAX_SIZE", "FI_MR_CACHE_MAX_COUNT", "FI_MR_CACHE_MERGE_REGIONS", "FI_MR_CACHE_MONITOR")


@pytest.fixture
def open_pair(combination):
    """Opens pairs of domains with given settings."""
    pairs = []

    def open_one(**settings):
        pairs.append(Pair(combination, **settings).__enter__())
        return pairs[-1]

    yield open_one
    for pair in pairs:
        pair.__exit__()


@pytest.fixture
def default_cache(monkeypatch):
    """Nothing in the environment says what a registration cache is like."""
    for variable in CACHE:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(params=[each for each in COMBINATIONS if each.where == "thread"], ids=lambda each: each.name)
def links(request) -> Combination:
    """A way for the bytes, for tests that need no peer."""
    return request.param


@pytest.fixture
def cached(links):
    """A domain with a cache, and an endpoint that has itself as peer 0."""
    with opened(links) as both:
        yield both
