"""Pictures of measurements."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyfab.bench._measurement import UNITS, Measurement
from pyfab.bench._timing import size_name
from pyfab.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = (".png", ".svg", ".pdf", ".html")
_MARKERS = "os^Dvpx*"
_STROKES = ("-", "--", ":", "-.")


def check(path: Path) -> None:
    """Raises what `write` would raise for that name, before anything is measured."""
    if path.suffix.lower() not in _KINDS:
        raise InvalidArgumentError(f"{path}: a picture's name ends in {', '.join(_KINDS)}")
    _figure_class()


def write(rows: Sequence[Measurement], facts: dict[str, Any], table: str, path: Path) -> None:
    """Writes a picture as `Measurements.write_plot` promises; `table` is the rows in HTML."""
    check(path)
    figure = draw(rows, facts)
    if path.suffix.lower() == ".html":
        path.write_text(_page(facts, table, figure))
    else:
        figure.savefig(path, dpi=120)


def draw(rows: Sequence[Measurement], facts: dict[str, Any]) -> Figure:
    """One panel for each metric; lines, or bars where there is one size, with whiskers from p10 to p99.

    The heading has the links, the hosts and the date.
    """
    metrics = list(dict.fromkeys(row.metric for row in rows))
    if not metrics:
        raise InvalidArgumentError("an empty table has no picture")
    members = {metric: [row for row in rows if row.metric == metric] for metric in metrics}
    flat = {metric: len({row.size for row in members[metric]}) == 1 for metric in metrics}
    heights = [1.2 + 0.3 * len(members[metric]) if flat[metric] else 4.0 for metric in metrics]
    figure: Figure = _figure_class()(figsize=(9, sum(heights)), layout="constrained")
    axes = figure.subplots(len(metrics), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, metric in zip(axes, metrics, strict=True):
        (_bars if flat[metric] else _lines)(axis, members[metric])
        axis.set_title(metric, loc="left", fontweight="bold")
    figure.suptitle(_heading(rows, facts), fontsize=9, x=0.01, ha="left")
    figure.supxlabel("median of the rounds; whiskers: p10 to p99 of all samples", fontsize=9)
    return figure


def _heading(rows: Sequence[Measurement], facts: dict[str, Any]) -> str:
    links = dict.fromkeys(row.links if row.links == row.link else f"{row.links} ({row.link})" for row in rows)
    hosts = dict.fromkeys(str(told["host"]) for told in facts.values() if told.get("host"))
    date = str(facts.get("initiator", {}).get("date", "")).partition("T")[0]
    return "   ".join(filter(None, (", ".join(links), " and ".join(hosts), date)))


def _lines(axis: Any, rows: list[Measurement]) -> None:
    """Draws a line for each label. Its colour tells the operation, its stroke the links and the memory."""
    operations = list(dict.fromkeys(row.operation for row in rows))
    ways = sorted({(row.links, row.memory.replace("-", "mapped")) for row in rows})
    series: dict[str, list[Measurement]] = {}
    for row in rows:
        series.setdefault(_label(row, rows), []).append(row)
    for label, points in series.items():
        points.sort(key=lambda row: row.size)
        number = operations.index(points[0].operation)
        way = ways.index((points[0].links, points[0].memory.replace("-", "mapped")))
        axis.errorbar(
            [row.size for row in points],
            [row.median for row in points],
            yerr=_whiskers(points),
            color=f"C{number}",
            linestyle=_STROKES[way % len(_STROKES)],
            marker=_MARKERS[number % len(_MARKERS)],
            elinewidth=0.6,
            capsize=2,
            label=label,
        )
    sizes = sorted({row.size for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [size_name(size) for size in sizes])
    scale_logarithmically(axis)
    axis.set_ylabel(UNITS[rows[0].unit])
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def scale_logarithmically(axes: Any) -> None:
    """Makes the y axis logarithmic, with plain numbers. A small range may hold no power of ten, so it gets others, too."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)) if high < 1000 * low else NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=8)


def _whiskers(rows: list[Measurement]) -> list[list[float]]:
    """How far the whiskers reach below and above each median."""
    return [
        [max(0.0, row.median - min(row.p10, row.p99)) for row in rows],
        [max(0.0, max(row.p10, row.p99) - row.median) for row in rows],
    ]


def _bars(axis: Any, rows: list[Measurement]) -> None:
    shown = rows[::-1]
    labels, medians = [_label(row, rows) for row in shown], [row.median for row in shown]
    axis.barh(labels, medians, xerr=_whiskers(shown), capsize=2, error_kw={"elinewidth": 0.6})
    axis.set_xlabel(f"{size_name(rows[0].size)}: {UNITS[rows[0].unit]}")
    largest, smallest = max(row.median for row in rows), min(row.median for row in rows)
    if largest > 30 * smallest:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlim(10 ** math.floor(math.log10(smallest)), 2 * largest)
    else:
        axis.set_xlim(0, 1.3 * largest)  # a rare slow sample must not squeeze the rest
    axis.grid(alpha=0.3, axis="x")


def _label(row: Measurement, rows: list[Measurement]) -> str:
    """What tells a row from the others."""
    parts = [row.operation]
    if len({other.memory for other in rows} - {"-"}) > 1 and row.memory != "-":
        parts.append(row.memory)
    if len({other.links for other in rows}) > 1:
        parts.append(row.links)
    return ", ".join(parts)


def _page(facts: dict[str, Any], table: str, figure: Figure) -> str:
    """A page in one file that needs no other."""
    picture = io.BytesIO()
    figure.savefig(picture, format="svg")
    source = base64.b64encode(picture.getvalue()).decode()
    told = "".join(
        f"<tr><th>{escape(name)}</th>"
        + "".join(f"<td>{escape(_said(facts[side].get(name)))}</td>" for side in facts)
        + "</tr>"
        for name in next(iter(facts.values()))
    )
    sides = "".join(f"<th>{escape(side)}</th>" for side in facts)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>pyfab bench</title>
<style>
  body {{ font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
  table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }}
  th, td {{ text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ddd }}
  img {{ max-width: 100% }}
</style>
<h1>pyfab bench</h1>
<p>The median of the rounds; p10 and p99 are the fast and the slow side of all samples.</p>
<img alt="the figures below as a picture" src="data:image/svg+xml;base64,{source}">
{table}
<h2>Machines and versions</h2>
<table><tr><th></th>{sides}</tr>{told}</table>
</html>
"""


def _said(fact: object) -> str:
    return "-" if fact is None else str(fact)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from None

    class Picture(Figure):
        """A Figure that shows itself in notebooks; an ordinary one does so only after pyplot was imported."""

        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            self.savefig(stream, format="png")
            return stream.getvalue()

    return Picture
