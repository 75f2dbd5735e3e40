"""The rooms of the Python package keep their order, and no two modules need each other."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "pyfab"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")

# A module imports from its own room, or from one that stands before it.
ROOMS = (
    "versions",
    "display",
    "logs",
    "core",
    "meeting",
    "group",
    "transport",
    "tracing",
    "launch",
    "notebook",
    "tools",
    "bench",
    "data",
    "weights",
    "checkpoint",
    "store",
    "datasets",
    "testing",
    "torch",
    "ray",
    "fsspec",
    "cli",
    "__main__",
)
MOST_FILES = 20  # of a room, beside the rooms in it


def name_of(path: Path) -> str:
    parts = ("pyfab", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def room_of(module: str) -> str:
    return module.split(".")[1]


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The modules of the package that this one imports, for types only or inside functions as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and (node.module or "").split(".")[0] == "pyfab"
        ):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in NAMES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "pyfab"}
    return frozenset(found & NAMES)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of nodes each of which leads to all others (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            circle = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(circle) > 1 or node in graph.get(node, ()):
                found.append(sorted(circle))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_every_module_is_in_a_room():
    assert {room_of(name) for name in NAMES} == set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_do_not_run_up(path):
    room = room_of(name_of(path))
    for other in imports_of(path):
        assert ROOMS.index(room_of(other)) <= ROOMS.index(room), f"{name_of(path)} may not import {other}"


def test_the_extension_imports_modules_that_exist():
    sources = (PACKAGE.parent / "cpp" / "python").rglob("*.cpp")
    named = {
        name for path in sources for name in re.findall(r'import\("(pyfab\.[\w.]+)"\)', path.read_text())
    }
    assert named
    assert named <= NAMES


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_small_enough_to_be_known(room):
    folders = {path.parent for path in MODULES if room_of(name_of(path)) == room}
    for folder in folders - {PACKAGE}:
        assert len(list(folder.glob("*.py"))) <= MOST_FILES, (
            f"{folder.name}: make a room of what belongs together"
        )


def test_no_two_modules_need_each_other():
    graph = {name_of(path): set(imports_of(path)) - {name_of(path)} for path in MODULES}
    assert circles(graph) == []
