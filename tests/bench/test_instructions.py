"""scripts/instructions: how callgrind's dumps are read, and when a path counts as changed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def measure() -> Any:
    path = ROOT / "benchmarks" / "instructions" / "measure.py"
    spec = importlib.util.spec_from_file_location("instructions_measure", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def dump(name: str, core: int, other: int) -> list[str]:
    """As callgrind 3.19 writes it: a call's line says what the callee cost, which is told at the callee as well."""
    return f"""# callgrind format
version: 1
part: 2
desc: Timerange: Basic block 1599195 - 4483193
desc: Trigger: Client Request: {name}

positions: line
events: Ir
summary: {core + other}

ob=/usr/lib/libpython3.11.so
fl=Objects/call.c
fn=vectorcall
133 {other}
cob=/site/pyfab/_core.cpython-311-x86_64-linux-gnu.so
cfn=fab::Context::post(unsigned long)
calls=7 0
134 {core}

ob=/site/pyfab/_core.cpython-311-x86_64-linux-gnu.so
fl=???
fn=fab::Context::post(unsigned long)
0 {core - 1}
fi=inlined.h
77 1
""".splitlines()


def test_costs_are_what_each_function_took_itself(measure: Any) -> None:
    read = measure.parse(dump("shm: put * 50", core=900, other=100))
    assert read.name == "shm: put * 50"
    assert read.by_function == {
        ("libpython3.11.so", "vectorcall"): 100,
        ("_core.cpython-311-x86_64-linux-gnu.so", "fab::Context::post(unsigned long)"): 900,
    }


def test_the_difference_of_two_lengths_leaves_out_what_all_runs_take(measure: Any) -> None:
    samples = [
        ("tcp: put * 10", 1000 + 10 * 70, 500 + 10 * 30),
        ("tcp: put * 10", 1000 + 10 * 70 + 99, 500 + 10 * 30 + 99),  # a turn more than the least
        ("tcp: put * 30", 1000 + 30 * 70, 500 + 30 * 30),
        ("shm: get * 2", 8, 4),
        ("shm: get * 4", 16, 10),
    ]
    found = measure.costs(measure.parse(dump(*sample)) for sample in samples)
    assert found == {"tcp: put": measure.Cost(core=70, all=100), "shm: get": measure.Cost(core=4, all=7)}


@pytest.mark.parametrize(
    "core, all_, whole, well",
    [
        (1000, 3000, True, True),
        (1029, 3000, True, True),
        (1031, 3000, True, False),
        (969, 3000, True, False),  # the baseline would let it grow again
        (1000, 3100, True, False),
        (1000, 3100, False, True),  # another Python
        (1031, 3100, False, False),
    ],
)
def test_a_path_has_changed_by_more_than_three_per_cent(
    measure: Any, core: float, all_: float, whole: bool, well: bool
) -> None:
    before = {"put": measure.Cost(core=1000, all=3000)}
    [(verdict, line)] = measure.judge({"put": measure.Cost(core=core, all=all_)}, before, whole)
    assert verdict == well
    assert ("CHANGED" in line) == (not well)


def test_a_path_that_only_one_side_has_is_a_change(measure: Any) -> None:
    cost = measure.Cost(core=1, all=1)
    verdicts = list(measure.judge({"new": cost}, {"old": cost}, True))
    assert [well for well, _ in verdicts] == [False, False]


def test_comparison_with_another_python_is_of_the_core_alone(
    measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"compiler": "GCC: (A) 1", "machine": "x86_64", "python": "3.11.7", "libc": "glibc 2.36"}
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps({"facts": facts, "instructions": {"put": {"core": 1000, "all": 3000}}}))
    monkeypatch.setattr(measure, "BASELINE", baseline)
    slower_outside = {"put": measure.Cost(core=1000, all=4000)}
    assert measure.compare(slower_outside, facts) == 1
    assert measure.compare(slower_outside, facts | {"python": "3.13.1"}) == 0
    assert "python is 3.13.1, the baseline's 3.11.7" in capsys.readouterr().out


def test_the_baseline_has_every_path(measure: Any) -> None:
    told = json.loads(measure.BASELINE.read_text())
    assert set(told["facts"]) == {"compiler", "machine", "python", "libc"}
    source = (measure.HERE / "counted.py").read_text()
    assert {f'yield "{path}"' for path in told["instructions"]} == {
        line.strip().partition(",")[0] for line in source.splitlines() if line.strip().startswith('yield "')
    }
    assert all(0 < cost["core"] < cost["all"] for cost in told["instructions"].values())
