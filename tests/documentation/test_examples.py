"""Each public function and method is shown by an example that runs."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_docs import PAGES, blocks

ROOT = Path(__file__).parents[2]
PARTS = "pyfab", "pyfab.checkpoint", "pyfab.data", "pyfab.store", "pyfab.torch", "pyfab.weights"

NOT_SHOWN = {
    "Plan.check": "a step of Reader.pull",
    "Plan.missing": "a step of Reader.pull",
    "Plan.settle": "a step of Reader.pull",
    "Plan.vectors": "a step of Reader.pull",
    "Snapshot.samples": "what pyfab.metrics makes of it",
}


def calls(part: str) -> Iterator[str]:
    """The functions of a module, and "Class.method" of its classes, except exceptions and enums."""
    module = importlib.import_module(part)
    for name in module.__all__:
        found = getattr(module, name)
        if not inspect.isclass(found):
            if callable(found):
                yield name
        elif not issubclass(found, BaseException | enum.Enum):
            bases = [base for base in found.__mro__ if base.__module__.startswith("pyfab")]
            for method, value in (item for base in bases for item in vars(base).items()):
                if not method.startswith("_") and (
                    callable(value) or isinstance(value, classmethod | staticmethod)
                ):
                    yield f"{name}.{method}"


@pytest.fixture(scope="module")
def shown() -> set[str]:
    """What the Python of pages, notebooks and examples/ names; methods have a dot in front."""
    texts = [text for page in PAGES for _, text in blocks(page, "python")]
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        texts += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    texts += [path.read_text() for path in (ROOT / "examples").glob("*.py")]
    return set(re.findall(r"\.?\b[A-Za-z_]\w*", "\n".join(texts)))


@pytest.mark.parametrize("part", PARTS)
def test_each_call_is_in_examples_that_run(part: str, shown: set[str]) -> None:
    if part == "pyfab.torch":
        pytest.importorskip("torch")
    missing = []
    for call in calls(part):
        of, _, name = call.rpartition(".")
        if call not in NOT_SHOWN and f".{name}" not in shown and (of or name not in shown):
            missing.append(call)
    assert not missing
