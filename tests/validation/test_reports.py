"""What ``pyfab validate`` reports: as JUnit XML, as JSON, and as a page that a browser shows."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hosts import PYFAB, PYTEST, TOKEN, Hosts, Run
from pyfab.__main__ import main
from pyfab.testing import _session
from pyfab.testing._expect import load
from pyfab.testing._html import page
from pyfab.testing._summary import summary

CHROMIUM = shutil.which("chromium")

OWN_TESTS = """\
import numpy as np
import pytest


def test_wrong_sum(endpoint, peer):
    exposed = peer.expose(np.ones(8))
    assert exposed.content().sum() == 9, "<eight> & not nine"


def test_own_figure(pyfab_record):
    pyfab_record("temperature", celsius=41.5)


@pytest.fixture
def broken():
    raise RuntimeError("no such thing")


def test_broken(broken):
    pass
"""

EXPECTED = """\
[[expect]]
operation = "put"
size = 8
latency_us_max = 1e9

[[expect]]
operation = "get"
size = "4 KiB"
bandwidth_gb_s_min = 1e9
"""


@dataclass
class Reports:
    status: int
    said: str
    junit: ET.Element
    json: dict[str, Any]
    page: Path


@pytest.fixture(scope="module")
def reports(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Of one run between two hosts, with measurements, a soak and failures of the user's own."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "test_own.py").write_text(OWN_TESTS)
    (folder / "expect.toml").write_text(EXPECTED)
    process = hosts.here.popen(
        f"import os; os.chdir({str(folder)!r})\n{PYFAB}",
        *["validate", "test_own.py", "--links", "tcp:r0", "--peer", hosts.agent, "--soak", "1.2"],
        *["--expect", "expect.toml", "--junit", "out.xml", "--json", "out.json", "--html", "out.html"],
        *[
            "--pytest",
            "-k 'soak or test_own or test_expectation or put-8 or get-8 or put-4096 or get-2097152'",
        ],
        PYFAB_TOKEN=TOKEN,
    )
    said, _ = process.communicate(timeout=100)
    assert (folder / "out.html").exists(), said
    return Reports(
        process.returncode,
        said,
        ET.parse(folder / "out.xml").getroot(),
        json.loads((folder / "out.json").read_text()),
        folder / "out.html",
    )


@pytest.mark.slow
def test_the_status_is_pytests(reports: Reports) -> None:
    assert reports.status == 1
    assert "2 failed" in reports.said and "1 error" in reports.said
    row = re.search(
        r"^tcp:r0 +(\S+) +(tcp\.0 \(.*\)) +\d+ +3 +\d+ +([0-9.]+) .* failed$", reports.said, re.MULTILINE
    )
    assert row, reports.said
    assert reports.json["exit_status"] == 1


def test_each_link_has_a_row() -> None:
    def measured(peer: str, operation: str, size: int, figure: float) -> dict[str, Any]:
        return {
            "links": "shm",
            "peer": peer,
            "operation": operation,
            "size": size,
            "latency_us": figure,
            "bandwidth_gb_s": figure,
        }

    peers = ["process", "host", "host-put", "elsewhere"]
    names = [
        "a[shm to process]",
        "b[shm to process-8]",
        "c[shm to host-put]",
        "d[shm to host-put-put]",
        "own",
    ]
    outcomes = ["passed", "skipped", "passed", "error", "failed"]
    found = {
        "links": [{"links": "shm", "peer": peer, "link": "shm.0", "how": "mapped"} for peer in peers],
        "tests": [{"name": n, "outcome": o} for n, o in zip(names, outcomes, strict=True)],
        "measurements": [
            measured("process", "put", 8, 0.41234),
            measured("process", "put", 4096, 7.5),
            measured("host", "get", 64, 1.0),
        ],
    }
    rows = summary(found)
    assert [(row.peer, row.passed, row.failed, row.skipped, row.verdict) for row in rows] == [
        ("process", 1, 0, 1, "passed"),
        ("host", 0, 0, 0, "not tested"),
        ("host-put", 1, 1, 0, "failed"),
        ("elsewhere", 0, 0, 0, "not tested"),
    ]
    assert [row[6:10] for row in rows[:2]] == [("0.412", "-", "7.5", "-"), ("-", "-", "-", "1")]
    assert summary(found | {"links": found["links"][:1]})[0].failed == 2  # the only link has all tests


@pytest.mark.slow
def test_junit(reports: Reports) -> None:
    cases = {case.get("name"): case for case in reports.junit.iter("testcase")}
    assert cases["test_wrong_sum"].find("failure") is not None
    assert cases["test_broken"].find("error") is not None
    assert "<eight> & not nine" in str(cases["test_wrong_sum"].find("failure").get("message"))  # type: ignore[union-attr]
    (figure,) = (p.get("value") for p in cases["test_own_figure"].iter("property"))
    assert json.loads(str(figure)) == {"celsius": 41.5}


@pytest.mark.slow
@pytest.mark.parametrize("load, busy", [(0.1, False), (50.0, True)])
def test_a_page_says_which_machine_was_busy(reports: Reports, load: float, busy: bool) -> None:
    found = copy.deepcopy(reports.json)
    assert all(machine["load"] >= 0 for machine in found["machines"].values())
    for machine in found["machines"].values():
        machine["load"] = 0.1
    found["machines"]["here"]["load"] = load
    assert ("node0 was busy with other work, at a load of 50" in page(found)) == busy


@pytest.mark.slow
def test_json(reports: Reports, hosts: Hosts) -> None:
    found = reports.json
    tests = {test["name"]: test for test in found["tests"]}
    assert sum(found["counts"].values()) == len(tests)
    wrong = tests["test_own.py::test_wrong_sum"]
    assert wrong["outcome"] == "failed" and "<eight> & not nine" in wrong["message"]
    broken = tests["test_own.py::test_broken"]
    assert broken["outcome"] == "error" and "no such thing" in broken["message"]
    assert tests["suite/test_soak.py::test_soak"]["outcome"] == "passed"
    assert {name: machine["host"] for name, machine in found["machines"].items()} == {
        "here": "node0",
        hosts.agent: "node1",
    }
    (link,) = found["links"]
    assert (link["links"], link["peer"]) == ("tcp:r0", hosts.agent)
    assert hosts.there.address() in link["how"]
    assert {(m["operation"], m["size"]) for m in found["measurements"]} >= {("put", 8), ("get", 2 << 20)}
    assert all(0 < m["latency_us"] <= m["latency_us_p99"] for m in found["measurements"])
    assert [(e["operation"], bool(e["missed"])) for e in found["expectations"]] == [
        ("put", False),
        ("get", True),
    ]
    (soak,) = found["soaks"]
    for one, other in (("here", "there"), ("there", "here")):
        assert soak[one]["operations"]["send"] == soak[other]["operations"]["recv"] > 0
        check_rates(soak, one)
    assert found["temperatures"][0]["celsius"] == 41.5
    assert TOKEN not in json.dumps(found)


def check_rates(soak: dict[str, Any], side: str) -> None:
    """They are those of equal parts of the time, which is no whole number of seconds, and add up to all operations."""
    rates, operations = soak[side]["each_second"], soak[side]["operations"]
    started = sum(number for kind, number in operations.items() if kind != "recv")
    assert sum(rates) / len(rates) * soak["seconds"] == pytest.approx(started, abs=soak["seconds"])


@pytest.mark.slow
def test_what_was_found_of_several_peers_stands_side_by_side(run: Run, tmp_path: Path) -> None:
    arguments = ["--links", "shm", "--peer", "process", "--peer", "thread", "--soak", "0.1"]
    reports = ["--json", "out.json", "--html", "out.html", "--pytest=-k 'put-8 or get-8 or soak'"]
    status, said = run(None, PYFAB, "validate", *arguments, *reports)
    assert status == 0, said
    found = json.loads((tmp_path / "out.json").read_text())
    ways = [("shm", "process"), ("shm", "thread")]
    for kind in ("measurements", "soaks"):
        assert {(one["links"], one["peer"]) for one in found[kind]} == {*ways}
    for soak in found["soaks"]:
        check_rates(soak, "here")
        check_rates(soak, "there")
    page = (tmp_path / "out.html").read_text()
    for links, peer in ways:
        assert f"put, {links} to {peer}" in page and f"Soak over {links} to {peer}" in page


@pytest.mark.slow
def test_plots_show_what_is_measured_again_for_an_expectation() -> None:
    from matplotlib.figure import Figure
    from pyfab.testing._plots import _drawings

    def point(size: int, latency: float, bandwidth: float) -> dict[str, Any]:
        figures = {"latency_us": latency, "latency_us_p99": 2 * latency, "bandwidth_gb_s": bandwidth}
        return {"links": "shm", "peer": "process", "operation": "put", "size": size, **figures}

    suite, expectation = (
        [point(8, 1.0, 0.1), point(4096, 3.0, 5.0)],
        [point(8, 1.5, 0.2), point(8, 1.25, 0.3)],
    )
    for _, draw in _drawings({"measurements": suite + expectation, "soaks": []}):
        axes = Figure().add_subplot()
        draw(axes)
        figure = "latency_us" if axes.get_ylabel() == "µs" else "bandwidth_gb_s"
        lines = [[tuple(xy) for xy in line.get_xydata()] for line in axes.lines]
        assert [(m["size"], m[figure]) for m in suite] in lines
        assert all([(m["size"], m[figure])] in lines for m in expectation)
        labels = [text.get_text() for text in axes.legend().get_texts()]
        assert labels == ["put, shm", "again, for an expectation"]


class _Outside(HTMLParser):
    """What a page would load, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        loading = ("src", "href", "xlink:href", "data", "action", "poster", "srcset")
        self.loads += [value for name, value in attrs if name in loading and value and value[0] != "#"]


@pytest.mark.slow
def test_the_page_needs_nothing_else(reports: Reports) -> None:
    text = reports.page.read_text()
    outside = _Outside(text)
    assert outside.loads == []
    assert not outside.tags & {"script", "link", "iframe", "img", "object"}
    assert not re.search(r"@import|url\((?!#)", text)
    assert text.count("<svg") == 3
    assert TOKEN not in text


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
def test_the_page_in_a_browser(reports: Reports, tmp_path: Path) -> None:
    assert CHROMIUM
    ran = subprocess.run(
        [
            *[CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
            *["--enable-logging=stderr", "--log-level=0", f"--user-data-dir={tmp_path}", "--dump-dom"],
            reports.page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    complaints = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []
    shown = ran.stdout.replace("&nbsp;", " ")
    assert "<title>pyfab validation: failed</title>" in shown
    for text in (
        "Validation",
        "test_own.py::test_wrong_sum",
        "&lt;eight&gt; &amp; not nine",
        "Latency of one operation",
        "Bandwidth with many operations in flight",
        "Soak over tcp:r0",
        "all accounted for",
        "at least 1e+09 GB/s",
        "node1",
    ):
        assert text in shown, text
    assert shown.count("<path") > 20  # the curves


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "write tables"),
        ("[[expect]]\noperation = 'put'\nsize = 8", "expects nothing"),
        ("[[expect]]\noperation = 'push'\nsize = 8\nlatency_us_max = 1", "it is one of put, get, fetch_add"),
        ("[[expect]]\noperation = 'put'\nsize = '8 kB'\nlatency_us_max = 1", "size = '8 kB'"),
        ("[[expect]]\noperation = 'put'\nsize = 8\nlatency_us_max = -1", "a limit is a number above 0"),
        ("[[expect]]\noperation = 'put'\nsize = 8\nlatency = 1", "number 1 has latency"),
        ("[expect]\noperation = 'put'", "write tables"),
        ("[[expect", "Expected ']]'"),
    ],
)
def test_what_is_wrong_with_expectations_is_said(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "expect.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(tmp_path / "expect.toml")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--expect", "missing.toml"], "No such file"),
        (["--links", "nosuch"], '"nosuch"'),
        (["--drills", "kill,link", "--link-up", "true"], "give --pyfab-link-down and --pyfab-link-up"),
        (["--html", "/proc/nowhere/out.html"], "--pyfab-html /proc/nowhere/out.html: No such file"),
    ],
)
def test_what_cannot_be_is_one_message(run: Run, arguments: list[str], message: str) -> None:
    status, said = run(None, PYFAB, "validate", *arguments)
    assert status == 4, said
    assert said.count(message) == 1
    assert "Traceback" not in said


@pytest.mark.slow
def test_what_fails_before_a_test_is_said_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(peer):\n    pass\n")
    _, said = run(None, PYTEST, "test_it.py", "--pyfab-peer", "127.0.0.1:1")
    reason = "no agent answers at 127.0.0.1:1 (Connection refused)"
    assert f"{reason}; start one there, with the same token: pyfab agent --listen 127.0.0.1:1" in said
    assert said.partition("short test summary")[0].count(reason) == 1


@pytest.mark.slow
def test_a_report_that_cannot_be_written_keeps_no_other_from_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    status, said = run(None, PYTEST, "test_it.py", "--pyfab-json", "/dev/full", "--pyfab-html", "it.html")
    assert status == pytest.ExitCode.INTERNAL_ERROR, said
    assert "no report in /dev/full: No space left on device" in said
    assert "Traceback" not in said
    assert (tmp_path / "it.html").exists()


@pytest.mark.slow
def test_folders_of_reports_are_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    status, said = run(None, PYTEST, "test_it.py", "--pyfab-json", "new/folder/out.json")
    assert status == 0, said
    assert json.loads((tmp_path / "new" / "folder" / "out.json").read_text())["counts"]["passed"] == 1


@pytest.mark.parametrize(
    "read, text, message",
    [
        (_session._parsed, "ftp://x", "write process, thread, HOST"),
        (_session._parsed, "host:port", "write process, thread, HOST"),
        (_session._parsed, "", "write process, thread, HOST"),
        (_session._drills, "kill,kil", "--pyfab-drills kil: there are kill, stop, resume, link"),
        (_session._setting, "deadline", "write NAME=VALUE"),
        (_session._setting, "a b=1", "write NAME=VALUE"),
    ],
)
def test_options_that_mean_nothing(read: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(pytest.UsageError, match=re.escape(message)):
        read(text)


def test_options_that_mean_something() -> None:
    assert _session._parsed("10.0.0.2:7") == ("", "10.0.0.2", 7)
    assert _session._parsed("[fe80::1]:7") == ("", "fe80::1", 7)
    assert _session._parsed("ssh://me@host") == ("me@", "host", None)
    assert _session._drills("kill,,stop") == {"kill", "stop"}
    assert _session._drills("all") == {"kill", "stop", "resume", "link"}
    assert [_session._setting(f"name={text}")[1] for text in ("5", "0.5", "true", "ring")] == [
        5,
        0.5,
        True,
        "ring",
    ]


def test_without_pytest_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["validate"]) == 1
    assert "pip install pytest cloudpickle matplotlib" in capsys.readouterr().err


@pytest.mark.slow
def test_what_was_found_before_an_interrupt_is_reported(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal; here while the peer is in the middle of a call, as in a soak."""
    (tmp_path / "test_long.py").write_text(
        "import signal\nimport numpy as np\n"
        "def test_short(peer):\n    pass\n"
        "def wait(target):\n    target.tell('waiting')\n    target.hear()\n"
        "def test_long(peer):\n    peer.expose(np.zeros(8))\n    peer.start(wait)\n"
        "    print(peer.finish(), flush=True)\n    signal.pause()\n"
    )
    process = subprocess.Popen(
        [
            *[sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{PYFAB}", "validate"],
            *["test_long.py", "--links", "shm", "--json", "out.json", "--pytest=-s -k test_long"],
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    said = ""
    while "waiting" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    os.killpg(process.pid, signal.SIGINT)
    said += process.communicate(timeout=60)[0]
    assert process.returncode == 2, said
    assert "Traceback" not in said
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["exit_status"] == 2
    assert {test["name"]: test["outcome"] for test in found["tests"]}["test_long.py::test_short"] == "passed"
