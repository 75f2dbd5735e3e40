"""``pyfab info``."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from typing import TYPE_CHECKING, NamedTuple

import pyfab
from pyfab._cli._options import add_json, print_json
from pyfab._table import Table
from rich.console import Console

if TYPE_CHECKING:
    from pyfab._cli._options import Commands


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser("info", help="providers and devices that can be used here")
    command.add_argument("--provider", help="only this one, for example tcp or shm+tcp")
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Does it."""
    infos = pyfab.getinfo(options.provider)
    if options.json:
        print_json(
            [
                dataclasses.asdict(info) | {"caps": _names(info.caps), "mr_mode": _names(info.mr_mode)}
                for info in infos
            ]
        )
    else:
        Console().print(Table(Entry, map(Entry.of, infos), "usable here"))
    return 0


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
