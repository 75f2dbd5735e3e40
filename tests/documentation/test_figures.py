"""The README's pictures show what was recorded, and what its tables say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("failover.svg", "notebook.svg", "speed.svg")


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs/figures/draw.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_those_of_the_records(draw: ModuleType, name: str) -> None:
    stored = (ROOT / "docs/_static" / name).read_text()
    assert stored == draw.pictures()[name], f"{name} is an older one: run python docs/figures/draw.py"
    assert len(stored) < 60_000
    tree = ElementTree.fromstring(stored)
    width, height = (float(tree.attrib[side]) for side in ("width", "height"))
    for text in tree.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(text.attrib["x"]) <= width and 0 <= float(text.attrib["y"]) <= height


def test_bars_are_the_figures_of_the_readme(draw: ModuleType) -> None:
    readme = (
        "| put 8 B, memory from `alloc` | 0.5 µs | mpi4py `Win.Allocate` 2 µs | 0.25 |\n"
        "| 8-byte messages, shared memory / tcp | 9 / 3.8 M/s | 2 / 0.2 M/s | - / 0.17 M/s | - / 0.19 M/s |\n"
    )
    put, _, shared, tcp, *_ = draw.PANELS
    assert draw.bars(put, readme) == [("pyfab", "0.5"), ("mpi4py", "2")]
    assert draw.bars(shared, readme) == [("pyfab", "9"), ("libfabric 1.17", "2")]
    assert [figure for _, figure in draw.bars(tcp, readme)] == ["3.8", "0.2", "0.17", "0.19"]


def test_the_readme_shows_each_with_words_for_those_who_do_not_see_it() -> None:
    shown = dict(re.findall(r"^!\[([^\]]+)\]\(docs/_static/(.+)\)$", (ROOT / "README.md").read_text(), re.M))
    assert sorted(shown.values()) == sorted(NAMES)
