"""What an endpoint binds to itself, for the sake of speed."""

from __future__ import annotations

import pyfab

MOST = 30  # attributes of an object whose look-up CPython specialises (SHARED_KEYS_MAX_SIZE)


def test_an_endpoint_has_few_enough_attributes():
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        assert "write" in vars(endpoint)  # bound to the core
        assert len(vars(endpoint)) <= MOST
