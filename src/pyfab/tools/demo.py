"""``pyfab demo``: shards an array over local processes and lets each of them read all of it from the others."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyfab.core.addressing.link_traits import provider_of
from pyfab.group.group import Group
from pyfab.group.window import Window
from pyfab.launch.spawn import spawn
from pyfab.launch.spawn_meeting import memory_file
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

_BATCH = 256  # rows that a process asks for at a time, each owner's share in one operation
_BINS = 64  # counters that all processes add to
_ENOUGH_OPERATIONS, _ENOUGH_SECONDS = 2000, 1.0  # small data are read again until either is reached
_MAX_BYTES = 256 << 20  # the most that one process reads over one link
_TIMEOUT = 60.0  # seconds for one link
_COLORS = ("green", "cyan", "magenta", "yellow")


class Visit(NamedTuple):
    """What one process did over one link."""

    latencies: NDArray[np.float64]  # seconds, of each read
    nbytes: int
    rows: int
    wrong: int  # reads whose bytes were not the source's
    atomics: int
    exact: bool  # whether the counters, read by this process, hold the exact sums
    links: list[str]  # by rank: the link that leads there


def demo(data: Path | None, procs: int, links: str, console: Console) -> dict[str, Any]:
    """Runs the demonstration and prints it, errors on stderr; returns the same as plain data. Raises ValueError for bad data.

    {"data", "shape", "dtype", "procs", "links": [figures of each, or "error"], "verified": whether every byte and sum was right}
    """
    with contextlib.ExitStack() as undo:
        array, path, title = _source(data, undo)
        if len(array) < procs:
            raise ValueError(
                f"{title} has {len(array)} rows; at least one for each of the {procs} processes is needed"
            )
        console.print(
            f"[bold]{title}[/]: {array.shape} {array.dtype}, {array.nbytes:,} bytes, in {procs} shards"
        )
        summary = Table(
            title="reads of globally shuffled rows, verified byte for byte",
            title_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for heading in ("link", "reads", "rows", "GB/s", "p50 µs", "p99 µs", "errors", "atomics", "sums"):
            summary.add_column(heading, justify="left" if heading in ("link", "sums") else "right")
        pictures = []
        figures: list[dict[str, Any]] = []
        told = {"data": title, "shape": array.shape, "dtype": str(array.dtype), "procs": procs}
        for spec in _specs(links):
            try:
                visits: list[Visit] = spawn(visit, procs, path, links=spec, timeout=_TIMEOUT)
            except Exception as error:
                figures.append({"links": spec, "error": f"{type(error).__name__}: {error}"})
                print(f"pyfab demo: {spec}: {figures[-1]['error']}", file=sys.stderr)
                continue
            figures.append(_figures(spec, visits))
            summary.add_row(*_row(figures[-1]))
            pictures.append(_picture(spec, visits))
    verified = all("error" not in of and of["errors"] == 0 and of["sums_exact"] for of in figures)
    if pictures:
        console.print(summary)
        console.print(Columns(pictures, padding=(0, 3)))
    if verified:
        console.print("[bold green]all bytes and all sums are right[/]")
    else:
        print("pyfab demo: not everything was right", file=sys.stderr)
    return told | {"links": figures, "verified": verified}


def visit(group: Group, path: str) -> Visit:
    """What each process does."""
    source = np.load(path, mmap_mode="r")
    bounds = np.linspace(0, len(source), group.size + 1).astype(int)
    first, last = bounds[group.rank : group.rank + 2]
    with (
        group.window(shape=(last - first, *source.shape[1:]), dtype=source.dtype) as shards,
        group.window(shape=_BINS + 1, dtype=np.int64) as counters,
    ):
        shards.local[...] = source[first:last]
        group.barrier()
        return _read_all(group, source, bounds, shards, counters)


def _read_all(
    group: Group, source: NDArray[Any], bounds: NDArray[np.int64], shards: Window, counters: Window
) -> Visit:
    latencies: list[float] = []
    tickets: list[int] = []
    bins = np.zeros(_BINS, np.int64)
    nbytes = rows = wrong = 0
    for batch in _shuffled(len(source), source[:1].nbytes, group.rank, latencies):
        owners = np.searchsorted(bounds, batch, side="right") - 1
        for owner in np.unique(owners):
            wanted = batch[owners == owner]
            out = np.empty((len(wanted), *source.shape[1:]), source.dtype)
            remote = shards[owner]
            start = time.perf_counter()
            remote.take(wanted - bounds[owner], out=out).result()
            latencies.append(time.perf_counter() - start)
            wrong += out.tobytes() != source[wanted].tobytes()
            nbytes += out.nbytes
        rows += len(batch)
        tally = np.bincount(batch % _BINS, minlength=_BINS)
        counters[0].accumulate(tally, np.s_[:_BINS]).result()
        tickets.append(counters[0].fetch_add(1, _BINS).result())
        bins += tally
    counters.fence()
    everyone = group.allgather((bins, tickets))
    drawn = sorted(ticket for _, theirs in everyone for ticket in theirs)
    expected = np.append(sum(theirs for theirs, _ in everyone), len(drawn))
    exact = bool(np.array_equal(counters[0][...], expected)) and drawn == list(range(len(drawn)))
    links = [group.endpoint.report(peer)[0] for peer in range(group.size)]
    return Visit(np.array(latencies), nbytes, rows, wrong, 2 * len(tickets), exact, links)


def _shuffled(rows: int, row_bytes: int, rank: int, done: list[float]) -> Iterator[NDArray[np.int64]]:
    """Batches of all row numbers in an order of this rank's own, again and again until enough is `done`."""
    rng = np.random.default_rng([rows, rank])
    most = max(_BATCH, min(rows, _MAX_BYTES // max(row_bytes, 1)))
    until = time.monotonic() + _ENOUGH_SECONDS
    while True:
        order = rng.permutation(rows)[:most]
        yield from np.split(order, range(_BATCH, len(order), _BATCH))
        if len(done) >= _ENOUGH_OPERATIONS or time.monotonic() >= until:
            return


def _source(data: Path | None, undo: contextlib.ExitStack) -> tuple[NDArray[Any], str, str]:
    """The array, the path of a .npy file of it that the processes can read until `undo`, and its name."""
    if data is None:
        with resources.files("pyfab.datasets").joinpath("digits.npz").open("rb") as stream:
            array = np.load(stream)["images"]
        title = "handwritten digits (E. Alpaydin, C. Kaynak, UCI, CC BY 4.0)"
    else:
        title = data.name
        if data.suffix == ".npy":
            array = _load_npy(data)
            return array, str(data.absolute()), title
        if data.suffix != ".csv":
            raise ValueError(f"{data}: give a .npy or a .csv file")
        array = _load_csv(data)
    file = memory_file(b"")
    undo.callback(os.close, file)
    with open(file, "wb", closefd=False) as stream:
        np.save(stream, array)
    return array, f"/proc/{os.getpid()}/fd/{file}", title


def _load_npy(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is no .npy file of plain numbers: {error}") from None
    if array.ndim == 0 or array.size == 0 or array.dtype.hasobject:
        raise ValueError(f"{path} holds no rows of plain numbers: shape {array.shape}, dtype {array.dtype}")
    return array


def _load_csv(path: Path) -> NDArray[Any]:
    with path.open() as stream:
        heading = stream.readline()
    try:
        skip = 0 if all(_is_number(field) for field in heading.split(",")) else 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "no data", which is reported below
            array = np.loadtxt(path, delimiter=",", skiprows=skip, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is no table of numbers separated by commas: {error}") from None
    if array.size == 0:
        raise ValueError(f"{path} holds no rows of numbers")
    return array


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _specs(links: str) -> list[str]:
    """The specs to run: each link alone, then all together."""
    leaves = links.split("+") if "|" not in links else []
    return [*leaves, links] if len(leaves) > 1 else [links]


def _figures(spec: str, visits: list[Visit]) -> dict[str, Any]:
    latencies = np.concatenate([v.latencies for v in visits])
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e6
    return {
        "links": spec,
        "reads": len(latencies),
        "rows": sum(v.rows for v in visits),
        "gb_per_s": float(sum(v.nbytes / v.latencies.sum() for v in visits) / 1e9),
        "p50_us": float(p50),
        "p99_us": float(p99),
        "errors": sum(v.wrong for v in visits),
        "atomics": sum(v.atomics for v in visits),
        "sums_exact": all(v.exact for v in visits),
        "used": [v.links for v in visits],
    }


def _row(of: dict[str, Any]) -> list[str]:
    return [
        of["links"],
        f"{of['reads']:,}",
        f"{of['rows']:,}",
        f"{of['gb_per_s']:.2g}",
        f"{of['p50_us']:.1f}",
        f"{of['p99_us']:.1f}",
        str(of["errors"]),
        f"{of['atomics']:,}",
        "exact" if of["sums_exact"] else "WRONG",
    ]


def _picture(spec: str, visits: list[Visit]) -> Table:
    """A table of the links that were used: a row for each reader, a column for each owner."""
    kinds = sorted({provider_of(link) for v in visits for link in v.links})
    color = dict(zip(kinds, _COLORS * len(kinds), strict=False))
    table = Table(title=f"{spec}: from ↓ to →", box=None, padding=(0, 1))
    for heading in ("", *map(str, range(len(visits)))):
        table.add_column(heading, justify="center")
    for rank, v in enumerate(visits):
        cells = [provider_of(link) for link in v.links]
        table.add_row(str(rank), *(Text(f"■ {cell}", style=color[cell]) for cell in cells))
    return table
