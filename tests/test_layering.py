"""The dependency rules between the layers hold, and no C++ test is left out of the build.

The order is base <- fabric <- providers/<one> <- providers/providers.cpp <- python <- src/pyfab.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CPP = ROOT / "src" / "cpp"
PACKAGE = ROOT / "src" / "pyfab"

LAYERS = ("base", "fabric", "providers", "python")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
PYTHON_HEADER = re.compile(r"^(pybind11/|Python\.h$)")
CONDITION_ON_BUILD = re.compile(r"^\s*#\s*(el)?if.*\bFAB_HAS_", re.MULTILINE)
RDMA_HEADER = re.compile(r"^(infiniband|rdma)/")

SOURCES = sorted(path for path in CPP.rglob("*") if path.suffix in {".h", ".cpp"})
MODULES = sorted(PACKAGE.rglob("*.py"))


def cpp_name(path: Path) -> str:
    return path.relative_to(CPP).as_posix()


def module_name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def provider_of(name: str) -> str | None:
    """'shm' of 'providers/shm/shm_path.h'; None of what belongs to no single provider."""
    parts = name.split("/")
    return parts[1] if parts[0] == "providers" and len(parts) > 2 else None


def may_include(source: str, header: str) -> bool:
    """Whether a project file may include a project header; both relative to src/cpp."""
    layer, other = source.split("/")[0], header.split("/")[0]
    if layer == "providers":
        if source in {"providers/providers.cpp", "providers/providers.h"}:
            return other != "python"
        return other in {"base", "fabric"} or (
            provider_of(source) is not None and provider_of(header) == provider_of(source)
        )
    if layer == "python":
        return other in {"base", "fabric", "python"} or header == "providers/providers.h"
    return LAYERS.index(other) <= LAYERS.index(layer)


@pytest.mark.parametrize(
    "source, header, allowed",
    [
        ("base/fd.cpp", "base/fd.h", True),
        ("base/fd.cpp", "fabric/error.h", False),
        ("fabric/name.cpp", "base/wire.h", True),
        ("fabric/name.cpp", "providers/providers.h", False),
        ("providers/lnx/lnx_provider.cpp", "fabric/provider.h", True),
        ("providers/lnx/lnx_provider.cpp", "providers/shm/shm_path.h", False),
        ("providers/lnx/lnx_provider.cpp", "providers/providers.h", False),
        ("providers/providers.cpp", "providers/shm/shm_provider.h", True),
        ("providers/providers.cpp", "python/bind.h", False),
        ("python/module.cpp", "providers/providers.h", True),
        ("python/module.cpp", "providers/shm/shm_path.h", False),
    ],
)
def test_the_rule_itself(source, header, allowed):
    assert may_include(source, header) is allowed


def test_the_core_is_found():
    assert {cpp_name(path).split("/")[0] for path in SOURCES} <= set(LAYERS)
    assert MODULES
    assert SOURCES


@pytest.mark.parametrize("path", SOURCES, ids=cpp_name)
def test_includes_follow_the_layers(path):
    name = cpp_name(path)
    for bracket, header in INCLUDE.findall(path.read_text()):
        if bracket == '"':
            assert (CPP / header).is_file(), f'{name}: "{header}" is not a path below src/cpp'
            assert may_include(name, header), f"{name} may not include {header}"
        else:
            assert header.split("/")[0] not in LAYERS or not (CPP / header).is_file(), (
                f"{name}: project header in <{header}>"
            )
            assert name.startswith("python/") or not PYTHON_HEADER.match(header), (
                f"{name}: {header} belongs to python/"
            )
            assert provider_of(name) == "verbs" or not RDMA_HEADER.match(header), (
                f"{name}: {header} belongs to verbs"
            )


@pytest.mark.parametrize("path", SOURCES, ids=cpp_name)
def test_only_the_provider_list_asks_what_was_built(path):
    if cpp_name(path) != "providers/providers.cpp":
        assert not CONDITION_ON_BUILD.search(path.read_text())


@pytest.mark.parametrize("path", SOURCES, ids=cpp_name)
def test_python_stays_in_its_folder(path):
    if not cpp_name(path).startswith("python/"):
        assert not re.search(r"\b(py::|pybind11\b|PyObject\b|Py_[A-Z])", path.read_text())


# Types that exist to be inherited. Before Python 3.12 only a type of C can be a buffer; and `window[peer][index]` of a
# type of C takes a third of the time that it takes through methods in Python.
BASES = ("_core.Exporter", "_core.RemoteArrayCore", "_core.WindowCore")


def core_names(tree: ast.AST) -> set[str]:
    """The names under which a module knows the extension or things in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "_core" or (node.module or "").split(".")[-1] == "_core":
                    names.add(alias.asname or alias.name)
        elif isinstance(node, ast.Import):
            names |= {alias.asname or "pyfab" for alias in node.names if alias.name == "pyfab._core"}
    return names


def root_name(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_python_holds_core_objects(path):
    """Private modules alone know the extension, and they neither inherit from nor patch what is in it."""
    tree = ast.parse(path.read_text())
    names = core_names(tree)
    assert not names or path.name.startswith("_"), f"{path.name} is public: write it against the public names"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [base for base in node.bases if ast.unparse(base) not in BASES]
            inherited = {root_name(base) for base in bases} & names
            assert not inherited, f"{path.name}:{node.lineno}: {node.name} inherits from the extension"
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            patched = {root_name(target) for target in targets if isinstance(target, ast.Attribute)} & names
            assert not patched, f"{path.name}:{node.lineno}: patches the extension"
        if isinstance(node, ast.Call) and root_name(node.func) == "setattr" and node.args:
            assert root_name(node.args[0]) not in names, f"{path.name}:{node.lineno}: patches the extension"


def test_every_cpp_test_is_built():
    lists = ROOT / "tests" / "cpp" / "CMakeLists.txt"
    pattern = re.search(r"file\(GLOB_RECURSE test_sources .*?(\S+)\)", lists.read_text())
    assert pattern, f"{lists} no longer collects its tests by a pattern"
    built = set(lists.parent.rglob(pattern[1]))
    # A test is what uses the test framework, whatever its name, and wherever a *_test.cpp lies.
    there = {path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*_test.cpp")}
    there |= {path for path in lists.parent.rglob("*.cpp") if "TEST_CASE" in path.read_text()}
    assert there - built == set()
