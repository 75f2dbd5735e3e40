"""What a user expects of links: a TOML file, and whether a measurement meets it.

[[expect]]
operation = "put"          # put, get or fetch_add
size = 8                   # bytes, or with a unit: "64 KiB", "1 MiB"
latency_us_max = 3.0       # the median of one operation, complete on return
links = "verbs:*"          # only where --links matches; without: everywhere

[[expect]]
operation = "get"
size = "1 MiB"
bandwidth_gb_s_min = 11.0  # many operations in flight, 10**9 bytes a second
"""

from __future__ import annotations

import fnmatch
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pyfab.testing._measure import OPERATIONS, Measurement

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings this where Python has no tomllib
    import tomli as tomllib

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_KEYS = ("operation", "size", "latency_us_max", "bandwidth_gb_s_min", "links")
MOST = 1 << 30  # bytes


class Expectation(NamedTuple):
    """One table of the file."""

    operation: str
    size: int
    latency_us_max: float | None = None
    bandwidth_gb_s_min: float | None = None
    links: str = "*"

    def concerns(self, links: str) -> bool:
        """Whether the expectation is about these links."""
        return fnmatch.fnmatchcase(links, self.links)

    def missed(self, found: Measurement) -> list[str]:
        """What the measurement falls short of, in words."""
        wrong = []
        if self.latency_us_max is not None and found.latency_us > self.latency_us_max:
            wrong.append(
                f"{found.operation} of {size_text(found.size)} takes {found.latency_us:g} µs (median of {found.samples});"
                f" expected at most {self.latency_us_max:g} µs"
            )
        if self.bandwidth_gb_s_min is not None and found.bandwidth_gb_s < self.bandwidth_gb_s_min:
            wrong.append(
                f"{found.operation} of {size_text(found.size)} moves {found.bandwidth_gb_s:g} GB/s;"
                f" expected at least {self.bandwidth_gb_s_min:g} GB/s"
            )
        return wrong

    def __str__(self) -> str:
        limits = []
        if self.latency_us_max is not None:
            limits.append(f"at most {self.latency_us_max:g} µs")
        if self.bandwidth_gb_s_min is not None:
            limits.append(f"at least {self.bandwidth_gb_s_min:g} GB/s")
        return f"{self.operation} {size_text(self.size)}: {', '.join(limits)}"


def load(path: Path) -> list[Expectation]:
    """The expectations of a file. OSError if it cannot be read, ValueError naming what is wrong in it."""
    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    tables = content.pop("expect", None)
    if content or not isinstance(tables, list) or not tables:
        found = ", ".join(content) or "nothing else"
        raise ValueError(f"{path}: write tables [[expect]], and nothing beside them; found {found}")
    return [_expectation(table, f"{path}: [[expect]] number {n}") for n, table in enumerate(tables, 1)]


def _expectation(table: Any, where: str) -> Expectation:
    if not isinstance(table, dict):
        raise ValueError(f"{where} is no table")
    if unknown := set(table) - set(_KEYS):
        raise ValueError(f"{where} has {', '.join(sorted(unknown))}; there are {', '.join(_KEYS)}")
    if table.get("operation") not in OPERATIONS:
        raise ValueError(
            f"{where}: operation = {table.get('operation')!r}; it is one of {', '.join(OPERATIONS)}"
        )
    limits = table.get("latency_us_max"), table.get("bandwidth_gb_s_min")
    if limits == (None, None):
        raise ValueError(f"{where} expects nothing: give latency_us_max or bandwidth_gb_s_min")
    if any(limit is not None and not _positive(limit) for limit in limits):
        raise ValueError(f"{where}: a limit is a number above 0")
    if not isinstance(table.get("links", "*"), str):
        raise ValueError(f"{where}: links is a pattern such as 'verbs:*'")
    size = 8 if table["operation"] == "fetch_add" else _size(table.get("size"), where)
    return Expectation(table["operation"], size, *limits, table.get("links", "*"))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _size(value: Any, where: str) -> int:
    parts = re.fullmatch(r"(\d+) ?([KMG]iB|B|)", str(value))
    size = int(parts[1]) * _UNITS[parts[2]] if parts and not isinstance(value, bool) else 0
    if not 0 < size <= MOST:
        raise ValueError(f"{where}: size = {value!r}; give bytes, or text such as '64 KiB', up to 1 GiB")
    return size


def size_text(size: int) -> str:
    """A size as people write it."""
    for unit in ("GiB", "MiB", "KiB"):
        if size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]} {unit}"
    return f"{size} B"
