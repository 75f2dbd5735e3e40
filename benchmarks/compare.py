"""The claims that pyfab makes of its speed, each measured beside what it is compared with in one run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from facts import machine_facts
from harness import Case, Result, choose_cores, measure, parse_arguments, spread, write_json

MIB = 1 << 20


@dataclass(frozen=True)
class Claim:
    """``time(pyfab) / time(baseline) <= limit``. A baseline that is a number is nanoseconds per operation."""

    text: str
    pyfab: Case
    baseline: Case | float
    limit: float
    unit: str = "us"


def claims() -> Iterator[Claim]:
    for face in ("pyfab shm", "pyfab shm window"):
        yield Claim(
            "put 8 B mapped < Win.Allocate", Case(face, "put_mapped"), Case("mpi4py", "put_allocate"), 1.0
        )
    for face in ("pyfab shm", "pyfab shm window"):
        yield Claim(
            "put 8 B any memory < Win.Create", Case(face, "put_other"), Case("mpi4py", "put_create"), 1.0
        )
    yield Claim("write_many 8 B >= 5 M/s", Case("pyfab shm", "write_many_mapped"), 200.0, 1.0, "Mops")
    for size in (MIB, 64 * MIB):
        name = f"{size // MIB} MiB"
        for kind in ("memcpy", "memcpy_shared"):
            yield Claim(
                f"put {name} mapped >= 0.9 {kind}",
                Case("pyfab shm", "put_mapped", size),
                Case("memory", kind, size),
                1 / 0.9,
                "GB/s",
            )
        yield Claim(
            f"put {name} any memory >= 0.9 process_vm_writev",
            Case("pyfab shm", "put_other", size),
            Case("process_vm", "put", size),
            1 / 0.9,
            "GB/s",
        )
    yield Claim(
        "tcp put 8 B <= 1.3 raw round trip", Case("pyfab tcp", "put_other"), Case("raw tcp", "put"), 1.3
    )
    for how in ("put", "put_spin"):
        yield Claim(
            f"tcp put 1 MiB >= 0.9 raw sockets ({'spinning' if how == 'put_spin' else 'blocking'})",
            Case("pyfab tcp", "put_other", MIB),
            Case("raw tcp", how, MIB),
            1 / 0.9,
            "GB/s",
        )


def judge(claim: Claim, results: dict[Case, Result]) -> dict[str, Any]:
    """One line of the table; figures in nanoseconds per operation, the ratio is of times."""
    mine = results.get(claim.pyfab)
    line: dict[str, Any] = {
        "claim": claim.text,
        "pyfab": str(claim.pyfab),
        "baseline": str(claim.baseline),
        "unit": claim.unit,
        "size": claim.pyfab.size,
        "limit": claim.limit,
        "pyfab_ns": None,
        "baseline_ns": None,
        "ratio": None,
        "holds": None,
    }
    if isinstance(claim.baseline, Case):
        theirs = results.get(claim.baseline)
        line["baseline_ns"] = theirs.median if theirs else None
        ratios = mine.ratios(theirs) if mine and theirs else []
    else:
        line["baseline_ns"] = claim.baseline
        ratios = [ns / claim.baseline for ns in mine.rounds.values()] if mine else []
    if mine:
        line["pyfab_ns"] = mine.median
    if ratios:
        line["ratio"] = spread(sorted(ratios))
        line["holds"] = statistics.median(ratios) <= claim.limit
    return line


def print_claims(lines: list[dict[str, Any]]) -> None:
    """Rates and bandwidths are shown as speeds, and so is their ratio; latencies as times."""
    from rich.table import Table

    from report import console, speed

    table = Table("claim", "pyfab", "baseline", "ratio", "(p10-p90)", "needs", "holds", title="claims")
    for line in lines:
        is_time, ratio = line["unit"] == "us", line["ratio"]
        shown = [
            f"{speed(line[key], line['size'], line['unit']):.3g} {line['unit']}" if line[key] else "-"
            for key in ("pyfab_ns", "baseline_ns")
        ]
        if ratio:
            ends = [ratio["p10"], ratio["p90"]] if is_time else [1 / ratio["p90"], 1 / ratio["p10"]]
            shown += [
                f"{ratio['median'] if is_time else 1 / ratio['median']:.2f}",
                f"{ends[0]:.2f}-{ends[1]:.2f}",
            ]
        else:
            shown += ["-", "-"]
        needs = f"<= {line['limit']:.2f}" if is_time else f">= {1 / line['limit']:.2f}"
        holds = {True: "[green]yes", False: "[red]no", None: "not measured"}[line["holds"]]
        who = " (window)" if "window" in line["pyfab"] else ""
        table.add_row(line["claim"] + who, *shown, needs, holds)
    console.print(table)


def main() -> None:
    from report import print_facts, print_skipped

    plan, path = parse_arguments("compare")
    facts = machine_facts(choose_cores())
    listed = list(claims())
    sides = (side for claim in listed for side in (claim.pyfab, claim.baseline) if isinstance(side, Case))
    results, skipped = measure(list(dict.fromkeys(sides)), plan)
    lines = [judge(claim, results) for claim in listed]
    if path:
        write_json(path, facts, skipped, lines)
    print_facts(facts)
    print_claims(lines)
    print_skipped(skipped)


if __name__ == "__main__":
    main()
