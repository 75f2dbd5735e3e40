"""Plots of a report, drawn by matplotlib as SVG that stands inside of a page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyfab.bench._plot import scale_logarithmically
from pyfab.testing._expect import size_text

_COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2")
_STROKES = ("-", "--", "-.")
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
}


def plots(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Title and SVG of all that there is to draw. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn = []
    with matplotlib.rc_context(_STYLE):
        for title, draw in _drawings(found):
            figure = Figure(figsize=(5.6, 3.4), layout="constrained")
            axes = figure.add_subplot()
            draw(axes)
            # The legend has room of its own above, where it covers no curve.
            legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
            lines = (len(legend.get_texts()) + 1) // 2
            figure.set_figheight(3.2 + 0.2 * lines)
            stream = io.StringIO()
            with matplotlib.rc_context({"svg.hashsalt": title}):
                figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
            drawn.append((title, _inline(stream.getvalue(), title)))
    return drawn


def _inline(svg: str, title: str) -> str:
    """The SVG without what only a file of its own needs, and with a name for those who do not see it."""
    svg = re.sub(r"^.*?(?=<svg)", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


def _drawings(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    measured = [m for m in found["measurements"] if m["operation"] != "fetch_add"]
    if measured:
        yield "Latency of one operation (median, dotted: 99 %)", lambda axes: _latency(axes, measured)
        yield "Bandwidth with many operations in flight", lambda axes: _bandwidth(axes, measured)
    for soak in found["soaks"]:
        yield f"Soak over {way(found['soaks'], soak)}", lambda axes, soak=soak: _soak(axes, soak)


def way(findings: list[dict[str, Any]], finding: dict[str, Any]) -> str:
    """The links of a finding, and its peer if the findings have several."""
    several = len({one["peer"] for one in findings}) > 1
    return f"{finding['links']} to {finding['peer']}" if several else str(finding["links"])


class _Curve(NamedTuple):
    name: str
    style: dict[str, Any]
    points: list[dict[str, Any]]
    again: list[dict[str, Any]]  # measured once more, for what is expected of that size


def _curves(measured: list[dict[str, Any]]) -> Iterator[_Curve]:
    """A curve for each way and operation: the way has the colour, the operation the stroke."""
    curves: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    again: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for m in measured:
        key = way(measured, m), m["operation"]
        if curves.setdefault(key, {}).setdefault(m["size"], m) is not m:
            again.setdefault(key, []).append(m)
    ways, operations = (list(dict.fromkeys(names)) for names in zip(*curves, strict=True))
    for (over, operation), points in curves.items():
        style = {
            "color": _COLOURS[ways.index(over) % len(_COLOURS)],
            "linestyle": _STROKES[operations.index(operation) % len(_STROKES)],
        }
        ordered = [points[size] for size in sorted(points)]
        yield _Curve(f"{operation}, {over}", style, ordered, again.get((over, operation), []))


def _latency(axes: Any, measured: list[dict[str, Any]]) -> None:
    _draw(axes, measured, "latency_us")
    for curve in _curves(measured):
        sizes, times = zip(*((point["size"], point["latency_us_p99"]) for point in curve.points), strict=True)
        axes.plot(sizes, times, ":", color=curve.style["color"], lw=1)
    axes.set_ylabel("µs")
    _sizes(axes, measured)


def _bandwidth(axes: Any, measured: list[dict[str, Any]]) -> None:
    _draw(axes, measured, "bandwidth_gb_s")
    axes.set_ylabel("GB/s")
    _sizes(axes, measured)


def _draw(axes: Any, measured: list[dict[str, Any]], figure: str) -> None:
    """Draws the curves, and rings for what was measured once more."""
    label = "again, for an expectation"
    for curve in _curves(measured):
        sizes, figures = zip(*((point["size"], point[figure]) for point in curve.points), strict=True)
        axes.plot(sizes, figures, "o", **curve.style, label=curve.name, ms=3.5, lw=1.5)
    for curve in _curves(measured):
        for point in curve.again:
            ring = {"color": curve.style["color"], "marker": "o", "mfc": "none", "ms": 7, "ls": "none"}
            axes.plot(point["size"], point[figure], **ring, label=label)
            label = ""  # once in the legend


def _sizes(axes: Any, measured: list[dict[str, Any]]) -> None:
    axes.set_xscale("log", base=2)
    marked: list[int] = []
    for size in sorted({m["size"] for m in measured}):
        if not marked or size >= 4 * marked[-1]:
            marked.append(size)
    axes.set_xticks(marked, [size_text(size) for size in marked], rotation=30, ha="right")
    axes.tick_params(axis="x", which="minor", length=0)
    scale_logarithmically(axes)


def _soak(axes: Any, soak: dict[str, Any]) -> None:
    for (side, name), colour in zip((("here", "this side"), ("there", "the peer")), _COLOURS, strict=False):
        rates = soak[side]["each_second"]
        ends = [(number + 1) * soak["seconds"] / len(rates) for number in range(len(rates))]
        axes.plot(ends, rates, "o-", color=colour, label=name, ms=3.5, lw=1.5)
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("seconds")
    axes.set_ylabel("operations in a second")
