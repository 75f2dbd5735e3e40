"""Which network devices lie near a processor or another device, as sysfs describes the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pyfab.core.errors import InvalidArgumentError
from pyfab.core.info import Info, Nic

__all__ = ["nearest"]

_UNKNOWN = (2, 0, 0)  # comes after everything whose place is known


def nearest(infos: Iterable[Info], to: str | int | None = None, *, sysfs: str = "/sys") -> list[Info]:
    """`infos` ordered by the distance of their network devices, otherwise as they came.

    to: None, the processors that this process may run on; an int, a NUMA node; a string, the PCI address of a device, such as
    a GPU. Entries without a network device come first. Then come devices below the same PCI root, those with the fewest bridges
    in between ahead, then devices of other roots by the distance of their NUMA nodes, and last those of unknown place. Of a
    link with several devices the farthest counts. InvalidArgumentError for a PCI address or node that is not there. sysfs: where
    the system is described.
    """
    machine = _Machine(Path(sysfs))
    if isinstance(to, str):
        place = machine.device(to)
        if place is None:
            raise InvalidArgumentError(
                f"to={to!r}: there is no such PCI device; addresses look like 0000:65:00.0"
            )
        nodes = [machine.node_of(place)]
    else:
        place = None
        nodes = machine.own_nodes() if to is None else [to]
        if to is not None and not machine.has_node(to):
            raise InvalidArgumentError(f"to={to}: the machine has no NUMA node of this number")

    def distance(info: Info) -> tuple[int, int, int]:
        return max((machine.distance(nic, place, nodes) for nic in info.nics), default=(0, 0, 0))

    return sorted(infos, key=distance)


class _Machine:
    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs

    def device(self, address: str) -> Path | None:
        """The folder of a PCI device, which is below those of its bridges; None if there is no such device."""
        link = self._sysfs / "bus/pci/devices" / address.lower()
        return link.resolve() if address and link.exists() else None

    def node_of(self, device: Path) -> int:
        try:
            return int((device / "numa_node").read_text())
        except (OSError, ValueError):
            return -1

    def has_node(self, node: int) -> bool:
        return self._node(node).exists()

    def own_nodes(self) -> list[int]:
        """The NUMA nodes of the processors that this process may use."""
        mine = os.sched_getaffinity(0)
        nodes = [
            int(folder.name.removeprefix("node"))
            for folder in (self._sysfs / "devices/system/node").glob("node[0-9]*")
            if mine & _cpus((folder / "cpulist").read_text())
        ]
        return sorted(nodes) or [-1]

    def distance(self, nic: Nic, place: Path | None, nodes: list[int]) -> tuple[int, int, int]:
        """(2 if the place is unknown, else 1; NUMA distance; bridges): smaller is nearer."""
        device = self.device(nic.pci_address) if nic.pci_address else None
        hops = _hops(device, place) if device and place else None
        if hops is not None:
            return (1, 0, hops)
        known = [self._between(nic.numa_node, node) for node in nodes if node >= 0 and nic.numa_node >= 0]
        return (1, min(known), 0) if known else _UNKNOWN

    def _node(self, node: int) -> Path:
        return self._sysfs / f"devices/system/node/node{node}"

    def _between(self, one: int, other: int) -> int:
        """The distance of two NUMA nodes as the firmware tells it; it is 10 within a node."""
        nodes = sorted(
            int(folder.name.removeprefix("node")) for folder in self._node(0).parent.glob("node[0-9]*")
        )
        try:
            distances = (self._node(other) / "distance").read_text().split()
            return int(distances[nodes.index(one)])
        except (OSError, ValueError, IndexError):
            return 10 if one == other else 255


def _hops(one: Path, other: Path) -> int | None:
    """Steps from one device to the other through their nearest common bridge; None if they share no root."""
    common = 0
    for left, right in zip(one.parts, other.parts, strict=False):
        if left != right:
            break
        common += 1
    shared = one.parts[:common]
    if not any(part.startswith("pci") and ":" in part for part in shared):
        return None
    return len(one.parts) + len(other.parts) - 2 * common


def _cpus(text: str) -> set[int]:
    """The numbers in a list such as "0-3,8"."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus
