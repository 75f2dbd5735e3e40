"""What the plugin costs those who do not use it: nothing."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from hosts import PYTEST, Run
from pyfab.testing import Peer

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


@pytest.mark.slow
def test_on_one_machine_it_needs_no_option(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_local.py").write_text(
        "def test_links(fabric, peer):\n    assert fabric.links == 'tcp'\n    assert fabric.where == 'process'\n"
    )
    status, said = run(None, PYTEST, "test_local.py", "-W", "error", FI_LNX_PROV_LINKS="tcp")
    assert status == 0, said
    status, said = run(None, PYTEST, "test_local.py", "--pyfab-peer", "thread", "--pyfab-links", "shm")
    assert "'shm' == 'tcp'" in said


@pytest.mark.slow
def test_what_a_peer_was_doing_is_no_answer_to_the_next_test(run: Run, tmp_path: Path) -> None:
    """Where a test ends between `start` and the last `finish`; also beside an open window."""
    (tmp_path / "test_left.py").write_text(
        "import numpy as np\n"
        "def two(target):\n    target.tell(1)\n    return 2\n"
        "def test_left(peer):\n    peer.start(two)\n    assert peer.finish() == 1 and peer.busy\n"
        "def test_window_left(peer, window):\n    window(shape=8)\n    peer.start(two)\n"
        "def test_after(peer):\n"
        "    assert peer.expose(np.arange(3)).content().tolist() == [0, 1, 2]\n"
        "    peer.start(two)\n    assert [peer.finish(), peer.finish()] == [1, 2] and not peer.busy\n"
    )
    status, said = run(None, PYTEST, "test_left.py", "--pyfab-links", "shm")
    assert status == 1, said
    assert "3 passed, 2 errors" in said
    errors = [line for line in said.splitlines() if line.startswith("the test left the peer")]
    assert errors == ["the test left the peer in the middle of a call: peer.finish() waits for its end"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("where", ["thread", "process"])
def test_peers_call_local_functions(where, monkeypatch: pytest.MonkeyPatch) -> None:
    number = 40

    def added(target, more):
        return number + more if target else 0

    with Peer("shm", where=where) as peer:
        assert peer.run(added, 2) == peer.run(lambda _, more: number + more, 2) == 42
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(pickle.PicklingError, match="pip install cloudpickle"):
            peer.run(added, 2)
        assert peer.run(pow_of, 3) == 9


def pow_of(_target, number):
    return number**2
