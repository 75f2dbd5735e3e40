"""Drawings for notebooks: SVG that is readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

# These can be told apart also without full colour vision.
_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f")
_UNREACHABLE = "#d40000"
_DASHED = ' stroke-dasharray="5 4"'
_MOST_REGIONS = 60
_MOST_GRANTS = 8  # of a region


class Drawing:
    """An SVG picture. Notebooks show it, terminals show its text instead, and `str` gives the SVG."""

    def __init__(self, svg: str, text: str) -> None:
        self._svg, self._text = svg, text

    def __str__(self) -> str:
        return self._svg

    def __repr__(self) -> str:
        return self._text

    def _repr_svg_(self) -> str:
        return self._svg


class DrawnRegion(NamedTuple):
    """A region as the map shows it."""

    address: int
    nbytes: int
    what: str  # its array: "(6, 4) float32"
    rights: str
    key: str
    remote: bool  # whether peers have any right
    grants: tuple[str, ...] = ()  # what each of its grants gives away


def regions_map(regions: Iterable[DrawnRegion]) -> Drawing:
    """A row for each region and each gap, in the order of addresses. A bar is as long as the logarithm of its region's bytes."""
    ordered = sorted(regions)
    shown = ordered[:_MOST_REGIONS]
    largest = max((math.log2(2 + region.nbytes) for region in shown), default=1.0)
    title = f"{len(ordered)} region{'' if len(ordered) == 1 else 's'} in the order of addresses"
    shapes, lines = [_text(12, 20, title, "title")], [title]
    rights: list[tuple[int, str]] = []
    y, column = 34, 0.0
    noted = 0  # where the longest of the grants ends
    end: int | None = None
    for region in shown:
        if end is not None and region.address != end:
            gap = region.address - end
            shapes.append(_text(176, y + 8, f"{bytes_text(gap)} between" if gap > 0 else "overlaps", "note"))
            y += 16
        end = max(end or 0, region.address + region.nbytes)
        width = 20 + 240 * math.log2(2 + region.nbytes) / largest
        colour = _PALETTE[0] if region.remote else _PALETTE[-1]
        label = f"{bytes_text(region.nbytes)}, {region.what}"
        inside = 7 * len(label) < width - 12
        shapes.append(_text(164, y + 14, f"{region.address:#x}", "address"))
        shapes.append(f'<rect x="172" y="{y}" width="{width:.0f}" height="20" rx="3" fill="{colour}"/>')
        shapes.append(_text(180 if inside else 178 + width, y + 14, label, "inside" if inside else ""))
        column = max(column, 200 + width + (0 if inside else 7 * len(label)))
        rights.append((y + 14, f"{region.rights}; key {region.key}"))
        lines.append(f"{region.address:#x}  {label}  {region.rights}  key {region.key}")
        y += 24
        for note in _grants(region):
            shapes.append(_text(180, y + 8, note, "note"))
            lines.append(f"    {note}")
            noted = max(noted, 200 + 7 * len(note))
            y += 16
    shapes += [_text(column, at, text) for at, text in rights]
    if len(ordered) > len(shown):
        lines.append(f"and {len(ordered) - len(shown)} more")
        shapes.append(_text(176, y + 14, lines[-1], "note"))
        y += 20
    wide = column + 20 + 8 * max((len(text) for _, text in rights), default=0)
    return Drawing(_svg(max(wide, noted, 320), y + 12, shapes), "\n".join(lines))


def _grants(region: DrawnRegion) -> list[str]:
    """What stands below the region's bar."""
    notes = [f"grants {grant}" for grant in region.grants[:_MOST_GRANTS]]
    more = len(region.grants) - len(notes)
    return [*notes, f"and {more} more grants"] if more else notes


class DrawnLink(NamedTuple):
    """One direction between two ranks."""

    rank: int
    peer: int
    link: str  # "-": none
    how: str


def topology(hosts: Sequence[str], links: Iterable[DrawnLink]) -> Drawing:
    """Ranks on a circle, those of one host beside each other, and a curve for each pair in the colour of its link."""
    links = list(links)
    both = {(link.rank, link.peer, link.link) for link in links}
    names = sorted({link.link for link in links} - {"-"})
    styles = {name: (_PALETTE[i % len(_PALETTE)], "") for i, name in enumerate(names)}
    if any(link.link == "-" for link in links):
        styles["-"] = (_UNREACHABLE, _DASHED)
    circle = _Circle(hosts)
    shapes = []
    for link in sorted(links, key=lambda link: link.link == "-"):  # missing links are drawn last, on top
        if link.rank > link.peer and (link.peer, link.rank, link.link) in both:
            continue  # the other direction is drawn for both
        (x1, y1), (x2, y2) = circle.places[link.rank], circle.places[link.peer]
        x, y = (0.3 * centre + 0.35 * (a + b) for centre, a, b in ((circle.x, x1, x2), (circle.y, y1, y2)))
        colour, dash = styles[link.link]
        about = escape(f"{link.rank} to {link.peer}: {link.link}, {link.how}")
        shapes.append(
            f'<path d="M{x1:.1f} {y1:.1f}Q{x:.1f} {y:.1f} {x2:.1f} {y2:.1f}" fill="none" stroke="{colour}" '
            f'stroke-width="1.6" stroke-opacity="0.75"{dash}><title>{about}</title></path>'
        )
    for rank, (x, y) in enumerate(circle.places):
        shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="12" class="rank"/>')
        shapes.append(_text(x, y + 4, str(rank), "number"))
    shapes += [_text(x, y, host, f"host {anchor}") for x, y, anchor, host in circle.labels()]
    for i, (name, (colour, dash)) in enumerate(styles.items()):
        y = 24 + 20 * i
        line = f'<line x1="14" y1="{y - 4}" x2="44" y2="{y - 4}" stroke="{colour}" stroke-width="3"{dash}/>'
        shapes += [line, _text(52, y, "no link" if name == "-" else name)]
    title = f"{len(hosts)} ranks on {len(set(hosts))} host{'' if len(set(hosts)) == 1 else 's'}"
    lines = [title, *(f"{link.rank} -> {link.peer}  {link.link}  {link.how}" for link in links)]
    return Drawing(_svg(2 * circle.x, 2 * circle.y, shapes), "\n".join(lines))


class _Circle:
    """The places of the ranks on a circle: in the order of hosts, with a gap between two hosts."""

    def __init__(self, hosts: Sequence[str]) -> None:
        order = sorted(range(len(hosts)), key=lambda rank: (hosts.index(hosts[rank]), rank))
        self._spans: dict[str, list[float]] = {}
        gap = 0.8 if len(set(hosts)) > 1 else 0.0  # in steps between ranks
        step = 2 * math.pi / (len(hosts) + gap * len(set(hosts)))
        self._radius = min(190, 60 + 10 * len(hosts))
        self.x = self._radius + 70 + 7 * max(len(_short(host)) for host in hosts)
        self.y = self._radius + 50
        self.places = [(0.0, 0.0)] * len(hosts)
        angle = -math.pi / 2
        for i, rank in enumerate(order):
            if i and hosts[rank] != hosts[order[i - 1]]:
                angle += gap * step
            self.places[rank] = self._at(angle, self._radius)
            self._spans.setdefault(hosts[rank], []).append(angle)
            angle += step

    def _at(self, angle: float, radius: float) -> tuple[float, float]:
        return self.x + radius * math.cos(angle), self.y + radius * math.sin(angle)

    def labels(self) -> Iterator[tuple[float, float, str, str]]:
        """The names of the hosts, which stand outside of the circle: place, anchor, text."""
        for host, angles in self._spans.items():
            middle = (angles[0] + angles[-1]) / 2 if len(self._spans) > 1 else -math.pi / 2
            x, y = self._at(middle, self._radius + 30)
            side = math.cos(middle)
            yield x, y + 4, "middle" if abs(side) < 0.3 else "start" if side > 0 else "end", _short(host)


def _short(host: str) -> str:
    return host if len(host) <= 24 else host[:23] + "…"


def curve(values: Sequence[float]) -> str:
    """A small line in a table, from zero to the largest value."""
    if len(values) < 2:
        return ""
    top = max(values) or 1.0
    points = " ".join(f"{2 * i + 1},{20 - 18 * value / top:.1f}" for i, value in enumerate(values))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * len(values)}" height="22">'
        f'<polyline points="{points}" fill="none" stroke="{_PALETTE[0]}" stroke-width="1.5"/></svg>'
    )


_STYLE = "".join(
    f".pyfab-drawing {rule}"  # an inline picture's style applies to the whole page
    for rule in (
        "text{font:12px sans-serif;fill:#222}",
        ".title{font-weight:bold}",
        ".note{font-size:11px;fill:#777}",
        ".address{font-family:monospace;text-anchor:end}",
        ".inside{fill:#fff}",
        ".rank{fill:#fff;stroke:#222;stroke-width:1.5}",
        ".number{text-anchor:middle}",
        ".host{font-weight:bold}",
        ".middle{text-anchor:middle}",
        ".end{text-anchor:end}",
    )
)


def _svg(width: float, height: float, shapes: Iterable[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pyfab-drawing" viewBox="0 0 {width:.0f} {height:.0f}" {size} '
        f'style="max-width:100%;height:auto"><style>{_STYLE}</style><rect {size} rx="6" fill="#fff"/>{"".join(shapes)}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'


def bytes_text(count: float) -> str:
    """``1.5 KiB``: three digits are enough for a picture."""
    amount, units = count, iter(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    unit = next(units)
    while amount >= 1000:
        amount, unit = amount / 1024, next(units)
    return f"{amount:.3g} {unit}"
