"""libfabric's own tests pass over pyfab's provider: `scripts/libfabric-tests`, which builds them."""

from __future__ import annotations

import os

import fabtests
import pytest
from fabtests_commands import LEFT_OUT, RUN

LINKS = os.environ.get("PYFAB_TEST_FI_LINKS", "shm").split()
pytestmark = [
    pytest.mark.skipif(bool(fabtests.reason()), reason=fabtests.reason()),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("command", RUN)
def test_command(command: str, links: str) -> None:
    outcome = fabtests.run(command, links)
    assert outcome.passed, f"server {outcome.server}, client {outcome.client}\n{outcome.text[-4000:]}"


@pytest.mark.parametrize("command", LEFT_OUT)
def test_what_is_not_offered_is_refused_at_once(command: str) -> None:
    """Such a program finds no provider, or is told that a call is not there; it does not fail later, or hang."""
    outcome = fabtests.run(command, "shm", seconds=20)
    assert outcome.server not in (0, None), f"it passes: move it to RUN\n{outcome.text}"
    assert outcome.client not in (0, None), outcome.text
