"""The map of the sources leads to what is there: each file that it names, and each function."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "src" / "cpp"
TABLE = re.search(r"^## Where is it\?\n(.*?)^## ", (CORE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
assert TABLE
ROWS = [line for line in TABLE[1].splitlines() if line.startswith("| ") and not line.startswith("| what")]
BELOW = [
    CORE,
    CORE / "providers",
    CORE / "fabric" / "session" / "frames",
    ROOT / "src",
    ROOT,
    ROOT / "src" / "pyfab" / "launch",
]
SUFFIXES = ["", ".h", ".cpp", ".py"]
FILES = [*(ROOT / "src").rglob("*.h"), *(ROOT / "src").rglob("*.cpp"), *(ROOT / "src").rglob("*.py")]
SOURCES = "\n".join(path.read_text() for path in [*FILES, ROOT / "tests" / "conformance" / "support.py"])


def subject(row: str) -> str:
    return row.split("|")[1].strip()


def leads_somewhere(name: str, before: Path | None) -> Path | None:
    """The file or folder of a name; a name without a folder lies beside the one named before."""
    beside = [before, before.parent] if before else []
    for base in [*beside, *BELOW]:
        if found := next(
            (base / (name + suffix) for suffix in SUFFIXES if (base / (name + suffix)).exists()), None
        ):
            return found
        if "*" in name and (found := next(iter(sorted(base.glob(name))), None)):
            return found
    return None


@pytest.mark.parametrize("row", ROWS, ids=subject)
def test_what_the_map_names_is_there(row: str) -> None:
    before = None
    for name in re.findall(r"`([^`]+)`", row):
        if re.fullmatch(r"[a-z_0-9*/.]+", name) and (
            "/" in name or name.endswith((".py", ".h", ".cpp", ".md"))
        ):
            found = leads_somewhere(name, before)
            assert found is not None, f"{name} is not there"
            before = found
        elif parts := re.fullmatch(r"(?:[A-Z]\w+(?:::|\.))*(\w+)(?:\(\))?", name):
            function = re.compile(rf"\b{parts[1]}\b")
            assert function.search(SOURCES) or leads_somewhere(name, before), f"nothing is called {name}"


def test_the_map_has_rows() -> None:
    assert len(ROWS) > 40
