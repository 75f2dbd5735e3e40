"""Latency and bandwidth of operations over the link, for the reports, and whether they are as the user's file expects."""

from __future__ import annotations

import numpy as np
import pytest
from pyfab.testing._measure import measure
from pytest_pyfab import session_of

SIZES = [8, 64, 512, 4096, 32 << 10, 256 << 10, 2 << 20]


def pytest_generate_tests(metafunc):
    if "expectation" in metafunc.fixturenames:
        expected = session_of(metafunc.config).expectations or [None]
        ids = [str(one).replace("µ", "u") for one in expected]  # pytest escapes what is not ASCII
        metafunc.parametrize("expectation", expected, ids=ids)


@pytest.fixture
def measured(pair, pyfab_record):
    def run(operation, size, seconds=0.1):
        local = pair.domain.alloc(size, np.uint8) if pair.alloc else np.zeros(size, np.uint8)
        exposed = pair.expose(np.zeros(size, np.uint8))
        found = measure(
            pair.endpoint, pair.handle, exposed.remote, operation, size, local=local, seconds=seconds
        )
        pyfab_record("measurement", **found._asdict())
        return found

    return run


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operation", ["put", "get"])
def test_measure(measured, operation, size):
    assert measured(operation, size).samples > 0


def test_measure_fetch_add(measured):
    assert measured("fetch_add", 8).samples > 0


def test_expectation(measured, fabric, expectation, pyfab_record):
    if expectation is None:
        pytest.skip("nothing is expected: --expect FILE.toml")
    if not expectation.concerns(fabric.links):
        pytest.skip(f"it is about links {expectation.links}")
    missed = expectation.missed(measured(expectation.operation, expectation.size, seconds=0.5))
    pyfab_record("expectation", over=fabric.links, **expectation._asdict(), missed=missed)
    if missed:
        pytest.fail("\n".join(missed), pytrace=False)
