"""`scripts/litmus-tests` knows each test that tries as often as FAB_ROUNDS says, and finds something to run in each file."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LISTED = re.findall(r"^about .* (\S+)$", (ROOT / "scripts/litmus-tests").read_text(), re.MULTILINE)
READS = re.compile(
    r"\bFAB_ROUNDS\b|^from \S*\b(litmus|support) import (\([^)]*|.*)\b(litmus|rounds)\b", re.MULTILINE
)
MARK = re.compile(r"^@(pytest\.mark\.)?litmus$", re.MULTILINE)
SUITE = "src/pyfab/testing/suite"
ELSEWHERE = {
    "tests/test_litmus.py": "is this one",
    "tests/litmus.py": "is what the others read",
    f"{SUITE}/support.py": "likewise",
    f"{SUITE}/conftest.py": "declares the mark",
    "tests/checkpoint/test_checkpoint.py": "kills ranks in rounds of several seconds (docs/reliability.md)",
    "tests/rdma/test_verbs.py": "runs in a guest, with rounds of its own (tests/rdma/README.md)",
}


def text_of(path: str) -> str:
    return (ROOT / path).read_text()


def sources(pattern: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}


def program(path: str) -> str:
    """Which is made of a file in C++."""
    return path.removeprefix("tests/cpp/").removesuffix(".cpp").replace("/", "_")


def collected(path: str) -> list[str]:
    """The file, and those of the validation suite whose tests it has."""
    stems = re.findall(r"^from pyfab\.testing\.suite\.(\w+) import \*", text_of(path), re.MULTILINE)
    return [path, *(f"{SUITE}/{stem}.py" for stem in stems)]


def test_each_file_that_reads_how_many_rounds_is_listed() -> None:
    readers = {
        path
        for path in sources("tests/**/*.py") | sources(f"{SUITE}/*.py") | sources("tests/cpp/**/*.cpp")
        if path not in ELSEWHERE and READS.search(text_of(path))
    }
    listed = {each for name in LISTED if name.endswith(".py") for each in collected(name)}
    missing = {path for path in readers - listed if program(path) not in LISTED}
    assert len(readers) >= 20
    assert missing == set(), "they belong into scripts/litmus-tests, or ELSEWHERE with a reason"


def test_what_is_listed_is_there_and_marked() -> None:
    programs = {program(path) for path in sources("tests/cpp/**/*_test.cpp")}
    for name in LISTED:
        if name.endswith(".py"):
            assert any(MARK.search(text_of(path)) for path in collected(name)), f"no litmus test in {name}"
        else:
            assert name in programs
