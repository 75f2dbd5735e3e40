"""The dependency rules between the rooms hold, and no C++ test is left out of the build."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CPP = ROOT / "src" / "cpp"
CPP_TESTS = ROOT / "tests" / "cpp"
# Rooms of tests that stand for no room of the sources: whole nodes on a virtual clock, whole nodes whose calls fail, and
# protocols of several rooms in every order that there is.
OVER_EVERYTHING = {".", "simulation", "failing_calls", "model"}
PACKAGE = ROOT / "src" / "pyfab"

# The folders of src/cpp. A file includes what lies in its own room or in one that stands before it.
ROOMS = (
    "base",
    "base/locks",
    "base/process",
    "base/network",
    "base/memory",
    "base/queues",
    "base/bytes",
    "base/crypto",
    "fabric/types",
    "fabric/noncoherent",
    "fabric/segment",
    "fabric/memory",
    "fabric/address_vector",
    "fabric/completion",
    "fabric/messages",
    "fabric",
    "fabric/registration",
    "fabric/context",
    "fabric/domain",
    "fabric/session/frames",
    "fabric/session",
    "fabric/admission",
    "data",
    "providers/shm",
    "providers/tcp",
    "providers/verbs/device",
    "providers/verbs/exchange",
    "providers/verbs/connection",
    "providers/verbs",
    "providers/lnx/flows",
    "providers/lnx/rails",
    "providers/lnx",
    "providers",
    "fab",
    "python",
    "python/memory",
    "python/operations",
    "python/context",
    "python/domain",
    "libfabric/plugin",
    "libfabric/queues",
    "libfabric/domain",
    "libfabric/endpoint",
    "libfabric",
)
MOST_FILES = 20  # of a room, beside the rooms in it
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
PYTHON_HEADER = re.compile(r"^(pybind11/|Python\.h$)")
CONDITION_ON_BUILD = re.compile(r"^\s*#\s*(el)?if.*\bFAB_HAS_", re.MULTILINE)
RDMA_HEADER = re.compile(r"^(infiniband/|rdma/rdma_)")
LIBFABRIC_HEADER = re.compile(r"^rdma/(fi_|fabric\.h|providers/)")
KNOW_THE_LINKS = {"providers/providers.cpp", "providers/compact_name.cpp"}  # and their parts of names
LEAVES = {
    "fab",
    "python",
    "libfabric",
}  # faces of the core: nothing else includes them, nor one of them the other

SOURCES = sorted(path for path in CPP.rglob("*") if path.suffix in {".h", ".cpp"})
MODULES = sorted(PACKAGE.rglob("*.py"))


def cpp_name(path: Path) -> str:
    return path.relative_to(CPP).as_posix()


def module_name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(name: str) -> str:
    """'fabric/session' of 'fabric/session/frames/frame.h'."""
    return name.rpartition("/")[0]


def provider_of(name: str) -> str | None:
    """'shm' of 'providers/shm/path.h'; None of what belongs to no single provider."""
    rooms = room_of(name).split("/")
    return rooms[1] if rooms[0] == "providers" and len(rooms) > 1 else None


def may_include(source: str, header: str) -> bool:
    """Whether a project file may include a project header; both relative to src/cpp."""
    room, other = room_of(source), room_of(header)
    if provider_of(header) not in {None, provider_of(source)}:
        return source in KNOW_THE_LINKS
    if (leaf := room.partition("/")[0]) in LEAVES and other.startswith("providers"):
        return header in {"providers/providers.h", "providers/compact_name.h"}
    if other.partition("/")[0] in LEAVES:
        return leaf == other.partition("/")[0] and ROOMS.index(other) <= ROOMS.index(room)
    return ROOMS.index(other) <= ROOMS.index(room)


@pytest.mark.parametrize(
    "source, header, allowed",
    [
        ("base/network/poller.cpp", "base/fd.h", True),
        ("base/fd.h", "base/network/poller.h", False),
        ("base/fd.cpp", "fabric/types/error.h", False),
        ("fabric/types/name.cpp", "base/bytes/wire.h", True),
        ("fabric/types/name.cpp", "fabric/provider.h", False),
        ("fabric/provider.h", "fabric/types/name.h", True),
        ("fabric/session/frames/frame.cpp", "fabric/context/context.h", True),
        ("fabric/context/context.cpp", "fabric/session/frames/frame.h", False),
        ("fabric/types/name.cpp", "providers/providers.h", False),
        ("providers/lnx/provider.cpp", "fabric/provider.h", True),
        ("providers/lnx/provider.cpp", "providers/shm/path.h", False),
        ("providers/lnx/provider.cpp", "providers/providers.h", False),
        ("providers/providers.cpp", "providers/shm/provider.h", True),
        ("providers/compact_name.cpp", "providers/shm/layout.h", True),
        ("providers/providers.cpp", "python/bind.h", False),
        ("python/module.cpp", "providers/providers.h", True),
        ("python/module.cpp", "providers/shm/path.h", False),
        ("libfabric/provider.cpp", "providers/providers.h", True),
        ("libfabric/provider.cpp", "providers/shm/path.h", False),
        ("libfabric/fabric.cpp", "libfabric/endpoint/endpoint.h", True),
        ("libfabric/queues/cq.h", "libfabric/domain/domain.h", False),
        ("libfabric/fabric.cpp", "python/bind.h", False),
        ("python/module.cpp", "libfabric/fabric.h", False),
    ],
)
def test_the_rule_itself(source, header, allowed):
    assert may_include(source, header) is allowed


def test_the_core_is_found():
    assert {room_of(cpp_name(path)) for path in SOURCES} == set(ROOMS)
    assert MODULES


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_small_enough_to_be_known(room):
    files = [path for path in SOURCES if room_of(cpp_name(path)) == room]
    assert len(files) <= MOST_FILES, f"{room} has {len(files)} files: make a room of what belongs together"


def test_tests_lie_in_the_rooms_of_what_they_test():
    rooms = {path.parent.relative_to(CPP_TESTS).as_posix() for path in CPP_TESTS.rglob("*_test.cpp")}
    assert rooms - OVER_EVERYTHING <= set(ROOMS)


@pytest.mark.parametrize("path", SOURCES, ids=cpp_name)
def test_includes_follow_the_rooms(path):
    name = cpp_name(path)
    for bracket, header in INCLUDE.findall(path.read_text()):
        if bracket == '"':
            made = (CPP / f"{header}.in").is_file()  # by the build
            assert made or (CPP / header).is_file(), f'{name}: "{header}" is not a path below src/cpp'
            assert may_include(name, header), f"{name} may not include {header}"
        else:
            assert not (CPP / header).is_file(), f"{name}: project header in <{header}>"
            assert name.startswith("python/") or not PYTHON_HEADER.match(header), (
                f"{name}: {header} belongs to python/"
            )
            assert provider_of(name) == "verbs" or not RDMA_HEADER.match(header), (
                f"{name}: {header} belongs to verbs"
            )
            assert name.startswith("libfabric/") or not LIBFABRIC_HEADER.match(header), (
                f"{name}: {header} belongs to libfabric/"
            )


@pytest.mark.parametrize("path", sorted((CPP / "fab").glob("*.h")), ids=cpp_name)
def test_what_is_installed_needs_nothing_else(path):
    if path.name != "state.h":
        project = [header for bracket, header in INCLUDE.findall(path.read_text()) if bracket == '"']
        assert all(room_of(header) == "fab" and header != "fab/state.h" for header in project)


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


KNOW_THE_CORE = {
    "versions.py",
    "__init__.py",
    "core",
    "group",
    "transport",
    "tracing",
    "tools",
    "bench",
    "data",
}


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
    """Some rooms alone know the extension, and they neither inherit from nor patch what is in it."""
    tree = ast.parse(path.read_text())
    names = core_names(tree)
    room = path.relative_to(PACKAGE).parts[0]
    assert not names or room in KNOW_THE_CORE, f"{module_name(path)}: write it against the public names"
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
