"""Collects what a run of pytest finds, and writes it as JSON and as a page."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyfab
import pytest
from pyfab.bench._facts import remarks
from pyfab.testing._summary import EXPLAINED, summary

if TYPE_CHECKING:
    from pyfab.testing._session import Session

_PACKAGE = Path(__file__).parent
PREFIX = "pyfab_"  # begins the names of properties that tests record, as pytest_pyfab.RECORD


class Reporter:
    """A plugin that is registered where a report is asked for."""

    def __init__(self, config: pytest.Config, session_of: Callable[[pytest.Config], Session]) -> None:
        self._config, self._session_of = config, session_of
        self._files = {kind: Path(path) for kind in _WRITERS if (path := config.getoption(f"pyfab_{kind}"))}
        # Folders are made as pytest makes that of JUnit's report, but before the tests and not after them.
        for kind, path in self._files.items():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise pytest.UsageError(f"--pyfab-{kind} {path}: {error.strerror}") from None
        self._began = time.time()
        self._tests: dict[str, dict[str, Any]] = {}
        self._recorded: list[tuple[str, dict[str, Any]]] = []
        self._status = int(pytest.ExitCode.INTERNAL_ERROR)
        self._run: pytest.Session | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        name = self._name(report.nodeid)
        test = self._tests.setdefault(
            report.nodeid, {"name": name, "outcome": "passed", "seconds": 0.0, "message": ""}
        )
        test["seconds"] = round(test["seconds"] + report.duration, 4)
        outcome = _outcome(report)
        if outcome != "passed":
            test["outcome"] = outcome
            test["message"] = "\n".join(filter(None, (test["message"], _message(report))))
        if report.when == "teardown":
            for key, value in report.user_properties:
                if key.startswith(PREFIX):
                    values = json.loads(str(value))
                    self._recorded.append((key.removeprefix(PREFIX), {"test": name, **values}))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file of tests was read, or could not be."""
        if report.failed:
            self._tests[report.nodeid] = {
                "name": self._name(report.nodeid),
                "outcome": "error",
                "seconds": 0.0,
                "message": report.longreprtext,
            }

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """All tests and their fixtures have ended."""
        self._run, self._status = session, int(exitstatus)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Writes the reports and says where; shows a table of the links, if that is asked for."""
        found = self.found()
        if self._config.getoption("pyfab_summary") and found["links"]:
            terminalreporter.section("links")
            for line in [*repr(summary(found)).splitlines(), EXPLAINED, *remarks(found["machines"])]:
                terminalreporter.write_line(line)
        for kind, path in self._files.items():
            try:
                path.write_text(_WRITERS[kind](found), encoding="utf-8")
            except OSError as error:
                terminalreporter.write_line(f"pyfab: no report in {path}: {error.strerror}", red=True)
                if self._run is not None and self._run.exitstatus == pytest.ExitCode.OK:
                    self._run.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            else:
                terminalreporter.write_line(f"pyfab: report in {path}")

    def _name(self, nodeid: str) -> str:
        """The name of a test: its path in the suite, or else from where pytest was started."""
        file, colons, test = nodeid.partition("::")
        path = self._config.rootpath / file
        if path.is_relative_to(_PACKAGE):
            return f"{path.relative_to(_PACKAGE)}{colons}{test}"
        return f"{os.path.relpath(path, self._config.invocation_params.dir)}{colons}{test}"

    def found(self) -> dict[str, Any]:
        """The report, as JSON takes it."""
        session = self._session_of(self._config)
        tests = list(self._tests.values())
        began = datetime.datetime.fromtimestamp(self._began, datetime.timezone.utc)
        return {
            "pyfab": pyfab.__version__,
            "began": began.isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._began, 2),
            "exit_status": self._status,
            "arguments": _without_secrets(self._config.invocation_params.args),
            "counts": {
                outcome: sum(test["outcome"] == outcome for test in tests)
                for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
            },
            "machines": session.facts,
            "links": session.links,
            **{f"{kind}s": [] for kind in ("measurement", "expectation", "soak", "drill")},
            **_by_kind(self._recorded),
            "tests": tests,
        }


def _by_kind(recorded: list[tuple[str, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for kind, values in recorded:
        kinds.setdefault(f"{kind}s", []).append(values)
    return kinds


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return str(report.outcome)


def _message(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext


def _without_secrets(arguments: Any) -> list[str]:
    texts, hidden = [], False
    for text in map(str, arguments):
        name, equals, _ = text.partition("=")
        secret = name == "--pyfab-token"
        texts.append("…" if hidden else f"{name}=…" if secret and equals else text)
        hidden = secret and not equals
    return texts


def _as_json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _as_html(found: dict[str, Any]) -> str:
    from pyfab.testing._html import page

    return page(found)


_WRITERS = {"json": _as_json, "html": _as_html}
