"""Two trees of pyfab beside each other in one run: what one does with the time that the other needs.

    python benchmarks/beside.py OTHER/benchmarks OTHER/site [--runs 10] [--loader 5]

The installed pyfab (or the one on PYTHONPATH) is measured beside the one in the folder OTHER/site, whose side of the line
protocol is `pyfab_pair.py` in OTHER/benchmarks. Every case of message_rate.py, windows.py and compare.py that pyfab takes part
in has three contestants: the other tree, the other tree once more, and this one. The second shows how far two copies of one
program differ on this machine: more than a difference of that size is needed to say anything of this tree. With --loader TIMES,
loader.py of both trees runs by turns as often; there, contestants that are not pyfab's show what the machine alone does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pyfab.bench._timing import size_name, speed, spread

import compare
import contestants
import message_rate
import windows
from contestants import CONTESTANTS, Command
from facts import machine_facts
from harness import Case, Result, choose_cores, measure, parse_arguments

OTHER, AGAIN = "other ", "again "


def take_part(benchmarks: Path, site: Path) -> None:
    """The other tree's pyfab, twice, beside each contestant that is this one's."""

    def of_other_tree(command: Callable[[], Command]) -> Callable[[], Command]:
        def other() -> Command:
            program, *_ = (mine := command()).argv
            return Command(
                [program, str(benchmarks / "pyfab_pair.py")], mine.arguments, {"PYTHONPATH": str(site)}
            )

        return other

    for name, command in list(CONTESTANTS.items()):
        if name.startswith("pyfab"):
            CONTESTANTS[OTHER + name] = CONTESTANTS[AGAIN + name] = of_other_tree(command)


def mine() -> dict[Case, str]:
    """The cases of this tree, with the units of their figures."""
    rates = [*message_rate.MAPPED, *message_rate.OTHER, *message_rate.TCP]
    claims = [*windows.claims(), *compare.claims()]
    units = {case: "Mops" for case in rates if case.contestant.startswith("pyfab")}
    return units | {claim.pyfab: claim.unit for claim in claims}


def ratios_of(results: dict[Case, Result]) -> Iterator[str]:
    """Time of this tree, and of the other tree's second copy, over that of the other."""
    for case, unit in mine().items():
        other, again, this = (
            results.get(replace(case, contestant=tree + case.contestant)) for tree in (OTHER, AGAIN, "")
        )
        if other and again and this:
            yield line(
                f"{case}, {size_name(case.size)}",
                [each.ratios(other) for each in (this, again)],
                f"{speed(this.median, case.size, unit):8.3g} {unit}",
            )


def line(what: str, ratios: Sequence[Sequence[float]], figure: str = "") -> str:
    told = (
        f"{found['median']:6.3f} ({found['p10']:.2f}-{found['p90']:.2f})" for found in map(spread, ratios)
    )
    return f"{what:60} {'  '.join(told)} {figure}"


def loader_by_turns(benchmarks: Path, site: Path, times: int) -> Iterator[str]:
    """Time of this tree over that of the other, of every contestant of loader.py; those that are not pyfab's are the control."""
    here = os.environ.get("PYTHONPATH", "")
    trees = {"other": (benchmarks, str(site)), "this": (contestants.HERE, here)}
    told: dict[str, dict[str, list[float]]] = {tree: defaultdict(list) for tree in trees}
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        for _ in range(times):
            for tree, (programs, path) in trees.items():
                command = [sys.executable, str(programs / "loader.py"), "--json", str(figures)]
                subprocess.run(
                    [*command, "--seconds", "0.3"],
                    check=True,
                    env=os.environ | {"PYTHONPATH": path},
                    stdout=subprocess.DEVNULL,
                )
                for title, costs in json.loads(figures.read_text())["microseconds"].items():
                    for what, cost in costs.items():
                        told[tree][f"{title}: {what}"].append(cost)
    for name, costs in told["this"].items():
        ratios = [mine / theirs for mine, theirs in zip(costs, told["other"][name], strict=True)]
        yield line(name, [ratios])


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("benchmarks", type=Path, help="the folder benchmarks of the other tree")
    own.add_argument("site", type=Path, help="the folder that the other tree's pyfab is imported from")
    own.add_argument("--only", nargs="*", default=[], help="words of the names of cases")
    own.add_argument("--loader", type=int, default=0, metavar="TIMES", help="runs of loader.py of each tree")
    plan, _ = parse_arguments("beside", own)
    given, _ = own.parse_known_args()
    benchmarks, site = given.benchmarks.resolve(), given.site.resolve()
    take_part(benchmarks, site)
    os.environ["PYTHONHASHSEED"] = "1"  # otherwise some of the processes look up attributes in fewer steps
    print("; ".join(f"{name}: {value}" for name, value in machine_facts(choose_cores()).items() if value))
    print(f"{'time over that of the other tree':60} of this tree        of the other tree's second copy")
    sides = [
        replace(case, contestant=tree + case.contestant)
        for case in mine()
        if not given.only or any(word in str(case) for word in given.only)
        for tree in (OTHER, AGAIN, "")
    ]
    results, skipped = measure(sides, plan)
    for text in ratios_of(results):
        print(text)
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    for text in loader_by_turns(benchmarks, site, given.loader) if given.loader else ():
        print(text)


if __name__ == "__main__":
    main()
