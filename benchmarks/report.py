"""Turns results into tables and a plot: ``python benchmarks/report.py RESULT.jsonl... [--plot FILE.png]``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyfab.bench._timing import size_name, speed
from rich.console import Console
from rich.table import Table

console = Console(width=None if Console().is_terminal else 140)


AXIS = {"us": "µs per operation (less is better)", "Mops": "million operations per second", "GB/s": "GB/s"}


def print_facts(facts: dict[str, Any]) -> None:
    """One paragraph, without what is not known."""
    known = (f"{name}: {value}" for name, value in facts.items() if value is not None)
    console.print("; ".join(known), style="dim", markup=False)


def print_groups(lines: Iterable[dict[str, Any]]) -> None:
    """One table per group. p10 is the fast side of the samples, p99 the slow side, whatever the unit."""
    tables: dict[str, Table] = {}
    for line in lines:
        unit, size, ns, ratio = line["unit"], line["size"], line["ns"], line["ratio"]
        if line["group"] not in tables:
            table = tables[line["group"]] = Table("contestant", "what", "size", title=line["group"])
            for name in (f"median {unit}", "p10", "p99", "time / baseline"):
                table.add_column(name, justify="right")
        tables[line["group"]].add_row(
            line["contestant"],
            line["what"],
            size_name(size),
            *(f"{speed(ns[name], size, unit):.3g}" for name in ("median", "p10", "p99")),
            f"{ratio['median']:.3g} ({ratio['p10']:.3g}-{ratio['p90']:.3g})" if ratio else "-",
        )
    for table in tables.values():
        console.print(table)


def print_skipped(skipped: dict[str, str]) -> None:
    for name, reason in skipped.items():
        console.print(f"skipped {name}: {reason}", style="yellow", markup=False)


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """One bar chart per group: the median, with a whisker from p10 to p99."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = list(dict.fromkeys(line["group"] for line in lines))
    heights = [0.8 + 0.3 * sum(line["group"] == group for line in lines) for group in groups]
    figure, axes = pyplot.subplots(
        len(groups), 1, figsize=(10, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axis, group in zip(axes[:, 0], groups, strict=True):
        members = [line for line in lines if line["group"] == group][::-1]
        unit = members[0]["unit"]
        names = [f"{m['contestant']}: {m['what']}, {size_name(m['size'])}" for m in members]
        values = [speed(m["ns"]["median"], m["size"], unit) for m in members]
        ends = [sorted(speed(m["ns"][p], m["size"], unit) for p in ("p10", "p99")) for m in members]
        whiskers = [
            [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)],
            [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)],
        ]
        colors = ["tab:blue" if m["contestant"].startswith("pyfab") else "tab:gray" for m in members]
        axis.barh(names, values, xerr=whiskers, color=colors)
        axis.set_title(group, fontsize=10)
        axis.set_xlabel(AXIS[unit])
        if min(values) > 0 and max(values) / min(values) > 50:
            axis.set_xscale("log")
        axis.set_xlim(right=1.5 * max(values))  # a rare slow sample must not squeeze the rest
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="report.py")
    parser.add_argument("results", nargs="+", type=Path, help="JSON lines written with --json")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the figures as well")
    given = parser.parse_args()
    figures: list[dict[str, Any]] = []
    for path in given.results:
        first, *lines = (json.loads(line) for line in path.read_text().splitlines())
        print_facts(first["facts"])
        print_groups(line for line in lines if "group" in line)
        print_skipped(first["skipped"])
        figures += [line for line in lines if "group" in line]
    if given.plot and figures:
        plot(figures, given.plot)


if __name__ == "__main__":
    main()
