"""What the plugin costs those who do not use it: nothing."""

from __future__ import annotations

from pathlib import Path

from hosts import PYTEST, Run

UNCONCERNED = """\
import sys
import pytest


@pytest.fixture
def domain():
    return "a user's own"


def test_nothing_was_loaded(domain):
    assert domain == "a user's own"
    assert not {"pyfab", "numpy", "matplotlib"} & set(sys.modules)
"""


def test_who_does_not_use_it_does_not_load_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_unconcerned.py").write_text(UNCONCERNED)
    options = ["test_unconcerned.py", "-W", "error", "--strict-markers"]
    status, said = run(None, PYTEST, *options, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert status == 0, said


def test_on_one_machine_it_needs_no_option(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_local.py").write_text(
        "def test_links(fabric, peer):\n    assert fabric.links == 'tcp'\n    assert fabric.where == 'process'\n"
    )
    status, said = run(None, PYTEST, "test_local.py", "-W", "error", FI_LNX_PROV_LINKS="tcp")
    assert status == 0, said
    status, said = run(None, PYTEST, "test_local.py", "--pyfab-peer", "thread", "--pyfab-links", "shm")
    assert "'shm' == 'tcp'" in said
