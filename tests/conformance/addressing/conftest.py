"""A domain with addresses of sockets, and an empty address vector of it."""

from __future__ import annotations

import pyfab
import pytest


@pytest.fixture(scope="module")
def domain():
    with pyfab.Domain("tcp", addr_format="sockaddr_in", tcp_listen="127.0.0.1") as domain:
        yield domain


@pytest.fixture
def av(domain):
    with domain.address_vector() as av:
        yield av
