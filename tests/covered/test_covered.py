"""What `scripts/coverage` makes of the figures of llvm-cov, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import report
from report import File, Tally

GAP = BEGINS = True
ROOT = Path(__file__).parents[2]


def exported(filename: str, segments: list[list[object]], branches: list[list[int]]) -> dict[str, Any]:
    return {"data": [{"files": [{"filename": filename, "segments": segments, "branches": branches}]}]}


def test_a_line_has_the_most_of_the_regions_that_begin_there_or_go_on() -> None:
    segments = [
        [10, 1, 5, True, BEGINS, False],  # a function is entered five times
        [12, 9, 0, True, BEGINS, False],  # a statement behind a condition that never held
        [12, 20, 5, True, False, False],
        [14, 3, 0, True, BEGINS, False],  # a block that was never entered, over three lines
        [16, 4, 5, True, False, False],
        [18, 2, 0, False, False, False],  # the function ends
    ]
    assert report.line_counts(segments) == {10: 5, 11: 5, 12: 5, 13: 5, 14: 5, 15: 0, 16: 0, 17: 5, 18: 5}


def test_gaps_and_what_lies_between_functions_are_no_lines() -> None:
    segments = [
        [1, 9, 3, True, BEGINS, False],
        [1, 20, 0, False, False, False],
        [3, 9, 3, True, BEGINS, False],
        [4, 12, 0, True, BEGINS, GAP],  # between a condition and its statement
        [5, 5, 3, True, BEGINS, False],
        [5, 9, 0, False, False, False],
    ]
    assert report.line_counts(segments) == {1: 3, 3: 3, 4: 3, 5: 3}


def test_comments_and_constant_conditions_are_no_code() -> None:
    text = ["while (true) {", "  // for ever", "", "  if constexpr (large) go();", "  if (x) stop();", "}"]
    branches = {(1, 8, 1, 12): [0, 0], (4, 17, 4, 22): [0, 0], (5, 7, 5, 8): [0, 0]}
    file = report.of_code(text, File(dict.fromkeys(range(1, 7), 0), branches))
    assert sorted(file.lines) == [1, 4, 5, 6]
    assert list(file.branches) == [(5, 7, 5, 8)]


def test_a_branch_of_several_instances_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "source", lambda _: [""] * 6 + ["  when(x)"])
    told = exported(
        "/elsewhere/src/cpp/base/deadline.h", [], [[7, 3, 7, 8, 0, 4, 0, 0, 4], [7, 3, 7, 8, 2, 0, 0, 0, 4]]
    )
    told["data"] += exported("/here/src/cpp/python/module.cpp", [], [[7, 3, 7, 8, 0, 4, 0, 0, 4]])["data"]
    files = report.read(told)
    assert list(files) == ["base/deadline.h"]
    assert files["base/deadline.h"].branches == {(7, 3, 7, 8): [2, 4]}
    assert files["base/deadline.h"].tally() == Tally(0, 0, 2, 0)


def test_what_was_not_reached_is_named_with_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "source", lambda _: ["if (broken)", "  mend();"])
    file = File({1: 4, 2: 0}, {(1, 5, 1, 11): [0, 4]})
    assert list(report.uncovered("base/x.cpp", file)) == [
        "src/cpp/base/x.cpp:2: not reached: mend();",
        "src/cpp/base/x.cpp:1:5: never true: broken",
    ]


def test_a_room_that_falls_is_told_and_small_changes_are_not() -> None:
    was = {"base/bytes/a.cpp": Tally(1000, 20, 400, 40), "base/b.cpp": Tally(1000, 20, 400, 40)}
    assert list(report.falls(was, was)) == []
    assert list(report.falls(was, {**was, "base/bytes/a.cpp": Tally(1000, 24, 400, 41)})) == []
    lines = list(report.falls(was, {**was, "base/bytes/a.cpp": Tally(1000, 26, 400, 40)}))
    assert lines == ["base/bytes: lines fell from 98.00 % to 97.40 %, 6 more are not reached"]
    branches = list(report.falls(was, {**was, "base/bytes/a.cpp": Tally(1000, 20, 400, 46)}))
    assert [line.partition(" fell")[0] for line in branches] == ["base: branches", "base/bytes: branches"]


def test_code_that_goes_does_not_count_as_a_fall() -> None:
    was = {"base/a.cpp": Tally(1000, 20, 400, 40)}
    assert list(report.falls(was, {"base/a.cpp": Tally(400, 20, 100, 30)})) == []


def test_the_baseline_knows_the_files_of_the_tree() -> None:
    was = report.read_baseline()
    assert {path.split("/")[0] for path in was} == set(report.PARTS)
    gone = [path for path in was if not (ROOT / "src/cpp" / path).exists()]
    assert len(gone) < len(was) / 10, "scripts/coverage --update"


def test_a_guard_fails_where_files_are_worse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(report, "source", lambda _: ["one", "two"])
    report.write_baseline({"base/x.cpp": Tally(100, 0, 0, 0)})
    assert json.loads((tmp_path / "baseline.json").read_text())["files"] == {"base/x.cpp": [100, 0, 0, 0]}
    files = {"base/x.cpp": File({1: 1, 2: 0})}
    assert report.check(files, {"base/x.cpp": Tally(100, 0, 0, 0)}) == 0
    assert report.check(files, {"base/x.cpp": Tally(100, 9, 0, 0)}) == 1
    assert "src/cpp/base/x.cpp:2: not reached: two" in capsys.readouterr().out
