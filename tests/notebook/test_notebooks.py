"""Each notebook runs from top to bottom in a real kernel, and shows what it was stored with.

What differs from run to run is in cells that are tagged "varies". `scripts/notebooks` stores outputs.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyfab
import pytest
from kernels import executed
from rails import RAILS, WHY_NOT

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LONG = {"addresses_and_groups", "data_for_training", "links_and_failover", "measuring", "mpi_over_rails"}
"""They take 10 seconds and more."""


def reason_against_mpi() -> str:
    """Why the job of a notebook cannot run here; empty if it can."""
    if not (Path(pyfab._core.__file__).parent / "libfabric/libpyfab-fi.so").is_file():
        return "this build has no provider for libfabric: install libfabric-dev and build again"
    if not shutil.which("mpirun") or importlib.util.find_spec("mpi4py") is None:
        return "Open MPI or mpi4py is not installed"
    rail = ["ip", "link", "add", "r0", "type", "veth", "peer", "name", "r1"]
    tried = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", *rail], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip()


def shown(cell: Any) -> list[tuple[str, str]]:
    """What a reader sees: texts, those of one stream as one, and the types of what is more than text."""
    found: list[tuple[str, str]] = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream" and found and found[-1][0] == output.name:
            found[-1] = (output.name, found[-1][1] + output.text)
        elif output.output_type == "stream":
            found.append((output.name, output.text))
        else:
            found.append((", ".join(sorted(output.data)), output.data.get("text/plain", "")))
    return found


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])
        for path in NOTEBOOKS
    ],
)
def test_notebook(path: Path, tmp_path: Path) -> None:
    for name in ("nbclient", "ipykernel", *(["matplotlib"] if "matplotlib" in path.read_text() else [])):
        pytest.importorskip(name, reason=f"{name} is not installed")
    if path.stem == "links_and_failover" and RAILS is None:
        pytest.skip(WHY_NOT)
    if path.stem == "mpi_over_rails" and (why := reason_against_mpi()):
        pytest.skip(why)
    import nbformat

    stored = nbformat.read(path, as_version=4)
    assert any(shown(cell) for cell in stored.cells), "stored without outputs; run scripts/notebooks"
    notebook = executed(path, tmp_path)
    for before, now in zip(stored.cells, notebook.cells, strict=True):
        if "varies" in now.metadata.get("tags", []):
            assert bool(shown(before)) == bool(shown(now)), now.source
        else:
            assert shown(now) == shown(before), now.source
