"""What the documentation says runs: Python blocks, commands, links, names of the API.

The ```python blocks of a page are one program, which runs in a process of its own, as somebody has it who copies what is shown;
each block of the README is one by itself.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyfab
import pyfab.checkpoint
import pyfab.data
import pyfab.store
import pyfab.weights
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
TIMEOUT = 100

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Line number and text of each."""
    text = page.read_text()
    return [
        (text[: match.start()].count("\n") + 1, match[2])
        for match in FENCE.finditer(text)
        if match[1] == language
    ]


def programs() -> list[Any]:
    """Each page that has Python, and which of its blocks are a program, as parameters of a test."""
    found = []
    for page in PAGES:
        number = len(blocks(page, "python"))
        if page.stem == "README":
            found += [pytest.param(page, slice(i, i + 1), id=f"README-{i + 1}") for i in range(number)]
        elif number:
            found.append(pytest.param(page, slice(None), id=page.stem))
    return found


def program(page: Path, which: slice) -> tuple[str, str]:
    """The Python of a page, on the lines where it stands there, up to a block that needs what is not installed; and that."""
    lines = [""] * (page.read_text().count("\n") + 1)
    for start, text in blocks(page, "python")[which]:
        missing = [name for name in IMPORT.findall(text) if importlib.util.find_spec(name) is None]
        if "pyfab://" in text and not importlib.metadata.entry_points(group="fsspec.specs", name="pyfab"):
            missing.append("the entry point by which fsspec finds pyfab")
        if missing:
            return "\n".join(lines), f"{missing[0]} is not installed: nothing from line {start} on was run"
        found = text.splitlines()
        lines[start : start + len(found)] = found
    return "\n".join(lines), ""


RECIPES = {"ray": "ray", "dask": "distributed"}  # programs of docs/data.md, and what they need


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_run_where_their_library_is(name: str, tmp_path: Path) -> None:
    pytest.importorskip(RECIPES[name], reason=f"{name} is not installed")
    (text,) = (text for _, text in blocks(ROOT / "docs/data.md", "py") if f" {RECIPES[name]}" in text)
    script = tmp_path / "recipe.py"
    script.write_text(text)
    ran = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == "[[5, 105], [5, 105]]"


@pytest.mark.parametrize("page,which", programs())
def test_examples_run(page: Path, which: slice, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem.replace('-', '_')}.py"
    text, missing = program(page, which)
    script.write_text(text)
    ran = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    if missing:
        pytest.skip(missing)


@functools.cache
def explained(command: str) -> str:
    """What `pyfab COMMAND --help` prints."""
    ran = subprocess.run(
        [sys.executable, "-m", "pyfab", *command.split(), "--help"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, f"pyfab {command}: {ran.stderr}"
    return ran.stdout


def commands(page: Path) -> list[list[str]]:
    """The words of each simple command of its shell blocks."""
    found: list[list[str]] = []
    for _, text in blocks(page, "sh"):
        joined = text.replace("\\\n", " ")
        for line in joined.splitlines():
            words = shlex.split(line, comments=True)
            while words:
                end = next((i for i, word in enumerate(words) if word in ("&&", "|", "&", ";")), len(words))
                found.append(words[:end])
                words = words[end + 1 :]
    return [words for words in found if words]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_exist_with_their_options(page: Path) -> None:
    for words in commands(page):
        for word in words:
            if word.startswith(("scripts/", "benchmarks/", "tests/", "examples/", ".ci/")):
                assert (ROOT / word).exists(), f"{word} in: {shlex.join(words)}"
        called = [i for i, word in enumerate(words) if word == "pyfab" or word.endswith("bin/pyfab")]
        rest = words[called[0] + 1 :] if called else []
        if rest:
            text = explained("" if rest[0].startswith("-") else rest[0])
            for word in rest:
                assert not word.startswith("--") or word.partition("=")[0] in text, shlex.join(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_program_is_hidden(page: Path) -> None:
    """A reader can copy the blocks that are run."""
    assert not re.search(r"<!--\s*python", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_reference_names_everything() -> None:
    reference = (ROOT / "docs" / "api.md").read_text()
    parts = pyfab, pyfab.checkpoint, pyfab.data, pyfab.store, pyfab.weights
    names = [name for part in parts for name in part.__all__]
    missing = [name for name in names if not re.search(rf"\b{name}\b", reference)]
    assert not missing
