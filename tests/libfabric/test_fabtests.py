"""libfabric's own tests pass over pyfab's provider: `scripts/libfabric-tests`, which builds them."""

from __future__ import annotations

import os
import re

import fabtests
import pytest
from fabtests_commands import BY_ADDRESS, GETINFO, GETINFO_FAILS, LEFT_OUT, RUN, UNIT, UNIT_BY_ADDRESS

LINKS = os.environ.get("PYFAB_TEST_FI_LINKS", "shm").split()
pytestmark = [
    pytest.mark.skipif(bool(fabtests.reason()), reason=fabtests.reason()),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("command", RUN)
def test_command(command: str, links: str) -> None:
    if fabtests.program(command.split()[0]) is None:
        pytest.skip(f"these fabtests have no {command.split()[0]}")
    outcome = fabtests.run(command, links)
    if unknown := re.search(r"(invalid|unrecognized) option.*", outcome.text):  # of older fabtests
        pytest.skip(f"these fabtests do not know an option: {unknown[0]}")
    assert outcome.passed, f"server {outcome.server}, client {outcome.client}\n{outcome.text[-4000:]}"


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("command", BY_ADDRESS)
def test_by_address(command: str, links: str) -> None:
    client_port = "scalable" in command and "tcp" in links
    outcome = fabtests.run_by_address(command, links, client_port)
    assert outcome.passed, f"server {outcome.server}, client {outcome.client}\n{outcome.text[-4000:]}"


@pytest.mark.parametrize("command", LEFT_OUT)
def test_what_is_not_offered_is_refused_at_once(command: str) -> None:
    """Such a program finds no provider, or is told that a call is not there; it does not fail later, or hang."""
    outcome = fabtests.run(command, "shm", seconds=20)
    assert outcome.server not in (0, None), f"it passes: move it to RUN\n{outcome.text}"
    assert outcome.client not in (0, None), outcome.text


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("command", UNIT)
def test_of_one_process(command: str, links: str) -> None:
    status, text = fabtests.run_alone(command, links)
    assert status == 0, text[-4000:]


@pytest.mark.parametrize("command", UNIT_BY_ADDRESS)
def test_of_one_process_by_address(command: str) -> None:
    status, text = fabtests.run_alone(command, "shm+tcp")
    assert status == 0, text[-4000:]


@pytest.mark.parametrize("links", LINKS)
def test_getinfo(links: str) -> None:
    _, text = fabtests.run_alone(GETINFO, links)
    failed = set(re.findall(r"Running (\w+) \[[^\n]*\]\.\.\.(?:[^\n]*combinations\n)?FAIL", text))
    assert failed == GETINFO_FAILS, text[-4000:]
    assert text.count("PASS!") > 10, text[-4000:]
