"""Draws the pictures of the README into docs/_static: `python docs/figures/draw.py`.

failover.svg: what `measure_failover.py` recorded in failover.json. speed.svg: figures of the README's own tables, so both agree.
notebook.svg: the cells of notebook.ipynb and what they showed when `scripts/notebooks docs/figures/notebook.ipynb` ran them.

Each is a panel of its own colour, which is readable on light and on dark pages, and has letters that are readable on a telephone.
"""

import io
import json
import keyword
import re
import tokenize
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
FOLDER = HERE.parent / "_static"

BLUE, ORANGE, GREY, RED = "#0072b2", "#e69f00", "#98a2ad", "#c0392b"
STYLE = (
    "text{font-family:-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}"
    ".code{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    ".bold{font-weight:bold}.quiet{fill:#57606a}.end{text-anchor:end}.middle{text-anchor:middle}.over{fill:#fff}"
)


def picture(title: str, size: tuple[int, int], shapes: Iterable[str]) -> str:
    """A whole SVG file, with a margin below, as it may stand above another; `title` is for those who do not see it."""
    width, height = size
    below = height + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{below}" viewBox="0 0 {width} {below}">\n'
        f"<title>{escape(title)}</title><style>{STYLE}</style>\n"
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="#fff" stroke="#d0d7de"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, size: int, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" class="{kind}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, rest: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {rest}/>'


# --- fail-over

STEP, SHOWN = 0.1, 9.0  # seconds: of a mean, and of the axis


def rates(samples: list[list[float]]) -> list[tuple[float, ...]]:
    """Of each step its middle, and Gbit/s that arrived over each rail; samples tell a time, and the bytes until then."""

    def arrived(rail: int, moment: float) -> float:
        after = next(i for i, sample in enumerate(samples) if sample[0] >= moment)
        (t0, *before), (t1, *then) = samples[max(after - 1, 0)], samples[after]
        share = (moment - t0) / (t1 - t0) if t1 > t0 else 0.0
        return before[rail] + share * (then[rail] - before[rail])

    moments = [samples[0][0] + STEP * i for i in range(int(SHOWN / STEP) + 1)]
    return [
        (at + STEP / 2, *(8e-9 * (arrived(rail, at + STEP) - arrived(rail, at)) / STEP for rail in (0, 1)))
        for at in moments
    ]


class Axes(NamedTuple):
    """Where seconds and Gbit/s are."""

    left: float = 64
    bottom: float = 262
    per_second: float = 732 / SHOWN
    per_gbit: float = 92

    def at(self, seconds: float, gbit: float) -> tuple[float, float]:
        return self.left + self.per_second * seconds, self.bottom - self.per_gbit * gbit


def failover(recorded: dict[str, Any]) -> str:
    axes = Axes()
    points = [point for point in rates(recorded["samples"]) if point[0] <= SHOWN]
    out, back = recorded["unplugged"], recorded["plugged"]
    fast = max(sum(point[1:]) for point in points) / 2
    again = next(at for at, first, _ in points if at > back and first > fast / 2)
    shapes = [
        text(20, 34, "Puts of 16 MiB over two network cards, one of which is unplugged", 20, "bold"),
        box(
            *axes.at(out, 2),
            axes.per_second * (back - out),
            2 * axes.per_gbit,
            f'fill="{RED}" fill-opacity="0.12"',
        ),
    ]
    for gbit in (0, 1, 2):
        x, y = axes.at(0, gbit)
        shapes.append(f'<path d="M{x:.0f} {y:.1f}H796" stroke="#d0d7de"/>')
        shapes.append(text(x - 10, y + 6, str(gbit), 20, "end quiet"))
    lower = [axes.at(at, second) for at, _, second in points]
    upper = [axes.at(at, first + second) for at, first, second in points]
    ground = [axes.at(points[0][0], 0), axes.at(points[-1][0], 0)]
    shapes += [area(lower + ground[::-1], BLUE), area(upper + lower[::-1], ORANGE)]
    shapes += [text(*axes.at(second, -0.27), f"{second} s", 20, "middle quiet") for second in range(0, 9, 2)]
    later = f"used again {again - back:.1f} s later"
    notes = {
        (out + back) / 2: ("first card", "unplugged"),
        (back + again) / 2: ("plugged", "in again"),
        again + 1.2: (later[:10], later[11:]),
    }
    for middle, lines in notes.items():
        shapes += [
            text(*axes.at(middle, 1.34 - 0.24 * i), line, 19, "bold middle") for i, line in enumerate(lines)
        ]
    shapes += [
        text(*axes.at(0.25, 0.42), "second card", 19, "bold over"),
        text(*axes.at(0.25, 1.29), "first card", 19, "bold"),
        text(20, axes.at(0, 2)[1] - 15, "Gbit/s", 20, "quiet"),
    ]
    puts = recorded["puts"]
    shapes += [
        text(20, 318, f"All {puts} puts completed, and the counter that each raised by one says {puts}.", 20),
        text(20, 345, "Cards of 1 Gbit/s between two machines made of Linux name spaces.", 20, "quiet"),
    ]
    title = f"Gbit/s over two network cards while one is unplugged for {back - out:.1f} s; it is {later}"
    return picture(title, (820, 362), shapes)


def area(corners: list[tuple[float, float]], colour: str) -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
    return f'<path d="M{path}Z" fill="{colour}"/>'


# --- speed


class Panel(NamedTuple):
    """A row of one of the README's tables, as it begins there."""

    row: str
    title: str
    unit: str
    part: int = 0  # of a cell with several figures, "13 / 3.8 M/s"
    names: tuple[str, ...] = ("pyfab", "libfabric 1.17", "UCX 1.13", "plain sockets")


PANELS = (
    Panel("put 8 B, memory from", "8-byte put, from Python", "µs", names=("pyfab", "mpi4py")),
    Panel("tagged message of 8 B", "8-byte message, one way", "µs"),
    Panel("8-byte messages", "many 8-byte messages", "M/s"),
    Panel("8-byte messages", "the same over tcp", "M/s", part=1),
    Panel("1 MiB messages", "1 MiB messages", "GB/s"),
    Panel("1 MiB messages", "the same over tcp", "GB/s", part=1),
)

NOTES = (
    "Over shared memory unless tcp is named; the put into",
    "memory that the library made, the messages in C++.",
    "Medians on a virtual machine, two cores of an AMD EPYC;",
    "on cores that are closer to each other, UCX leads with 8 bytes.",
)


def bars(panel: Panel, readme: str) -> list[tuple[str, str]]:
    """Who is compared, and the figure as it stands in the README."""
    line = next(line for line in readme.splitlines() if line.startswith(f"| {panel.row}"))
    cells = line.strip("|").split(" | ")[1 : 1 + len(panel.names)]
    found = []
    for name, cell in zip(panel.names, cells, strict=True):
        figures = re.search(rf"(\S+(?: / \S+)*) {re.escape(panel.unit)}", cell)
        if figures and (figure := figures[1].split(" / ")[panel.part]) != "-":
            found.append((name, figure))
    return found


def speed(readme: str) -> str:
    shapes = [text(14, 26, "Beside its peers, between two processes", 16, "bold")]
    y = 50
    for panel in PANELS:
        better = "less" if panel.unit == "µs" else "more"
        shapes.append(text(14, y, panel.title, 13, "bold"))
        shapes.append(text(394, y, f"{panel.unit}, {better} is better", 12, "end quiet"))
        found = bars(panel, readme)
        longest = max(float(figure) for _, figure in found)
        for name, figure in found:
            y += 17
            width = max(2.0, 230 * float(figure) / longest)
            shapes.append(text(110, y, name, 13, "end"))
            shapes.append(box(116, y - 11, width, 13, f'rx="2" fill="{BLUE if name == "pyfab" else GREY}"'))
            shapes.append(text(122 + width, y, figure, 13, "bold" if name == "pyfab" else ""))
        y += 25
    for note in NOTES:
        shapes.append(text(14, y, note, 12, "quiet"))
        y += 17
    return picture(
        "The README's figures of pyfab beside mpi4py, libfabric, UCX and sockets", (408, y - 3), shapes
    )


# --- notebook


def notebook(cells: list[dict[str, Any]]) -> str:
    shapes, y = [text(14, 26, "Four processes in one cell", 16, "bold")], 40.0
    for cell in cells:
        lines = "".join(cell["source"]).splitlines()
        shapes.append(box(10, y, 388, 17 * len(lines) + 14, 'rx="4" fill="#f6f8fa" stroke="#d0d7de"'))
        y += 4
        for line in lines:
            y += 17
            shapes.append(f'<text x="18" y="{y:.0f}" font-size="12" class="code">{coloured(line)}</text>')
        y += 16
        for output in cell["outputs"]:
            for line in "".join(output.get("text", "")).splitlines():
                y += 17
                shapes.append(f'<text x="18" y="{y:.0f}" font-size="12" class="code">{escape(line)}</text>')
            for drawing in output.get("data", {}).get("image/svg+xml", ""):
                shapes.append(placed(drawing, y + 4))
                y += 260
        y += 14
    return picture(
        "A notebook: cells that begin with %%pyfab, and what four ranks show", (408, int(y)), shapes
    )


def placed(drawing: str, y: float) -> str:
    """A picture within another: smaller, and without its empty margins."""
    drawing = drawing.replace('viewBox="0 0 410 300"', 'viewBox="10 8 310 262"')
    return re.sub(
        r'width="\d+" height="\d+" style="[^"]*"',
        f'x="30" y="{y:.0f}" width="302" height="256"',
        drawing,
        count=1,
    )


def coloured(line: str) -> str:
    if line.startswith("%"):
        return f'<tspan fill="#8250df">{escape(line)}</tspan>'
    parts, end = [], 0
    for token in tokens(line.strip()):
        start = token.start[1]
        parts.append(line.strip()[end:start])
        end = token.end[1]
        colour = (
            "#57606a"
            if token.type == tokenize.COMMENT
            else "#0550ae"
            if token.type in (tokenize.NUMBER, tokenize.STRING)
            else "#cf222e"
            if keyword.iskeyword(token.string)
            else ""
        )
        word = escape(token.string)
        parts.append(f'<tspan fill="{colour}">{word}</tspan>' if colour else word)
    return " " * (len(line) - len(line.lstrip())) + "".join(parts)


def tokens(line: str) -> Iterator[tokenize.TokenInfo]:
    """Those of one line, whatever it leaves open."""
    for token in tokenize.generate_tokens(io.StringIO(line).readline):
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            return
        yield token


def pictures() -> dict[str, str]:
    """The content of each file."""
    recorded = json.loads((HERE / "failover.json").read_text())
    cells = json.loads((HERE / "notebook.ipynb").read_text())["cells"]
    return {
        "failover.svg": failover(recorded),
        "speed.svg": speed(README.read_text()),
        "notebook.svg": notebook(cells[1:]),  # without the one that loads the extension
    }


def main() -> None:
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg)
        print(f"{FOLDER / name}: {len(svg)} bytes")


if __name__ == "__main__":
    main()
