"""examples/kv_cache.py: the decoder has every byte of every layer, or the prefill process hears that it is gone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "kv_cache.py"


def run(links: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYFAB_")}
    command = [sys.executable, SCRIPT, "--links", links, "--layers", "6", "--blocks", "40", *arguments]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_all_layers_come(links: str) -> None:
    done = run(links)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"240 blocks of 7808 bytes came over {links}, all bytes are right;")


@pytest.mark.slow
@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_prefill_hears_that_the_decoder_is_gone(links: str) -> None:
    """It dies with three layers, when the prefill process may have sent all, and waits for the answer."""
    done = run(links, "--lose", "3")
    assert (done.returncode, done.stdout) == (1, "")
    told = r"6 layers were not all taken, the decoder is gone: (PeerLost|Unreachable)Error: .*\n"
    assert re.fullmatch(told, done.stderr)
