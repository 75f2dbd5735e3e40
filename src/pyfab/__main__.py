"""The command ``pyfab``."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyfab
from pyfab._table import Table
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit status is 0 for success, 1 for a failure that a message names, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # who reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, ValueError, LookupError) as error:
        reason = error.args[0] if isinstance(error, KeyError) else error
        print(f"pyfab {options.command}: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pyfab", description="One-sided communication: put, get and update a peer's memory."
    )
    parser.add_argument("--version", action="version", version=f"pyfab {pyfab.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo", help="shard real data over local processes and read it one-sidedly, verified"
    )
    demo.add_argument(
        "--data", type=Path, metavar="FILE", help=".npy or .csv; default: handwritten digits, shipped"
    )
    demo.add_argument("--procs", type=_count, default=4, help="processes (default: 4)")
    demo.add_argument(
        "--links", default="shm+tcp", help="each of these links alone, then all together (default: shm+tcp)"
    )
    demo.set_defaults(run=_demo)

    serve = commands.add_parser("serve", help="let others read arrays in .npy files")
    serve.add_argument(
        "files", nargs="*", type=Path, metavar="FILE.npy", help="served under its name without .npy"
    )
    serve.add_argument(
        "--name", action="append", default=[], metavar="NAME=FILE", help="serve FILE under NAME"
    )
    serve.add_argument(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="default: a free port of 127.0.0.1"
    )
    serve.add_argument("--token", help="clients must know it (default: $PYFAB_TOKEN)")
    serve.set_defaults(run=_serve)

    fetch = commands.add_parser("fetch", help="read a served array, or a part of it, into a .npy file")
    fetch.add_argument("address", metavar="HOST:PORT")
    fetch.add_argument(
        "selection",
        nargs="?",
        metavar="NAME[INDEX]",
        help="images, images[10:20], 'images[:, 3]'; without: list",
    )
    fetch.add_argument("-o", "--output", type=Path, metavar="OUT.npy", help="default: NAME.npy")
    fetch.add_argument("--token", help="default: $PYFAB_TOKEN")
    fetch.add_argument("--json", action="store_true", help="list as JSON")
    fetch.set_defaults(run=_fetch)

    info = commands.add_parser("info", help="providers and devices that can be used here")
    info.add_argument("--provider", help="only this one, for example tcp or shm+tcp")
    info.add_argument("--json", action="store_true")
    info.set_defaults(run=_info)

    links = commands.add_parser(
        "links",
        help="show over which link processes reach each other, and why: local ones, or those of a job",
    )
    links.add_argument("--links", help="default: $FI_LNX_PROV_LINKS, else shm+tcp")
    links.add_argument("--procs", type=_count, default=2, help="local processes to start (default: 2)")
    links.add_argument(
        "--job",
        action="store_true",
        help="start none: be a rank of the job that torchrun, mpirun or srun started; rank 0 prints",
    )
    links.add_argument("--json", action="store_true")
    links.set_defaults(run=_links)

    doctor = commands.add_parser(
        "doctor", help="what this build and machine can do, why not more, and what mends it"
    )
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from pyfab._demo import demo

    return 0 if demo(options.data, options.procs, options.links, Console()) else 1


def _serve(options: argparse.Namespace) -> int:
    from pyfab._serve import serve

    named = [(path.stem, path) for path in options.files]
    for text in options.name:
        name, equals, path = text.partition("=")
        if not (name and equals and path) or "[" in name:
            raise ValueError(f"--name {text}: write NAME=FILE, the name without '['")
        named.append((name, Path(path)))
    if not named:
        raise ValueError("no file to serve")
    arrays = dict(named)
    if len(arrays) < len(named):
        raise ValueError("two files have one name; tell them apart with --name NAME=FILE")
    serve(arrays, options.listen, _token(options))
    return 0


def _fetch(options: argparse.Namespace) -> int:
    from pyfab._fetch import ArrayClient, parse_selection

    if options.selection is None:
        with ArrayClient(options.address, _token(options)) as client:
            _print_names(client.names(), options.json)
        return 0
    name, index = parse_selection(options.selection)
    output = options.output or Path(f"{Path(name).name}.npy")
    with ArrayClient(options.address, _token(options)) as client, _Progress(options.selection) as progress:
        array = client.fetch(name, index, output, progress)
    print(f"{output}: {array.shape} {array.dtype}, {array.nbytes:,} bytes")
    return 0


def _info(options: argparse.Namespace) -> int:
    infos = pyfab.getinfo(options.provider)
    if options.json:
        print(
            json.dumps(
                [
                    dataclasses.asdict(info) | {"caps": _names(info.caps), "mr_mode": _names(info.mr_mode)}
                    for info in infos
                ],
                indent=2,
            )
        )
    else:
        Console().print(Table(Entry, map(Entry.of, infos), "usable here"))
    return 0


def _links(options: argparse.Namespace) -> int:
    spec = options.links or os.environ.get("FI_LNX_PROV_LINKS") or "shm+tcp"
    if options.job:
        with pyfab.Group.from_env(domain=spec) as group:
            tables = group.allgather(group.links())
        if group.rank != 0:
            return 0
    else:
        tables = pyfab.spawn(pyfab.Group.links, options.procs, links=spec, timeout=60)
    if options.json:
        print(json.dumps({str(rank): table.records() for rank, table in enumerate(tables)}, indent=2))
    else:
        for table in tables:
            Console().print(table)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from pyfab._doctor import report, tables

    found = report()
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        console = Console()
        console.print("  ".join(f"{name} {value}" for name, value in found["build"].items()))
        for table in tables(found):
            console.print(table)
    return 0 if found["usable"] else 1


class Entry(NamedTuple):
    """What `pyfab info` shows of an Info."""

    provider: str
    spec: str
    address: str
    device: str

    @classmethod
    def of(cls, info: pyfab.Info) -> Entry:
        """The entry of one Info."""
        return cls(info.provider, info.spec, info.src_addr, ", ".join(map(_device, info.nics)))


def _device(nic: pyfab.Nic) -> str:
    speed = f"{nic.speed_bits_per_second // 10**6} Mbit/s" if nic.speed_bits_per_second else ""
    place = f"NUMA node {nic.numa_node}" if nic.numa_node >= 0 else ""
    return " ".join(filter(None, (nic.name, nic.state, speed, nic.pci_address, place)))


def _names(flags: enum.IntFlag) -> list[str]:
    return [str(flag.name) for flag in type(flags) if flag and flag in flags]


class _Progress:
    """A progress bar on stderr, if that is a terminal."""

    def __init__(self, title: str) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=self._console)
        self._task = self._bar.add_task(escape(title), total=None)

    def __call__(self, arrived: int, total: int) -> None:
        self._bar.update(self._task, completed=arrived, total=total)

    def __enter__(self) -> _Progress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()


def _print_names(arrays: dict[str, dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(arrays, indent=2))
        return
    for name, array in arrays.items():
        print(f"{name}: {tuple(array['shape'])} {array['dtype']}")


def _token(options: argparse.Namespace) -> str:
    return str(options.token if options.token is not None else os.environ.get("PYFAB_TOKEN", ""))


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count}: at least 1")
    return count


if __name__ == "__main__":
    sys.exit(main())
