"""``pyfab info``."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import operator
from typing import TYPE_CHECKING, NamedTuple

import pyfab
from pyfab import versions
from pyfab.cli._options import Output, add_json, links, print_json
from pyfab.display.tables import Table, drawn
from pyfab.tools import libfabric
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyfab.cli._options import Commands

_UNLIMITED = 1 << 62
_LIMITS = {
    "inject_size": "bytes of an inject",
    "max_msg_size": "bytes of a message",
    "max_rma_size": "bytes of a put or get",
    "mr_key_size": "bytes of a key",
    "mr_iov_limit": "parts of a region",
    "max_contexts": "contexts of an endpoint",
    "max_group_id": "largest group",
}


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "info", help="providers and devices that can be used here, their limits, and where cards are"
    )
    command.add_argument("--provider", type=links, help="only this one, for example tcp or shm+tcp")
    command.add_argument(
        "--formats",
        action="store_true",
        help="the versions of what is sent, shared and stored, and nothing else",
    )
    command.add_argument(
        "--libfabric",
        action="store_true",
        help="the line after which programs of libfabric find pyfab's provider, and nothing else",
    )
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if options.formats:
        return _print_formats(options.json)
    if options.libfabric:
        return _print_libfabric(options.json)
    infos = pyfab.getinfo(options.provider)
    if options.json:
        print_json([_record(info) for info in infos])
        return 0
    console = Output()
    common = functools.reduce(operator.and_, (info.caps for info in infos))
    console.print(Table(Usable, (Usable.of(info, common) for info in infos), "usable here"))
    console.print(f"all of them: {_text(common)}")
    console.print(_limits(infos))
    cards = dict.fromkeys(nic for info in infos for nic in info.nics)
    if cards:
        headings = ("card", "driver", "state", "Gbit/s", "PCI address", "NUMA")
        console.print(drawn("network cards", headings, map(_card, cards)))
    return 0


def _print_formats(as_json: bool) -> int:
    formats = versions.formats()
    if as_json:
        print_json({"pyfab": pyfab.__version__, "formats": formats})
        return 0
    rows = [(form, str(version)) for form, version in formats.items()]
    Output().print(drawn(f"formats of pyfab {pyfab.__version__}", ("format", "version"), rows))
    return 0


def _print_libfabric(as_json: bool) -> int:
    where = libfabric.folder()
    if where is None:
        raise pyfab.NotSupportedError(
            "this build has no provider for libfabric: install libfabric's headers (apt install libfabric-dev) and "
            "build pyfab again"
        )
    if as_json:
        print_json({"folder": str(where)})
    else:
        print(libfabric.export_line(where))
    return 0


class Usable(NamedTuple):
    """A row of the table of what can be opened."""

    provider: str
    spec: str
    address: str
    cards: str
    also: str

    @classmethod
    def of(cls, info: pyfab.Info, common: pyfab.Caps) -> Usable:
        """The row of one Info; `also` lists its capabilities beyond the common ones."""
        cards = ", ".join(nic.name for nic in info.nics)
        return cls(info.provider, info.spec, info.src_addr, cards, _text(info.caps & ~common))


def _card(nic: pyfab.Nic) -> tuple[str, ...]:
    """The row of a network card."""
    speed = f"{nic.speed_bits_per_second / 1e9:g}" if nic.speed_bits_per_second else "-"
    place = str(nic.numa_node) if nic.numa_node >= 0 else "-"
    return nic.name, nic.driver or "-", nic.state, speed, nic.pci_address or "-", place


def _limits(infos: Sequence[pyfab.Info]) -> RichTable:
    """A table of limits. All that have the same limits, mostly the devices of one provider, share a column."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for info in infos:
        alike.setdefault(tuple(getattr(info, name) for name in _LIMITS), []).append(info.spec)
    rows = zip(_LIMITS.values(), *([_number(n) for n in numbers] for numbers in alike), strict=True)
    return drawn("limits", ["", *map(", ".join, alike.values())], rows)


def _number(number: int) -> str:
    return "any" if number > _UNLIMITED else f"{number:,}"


def _record(info: pyfab.Info) -> dict[str, object]:
    return dataclasses.asdict(info) | {
        "spec": info.spec,
        "caps": _names(info.caps),
        "mr_mode": _names(info.mr_mode),
        "ep_type": info.ep_type.name,
    }


def _text(caps: pyfab.Caps) -> str:
    return ", ".join(_names(caps)).lower()


def _names(flags: enum.IntFlag) -> list[str]:
    return [str(flag.name) for flag in type(flags) if flag and flag in flags]
