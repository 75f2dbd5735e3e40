"""Rows that show themselves as a table: in a terminal, in rich output and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable

Row = TypeVar("Row", bound=NamedTuple)


class Table(list[Row]):
    """A list of named tuples of one type; the names are the headings."""

    def __init__(self, row_type: type[Row], rows: Iterable[Row] = (), title: str = "") -> None:
        super().__init__(rows)
        self.columns: tuple[str, ...] = row_type._fields
        self.title = title

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries."""
        return [row._asdict() for row in self]

    def cells(self, row: Row) -> list[str]:
        """A row as people read it, one text for each column."""
        return [str(value) for value in row]

    def __repr__(self) -> str:
        lines = [self.columns, *map(self.cells, self)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in self.cells(row)) + "</tr>" for row in self
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __rich__(self) -> RenderableType:
        return drawn(self.title, [name.replace("_", " ") for name in self.columns], map(self.cells, self))


def drawn(title: str, headings: Iterable[str], rows: Iterable[Iterable[str]]) -> RichTable:
    """A table for narrow terminals, where lines between columns would take a third of the width."""
    from rich.box import SIMPLE_HEAD  # not needed by most programs, and slow to import
    from rich.table import Table as RichTable

    table = RichTable(
        title=title or None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
