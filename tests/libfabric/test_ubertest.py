"""ubertest, libfabric's test of many combinations, passes over pyfab's provider: see ubertest.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ubertest

LINKS = os.environ.get("PYFAB_TEST_FI_LINKS", "shm+tcp").split()
SECONDS = 400  # for one set


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.skipif(bool(ubertest.reason()), reason=ubertest.reason())
@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("name", ubertest.MATRIX)
def test_every_combination(name: str, links: str, tmp_path: Path) -> None:
    failed = ubertest.run(name, links, tmp_path, SECONDS)
    assert not failed, f"{len(failed)} failed:\n" + "\n".join(failed)[:8000]
