"""Measures contestants side by side and writes what it saw.

Every contestant is a pair of pinned processes (initiator and target) that lives through a run and sleeps
while others are measured. A round measures each case once, in random order; ratios are taken within a round,
so that a machine whose speed drifts changes both sides alike. Several runs start all processes afresh.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyfab.bench._timing import calibrate, choose_cores, percentile, samples_in, spread, warm

from contestants import Contestant, Unavailable
from facts import machine_facts


@dataclass(frozen=True)
class Case:
    """One thing measured: ``what`` of a contestant with ``size`` bytes per operation."""

    contestant: str
    what: str
    size: int = 8

    def __str__(self) -> str:
        return f"{self.contestant}: {self.what}"


@dataclass(frozen=True)
class Group:
    """Cases that belong in one table. Ratios are to the first case, the baseline."""

    title: str
    unit: str
    """"us" per operation, "Mops" (million operations per second) or "GB/s"."""
    cases: Sequence[Case]


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    runs: int = 3
    rounds: int = 10
    round_ns: float = 30e6


QUICK = Plan(runs=1, rounds=2, round_ns=5e6)


@dataclass
class Result:
    """Times in nanoseconds per operation."""

    case: Case
    rounds: dict[tuple[int, int], float] = field(default_factory=dict)
    """(run, round) -> median of its samples"""
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds.values())

    def percentile(self, percent: float) -> float:
        """Of all samples; a sample is the mean of one batch, so single slow operations are averaged in it."""
        return percentile(self.samples, percent)

    def ratios(self, baseline: Result) -> list[float]:
        """Time of this over time of the baseline, round by round."""
        return [ns / baseline.rounds[key] for key, ns in self.rounds.items() if key in baseline.rounds]


def plan_of(contestant: Contestant, case: Case, round_ns: float) -> tuple[int, int]:
    """(batch, samples) for rounds of that length; warms everything up on the way."""

    def sample(batch: int) -> float:
        answer = contestant.ask(case.what, case.size, batch, 3)
        return float(statistics.median(answer["ns"]) * answer.get("operations", 1) * batch)

    batch, sample_ns = calibrate(sample)
    return batch, samples_in(round_ns, sample_ns)


def measure(cases: Sequence[Case], plan: Plan) -> tuple[dict[Case, Result], dict[str, str]]:
    """Measures all cases together. Returns the results and, for what could not run, why."""
    results: dict[Case, Result] = {}
    skipped: dict[str, str] = {}
    shuffle = random.Random(1).sample
    for run in range(plan.runs):
        with running(cases, skipped) as contestants:
            batches: dict[Case, tuple[int, int]] = {}
            for case in cases:
                with skipping(skipped, case, contestants):
                    if case.contestant in contestants:
                        batches[case] = plan_of(contestants[case.contestant], case, plan.round_ns)
            for turn in range(plan.rounds):
                for case in shuffle(list(batches), len(batches)):
                    with skipping(skipped, case, contestants):
                        if case.contestant in contestants:
                            batch, samples = batches[case]
                            taken = contestants[case.contestant].ask(case.what, case.size, batch, samples)[
                                "ns"
                            ]
                            taken = warm(taken)
                            result = results.setdefault(case, Result(case))
                            result.rounds[run, turn] = statistics.median(taken)
                            result.samples += taken
    return results, skipped


@contextlib.contextmanager
def running(cases: Sequence[Case], skipped: dict[str, str]) -> Iterator[dict[str, Contestant]]:
    """Starts every contestant of the cases that can start; ends them all."""
    largest: dict[str, int] = {}
    for case in cases:
        largest[case.contestant] = max(case.size, largest.get(case.contestant, 1 << 16))
    contestants: dict[str, Contestant] = {}
    try:
        for name, capacity in largest.items():
            try:
                contestants[name] = Contestant(name, capacity, choose_cores())
            except Unavailable as reason:
                skipped[name] = str(reason)
        yield contestants
    finally:
        for contestant in contestants.values():
            contestant.close()


@contextlib.contextmanager
def skipping(skipped: dict[str, str], case: Case, contestants: dict[str, Contestant]) -> Iterator[None]:
    """Records why a case has no figure; a contestant that died takes part no more."""
    try:
        yield
    except Unavailable as reason:
        skipped[f"{case} ({case.size} B)"] = str(reason)
        if "unexpectedly" in str(reason) or "no answer" in str(reason):
            contestants.pop(case.contestant).close()


def records(bench: str, groups: Sequence[Group], results: dict[Case, Result]) -> Iterator[dict[str, Any]]:
    """One JSON object per case and group, with its ratio to the group's baseline."""
    for group in groups:
        baseline = results.get(group.cases[0])
        for case in group.cases:
            if (result := results.get(case)) is None:
                continue
            ratios = sorted(result.ratios(baseline)) if baseline else []
            yield {
                "bench": bench,
                "group": group.title,
                "unit": group.unit,
                "contestant": case.contestant,
                "what": case.what,
                "size": case.size,
                "ns": {"median": result.median, "p10": result.percentile(10), "p99": result.percentile(99)},
                "rounds": [round(ns, 2) for ns in result.rounds.values()],
                "baseline": str(group.cases[0]) if baseline else None,
                "ratio": spread(ratios) if ratios else None,
            }


def parse_arguments(bench: str, *own: argparse.ArgumentParser) -> tuple[Plan, Path | None]:
    """The command line that all benchmarks share: the plan and where to write. ``own``: more, parsed by the benchmark."""
    parser = argparse.ArgumentParser(prog=f"{bench}.py", parents=own)
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of about a second; figures mean little"
    )
    parser.add_argument("--runs", type=int, help="times that all processes are started afresh (3)")
    parser.add_argument("--rounds", type=int, help="interleaved rounds in each run (10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write JSON lines there")
    given = parser.parse_args()
    plan = QUICK if given.quick else Plan()
    return Plan(given.runs or plan.runs, given.rounds or plan.rounds, plan.round_ns), given.json


def write_json(
    path: Path, facts: dict[str, Any], skipped: dict[str, str], lines: Sequence[dict[str, Any]]
) -> None:
    """First line: the machine and what was skipped. Then one line per figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as out:
        for line in ({"facts": facts, "skipped": skipped}, *lines):
            out.write(json.dumps(line) + "\n")


def main(bench: str, groups: Sequence[Group], *own: argparse.ArgumentParser) -> None:
    """Measures the groups, prints a table of each, and writes JSON if asked."""
    from report import print_facts, print_groups, print_skipped  # rich is needed for printing only

    plan, path = parse_arguments(bench, *own)
    facts = machine_facts(choose_cores())
    cases = list(dict.fromkeys(case for group in groups for case in group.cases))
    results, skipped = measure(cases, plan)
    lines = list(records(bench, groups, results))
    if path:
        write_json(path, facts, skipped, lines)
    print_facts(facts)
    print_groups(lines)
    print_skipped(skipped)
    if not results:
        sys.exit("nothing could be measured")
