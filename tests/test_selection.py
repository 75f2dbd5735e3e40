"""A plain run meets every test once, and every link."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from selection import Case, chosen

WAYS = [f"way {number}" for number in range(16)]


def test_each_test_is_chosen_once():
    cases = [
        Case(f"file {file}", number, way) for file in range(5) for number in range(file * 10) for way in WAYS
    ]
    keep = chosen(cases)
    assert keep <= set(cases)
    assert len({(case.file, case.test) for case in keep}) == len(keep) == 100


def test_a_test_without_a_choice_is_kept():
    only = Case("file", "test", ())
    assert chosen([only]) == {only}


def test_a_file_opens_few_links_and_many_files_open_all():
    keep = chosen(
        [Case(f"file {file}", test, way) for file in range(60) for test in range(20) for way in WAYS]
    )
    ways = {file: {case.way for case in keep if case.file == file} for file in {case.file for case in keep}}
    assert {len(each) for each in ways.values()} == {3}
    assert set.union(*ways.values()) == set(WAYS)


def test_the_choice_is_the_same_in_any_process():
    """As workers need it, which each collect the tests."""
    cases = [Case("file", test, way) for test in ("a", "b", "c", "d") for way in WAYS]
    assert [case.way for case in sorted(chosen(cases), key=str)] == ["way 6", "way 6", "way 7", "way 7"]


def test_this_run_meets_every_link(request: pytest.FixtureRequest):
    conformance = request.config.rootpath / "tests" / "conformance"
    files = {item.path for item in request.session.items if conformance in item.path.parents}
    if files | {conformance / "transfers" / "test_large.py"} != set(conformance.rglob("test_*.py")):
        pytest.skip("only a part of the suite was asked for")
    from support import COMBINATIONS

    names = [item.name for item in request.session.items if item.path in files]
    missed = [
        str(way) for way in COMBINATIONS if not any(f"[{way}" in name or f"-{way}" in name for name in names)
    ]
    assert missed == []


def test_each_file_has_a_name_of_its_own():
    """pytest imports test files by their names alone, so two of one name end every run of both."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]
