"""`pytest --requirements`: which tests show which requirement of docs/requirements.md to hold.

Tests of the C++ core carry numbers in a comment on the line before. The report is the whole run: tests are collected, not
executed. It fails where a `req` marker names a number
that the document does not have, where a number stands there twice, and where a documented number has no test.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCUMENT = Path("docs", "requirements.md")
NUMBER = re.compile(r"^- \*\*([A-Z]+-\d+[a-z]?)\b", re.MULTILINE)
CPP_TEST = re.compile(r'^// ([A-Z]+-\d+[a-z]?(?:, [A-Z]+-\d+[a-z]?)*)\nTEST_CASE\("([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Report:
    """Requirement numbers against the tests that carry them."""

    documented: list[str]  # in the document's order
    tests: dict[str, list[str]]  # by number; parameters of a test are left out

    @property
    def unknown(self) -> list[str]:
        return sorted(self.tests.keys() - set(self.documented))

    @property
    def twice(self) -> list[str]:
        return [number for number, count in Counter(self.documented).items() if count > 1]

    @property
    def untested(self) -> list[str]:
        return [number for number in self.documented if number not in self.tests]

    @property
    def problems(self) -> list[str]:
        return [
            *(f"{number}: not in {DOCUMENT}; see {', '.join(self.tests[number])}" for number in self.unknown),
            *(f"{number}: stands in {DOCUMENT} more than once" for number in self.twice),
            *(f"{number}: has no test" for number in self.untested),
        ]


def marked_in_cpp(root: Path) -> list[tuple[str, tuple[str, ...]]]:
    """The name and the requirement numbers of each such test of the C++ core."""
    return [
        (f"{path.relative_to(root)}: {name}", tuple(numbers.split(", ")))
        for path in sorted(root.glob("tests/cpp/**/*.cpp"))
        for numbers, name in CPP_TEST.findall(path.read_text())
    ]


def make_report(document: str, marked: list[tuple[str, tuple[str, ...]]]) -> Report:
    """`marked`: the name and the requirement numbers of each marker of each test."""
    tests: dict[str, list[str]] = {}
    for name, numbers in marked:
        for number in numbers:
            names = tests.setdefault(number, [])
            if name not in names:
                names.append(name)
    return Report(NUMBER.findall(document), tests)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"show the tests of each requirement in {DOCUMENT}; run none"
    parser.addoption("--requirements", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("requirements"):
        config.pluginmanager.register(RequirementsPlugin(config), "requirements-report")


class RequirementsPlugin:
    """Takes the place of the test run."""

    def __init__(self, config: pytest.Config) -> None:
        self.root = config.rootpath
        self.document = self.root / DOCUMENT
        if not self.document.is_file():
            raise pytest.UsageError(f"--requirements needs {self.document}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:  # errors of collection: pytest's own loop reports them
            return None
        marked = [
            (item.nodeid.partition("[")[0], mark.args)
            for item in session.items
            for mark in item.iter_markers("req")
        ]
        self.report = make_report(self.document.read_text(), marked + marked_in_cpp(self.root))
        session.testsfailed = len(self.report.problems)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not hasattr(self, "report"):
            return
        terminalreporter.section("requirements")
        width = max(map(len, self.report.documented), default=0)
        for number in self.report.documented:
            first, *others = self.report.tests.get(number, ["-"])
            terminalreporter.line(f"{number:{width}}  {first}")
            for name in others:
                terminalreporter.line(f"{'':{width}}  {name}")
        tested = len(self.report.documented) - len(self.report.untested)
        terminalreporter.line(f"{tested} of {len(self.report.documented)} requirements have tests")
        for problem in self.report.problems:
            terminalreporter.line(problem, red=True)
