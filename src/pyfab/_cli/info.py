"""``pyfab info``."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import operator
from typing import TYPE_CHECKING, NamedTuple

import pyfab
from pyfab._cli._options import add_json, print_json
from pyfab._table import Table
from rich.console import Console

if TYPE_CHECKING:
    from pyfab._cli._options import Commands

_UNLIMITED = 1 << 62


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "info", help="providers and devices that can be used here, their limits, and where cards are"
    )
    command.add_argument("--provider", help="only this one, for example tcp or shm+tcp")
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Does it."""
    infos = pyfab.getinfo(options.provider)
    if options.json:
        print_json([_record(info) for info in infos])
        return 0
    console = Console()
    common = functools.reduce(operator.and_, (info.caps for info in infos))
    console.print(Table(Usable, (Usable.of(info, common) for info in infos), "usable here"))
    console.print(f"all of them: {_text(common)}")
    console.print(Table(Limits, map(Limits.of, infos), "limits, in bytes or numbers"))
    cards = dict.fromkeys(nic for info in infos for nic in info.nics)
    if cards:
        console.print(Table(Card, map(Card.of, cards), "network cards"))
    return 0


class Usable(NamedTuple):
    """What can be opened."""

    provider: str
    spec: str
    address: str
    cards: str
    also: str

    @classmethod
    def of(cls, info: pyfab.Info, common: pyfab.Caps) -> Usable:
        """The entry of one Info; `also` is what it is capable of beyond what is common."""
        cards = ", ".join(nic.name for nic in info.nics)
        return cls(info.provider, info.spec, info.src_addr, cards, _text(info.caps & ~common))


class Limits(NamedTuple):
    """How much of what it takes."""

    spec: str
    inject: str
    message: str
    rma: str
    key: str
    parts: str
    contexts: str
    groups: str

    @classmethod
    def of(cls, info: pyfab.Info) -> Limits:
        """The entry of one Info."""
        numbers = (
            info.inject_size,
            info.max_msg_size,
            info.max_rma_size,
            info.mr_key_size,
            info.mr_iov_limit,
            info.max_contexts,
            info.max_group_id,
        )
        return cls(info.spec, *("any" if number > _UNLIMITED else f"{number:,}" for number in numbers))


class Card(NamedTuple):
    """A network card and where it sits."""

    card: str
    driver: str
    state: str
    speed: str
    pci_address: str
    numa_node: str

    @classmethod
    def of(cls, nic: pyfab.Nic) -> Card:
        """The entry of one Nic."""
        speed = f"{nic.speed_bits_per_second / 1e9:g} Gbit/s" if nic.speed_bits_per_second else "-"
        place = str(nic.numa_node) if nic.numa_node >= 0 else "-"
        return cls(nic.name, nic.driver or "-", nic.state, speed, nic.pci_address or "-", place)


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
