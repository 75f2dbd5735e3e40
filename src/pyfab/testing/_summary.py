"""What a run found of each link, as a table in a terminal."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyfab.display.tables import Table

EXPLAINED = "put_us, get_us: median of 8 bytes, complete on return; GB_s: the best of all sizes, many at once"


class Row(NamedTuple):
    """One combination of links and peer."""

    links: str
    peer: str
    over: str  # the link that led to the peer, and how
    passed: int
    failed: int
    skipped: int
    put_us: str
    get_us: str
    put_GB_s: str
    get_GB_s: str
    verdict: str


def summary(found: dict[str, Any]) -> Table[Row]:
    """A row for each combination of the report `found`."""
    ways = [(link["links"], link["peer"]) for link in found["links"]]
    tests: dict[tuple[str, str], list[str]] = {way: [] for way in ways}
    for test in found["tests"]:
        way = _way(test["name"], ways)
        if way is not None:
            tests[way].append(test["outcome"])
    return Table(
        Row,
        (
            _row(link, tests[way], [m for m in found["measurements"] if (m["links"], m["peer"]) == way])
            for link, way in zip(found["links"], ways, strict=True)
        ),
    )


def _way(name: str, ways: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The combination that a test is of: the only one, or the one that the test's name begins its arguments with."""
    if len(ways) == 1:
        return ways[0]
    arguments = name.partition("[")[2].rstrip("]") + "-"
    named = [way for way in ways if arguments.startswith(f"{way[0]} to {way[1]}-")]
    return max(named, key=lambda way: len(way[1]), default=None)


def _row(link: dict[str, Any], outcomes: list[str], measured: list[dict[str, Any]]) -> Row:
    failed = sum(outcome in ("failed", "error") for outcome in outcomes)
    passed = sum(outcome in ("passed", "xfailed", "xpassed") for outcome in outcomes)

    def latency(operation: str) -> str:
        figures = (m["latency_us"] for m in measured if (m["operation"], m["size"]) == (operation, 8))
        return _shown(min(figures, default=None))

    def bandwidth(operation: str) -> str:
        figures = (m["bandwidth_gb_s"] for m in measured if m["operation"] == operation)
        return _shown(max(figures, default=None))

    return Row(
        link["links"],
        link["peer"],
        f"{link['link']} ({link['how']})",
        passed,
        failed,
        outcomes.count("skipped"),
        latency("put"),
        latency("get"),
        bandwidth("put"),
        bandwidth("get"),
        "failed" if failed else "passed" if passed else "not tested",
    )


def _shown(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:.3g}" if figure < 1000 else f"{figure:.0f}"
