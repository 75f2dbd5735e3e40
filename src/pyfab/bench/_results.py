"""What was measured: tables that can be kept, compared and drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyfab.bench._measurement import UNITS, Measurement
from pyfab.bench._plot import draw, write
from pyfab.bench._timing import size_name
from pyfab.core.errors import InvalidArgumentError
from pyfab.display.tables import Table
from pyfab.tools.drafts import draft_of
from rich.console import Group as RichGroup
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMAT = "pyfab bench 1"
_COMPARED_FACTS = ("cpu", "cores", "governor", "kernel", "python", "numpy", "pyfab-rdma")


class Ratio(NamedTuple):
    """One figure beside that of a saved run. `speed` is above 1 where it is faster now, in any unit."""

    metric: str
    operation: str
    size: int
    memory: str
    links: str
    unit: str
    saved: float
    now: float
    speed: float


def _shown(name: str, value: Any) -> str:
    if name == "size":
        return size_name(value)
    if isinstance(value, float):
        # Three digits were measured, so zeros at the end stay.
        return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
    return "µs" if (name, value) == ("unit", "us") else str(value)


class Measurements(Table[Measurement]):
    """A list of `Measurement`, and `facts`: {"initiator": {...}, "target": {...}}, the machines and versions they belong to."""

    def __init__(
        self, rows: Iterable[Measurement], facts: dict[str, Any], *, interrupted: bool = False
    ) -> None:
        super().__init__(Measurement, rows)
        self.columns = self.columns[:-1]  # without the rounds
        self.facts = facts
        self.interrupted = interrupted
        """Whether rounds, or figures, are missing because of Ctrl-C."""

    def cells(self, row: Measurement) -> list[str]:
        """A row as people read it."""
        return [_shown(name, getattr(row, name)) for name in self.columns]

    def __rich__(self) -> RichGroup:
        return _by_metric(self, ("link", "median", "p10", "p99"))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return {"format": _FORMAT, "facts": self.facts, "measurements": self.records()}

    def save(self, path: str | Path) -> None:
        """Writes a JSON file that `load` reads."""
        with draft_of(Path(path)) as draft:
            draft.write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    def compare(self, saved: Measurements) -> Comparison:
        """Compares these figures with those of another run, where both have one."""
        before = {row.key: row for row in saved}
        here, there = self.facts["initiator"], saved.facts["initiator"]
        return Comparison(
            (_ratio(row, before[row.key]) for row in self if row.key in before),
            [f"{row.operation} {size_name(row.size)}" for row in self if row.key not in before],
            {
                name: (there.get(name), here.get(name))
                for name in _COMPARED_FACTS
                if here.get(name) != there.get(name)
            },
        )

    def plot(self) -> Figure:
        """One panel for each metric: over sizes, or bars where there is one size. ImportError without matplotlib."""
        return draw(self, self.facts)

    def write_plot(self, path: str | Path) -> None:
        """Writes the picture as its name ends: .png, .svg, .pdf, or .html, which has table and facts, too, in one file."""
        write(self, self.facts, self._repr_html_(), Path(path))


class Comparison(Table[Ratio]):
    """A list of `Ratio`. `missing`: figures that the saved run lacks; `changed`: fact → (saved, now), where they differ."""

    def __init__(
        self, rows: Iterable[Ratio], missing: list[str], changed: dict[str, tuple[Any, Any]]
    ) -> None:
        super().__init__(Ratio, rows, "beside the saved run")
        self.missing, self.changed = missing, changed

    def cells(self, row: Ratio) -> list[str]:
        """A row as people read it."""
        return [_shown(name, getattr(row, name)) for name in self.columns]

    def __rich__(self) -> RichGroup:
        return _by_metric(self, ("saved", "now", "speed"), note="; speed above 1: faster than the saved run")

    def slower_than(self, limit: float) -> list[Ratio]:
        """The figures whose speed is below `limit`."""
        return [row for row in self if row.speed < limit]


def load(path: str | Path) -> Measurements:
    """Reads a run that was saved. OSError if it cannot be read, InvalidArgumentError if the file is no saved run."""
    try:
        told = json.loads(Path(path).read_text())
        if told["format"] != _FORMAT:
            raise ValueError(f"its format is {told['format']!r}")
        dict(told["facts"]["initiator"])
        rows = [Measurement(**row | {"rounds": tuple(row["rounds"])}) for row in told["measurements"]]
        if not all(0 < row.median < math.inf for row in rows):
            raise ValueError("a median in it is no positive number")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"{path} is no saved run of this version ({error}); write one with --save"
        ) from None
    return Measurements(rows, told["facts"])


def _ratio(now: Measurement, saved: Measurement) -> Ratio:
    faster = saved.median / now.median if now.unit == "us" else now.median / saved.median
    return Ratio(*now.key, now.unit, saved.median, now.median, faster)


def _by_metric(rows: Sequence[Measurement | Ratio], figures: Sequence[str], note: str = "") -> RichGroup:
    """A table for each metric, with the columns that tell its rows apart."""
    metrics = dict.fromkeys(row.metric for row in rows)
    return RichGroup(*(_one([row for row in rows if row.metric == name], figures, note) for name in metrics))


def _one(rows: Sequence[Measurement | Ratio], figures: Sequence[str], note: str) -> RichTable:
    telling = [name for name in ("memory", "links") if len({getattr(row, name) for row in rows} - {"-"}) > 1]
    title = f"{rows[0].metric}, {UNITS[rows[0].unit]}{note}"
    table = RichTable(title=title, title_justify="left")
    names = ("operation", "size", *telling, *figures)
    for name in names:
        table.add_column(name, justify="left" if name in ("operation", "link", *telling) else "right")
    for row in rows:
        table.add_row(*(_shown(name, getattr(row, name)) for name in names))
    return table
