"""Discovery: what could be opened on this machine."""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, NamedTuple

from pyfab import _core
from pyfab.core.enums import Caps, Delivery, EPType, MRMode, flag_names
from pyfab.core.errors import NO_DATA, FabricError, InvalidArgumentError
from pyfab.display.tables import Table

__all__ = ["Info", "Nic", "getinfo"]

_NO_CAPS = Caps(0)


@dataclasses.dataclass(frozen=True)
class Nic:
    """The network device of a link, as far as the system tells about it."""

    name: str
    driver: str
    pci_address: str
    numa_node: int
    speed_bits_per_second: int
    state: str


@dataclasses.dataclass(frozen=True)
class Info:
    """Something that can be opened: pass it to `Domain`. Sizes are in bytes."""

    provider: str
    fabric: str
    domain: str
    addr_format: str
    src_addr: str
    caps: Caps
    mr_mode: MRMode
    mr_key_size: int
    mr_iov_limit: int
    inject_size: int
    max_msg_size: int
    max_rma_size: int
    max_contexts: int
    max_group_id: int
    nic: Nic | None  # the first of `nics`, None where there is none
    links: tuple[str, ...]
    needs_sync_rdma_read: bool = False
    needs_sync_rdma_write: bool = False
    nics: tuple[Nic, ...] = ()  # the devices of all links
    ep_type: EPType = EPType.RDM
    # The levels of completion that an operation may ask for; DELIVERY is the one that makes what was put visible.
    delivery: Delivery = Delivery.INJECT | Delivery.TRANSMIT | Delivery.DELIVERY | Delivery.COMMIT
    mode: int = 0  # what a program must do for the provider (fi_getinfo(3)): nothing

    @property
    def spec(self) -> str:
        """The string that `Domain` takes to open the same links."""
        devices: dict[str, list[str]] = {}
        for link in self.links:
            provider, named, device = link.partition(":")
            devices.setdefault(provider, []).extend([device] if named else [])
        return "+".join(
            f"{provider}:{','.join(names)}" if names else provider for provider, names in devices.items()
        )


BASIC_BITS = MRMode.VIRT_ADDR | MRMode.ALLOCATED | MRMode.PROV_KEY
"""What MRMode.BASIC stands for (fi_mr(3))."""


def bits_in_force(mr_mode: MRMode) -> MRMode:
    """The single demands that a mode makes. FabricError FI_ENODATA for BASIC with anything but LOCAL."""
    if not mr_mode & MRMode.BASIC:
        return mr_mode
    others = mr_mode & ~(MRMode.BASIC | MRMode.LOCAL)
    if others:
        raise FabricError(
            NO_DATA,
            f"nothing offers {mr_mode!r}: BASIC stands alone or with LOCAL; give the bits themselves instead of BASIC",
        )
    return (mr_mode & ~MRMode.BASIC) | BASIC_BITS


def make_info(fields: dict[str, Any], mr_mode: MRMode | None = None) -> Info:
    nics = tuple(Nic(**nic) for nic in fields["nics"])
    return Info(
        provider=fields["provider"],
        fabric=fields["fabric"],
        domain=fields["domain"],
        addr_format=fields["addr_format"],
        src_addr=fields["src_addr"],
        caps=Caps(fields["caps"]),
        mr_mode=MRMode(fields["mr_mode"]) if mr_mode is None else mr_mode,
        mr_key_size=fields["mr_key_size"],
        mr_iov_limit=fields["mr_iov_limit"],
        inject_size=fields["inject_size"],
        max_msg_size=fields["max_msg_size"],
        max_rma_size=fields["max_rma_size"],
        max_contexts=fields["max_contexts"],
        max_group_id=fields["max_group_id"],
        delivery=Delivery(fields["delivery"]),
        nic=nics[0] if nics else None,
        links=tuple(fields["links"]),
        nics=nics,
    )


class InfoRow(NamedTuple):
    """What the table of entries shows of one; `also` are the capabilities that not all have."""

    spec: str
    address: str
    cards: str
    also: str


class Infos(list[Info]):
    """A list of entries that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        common = functools.reduce(operator.and_, (info.caps for info in self), ~Caps(0))
        rows = [
            InfoRow(
                info.spec,
                info.src_addr,
                ", ".join(nic.name for nic in info.nics),
                flag_names(info.caps & ~common).lower(),
            )
            for info in self
        ]
        return Table(InfoRow, rows)._repr_html_()


def getinfo(
    provider: str | None = None,
    *,
    node: str | None = None,
    service: str | None = None,
    caps: Caps = _NO_CAPS,
    mr_mode: MRMode | None = None,
    max_group_id: int = 0,
    ep_type: EPType = EPType.UNSPEC,
    needs: MRMode = MRMode.SCALABLE,
) -> list[Info]:
    """Lists what can be opened here, best first. A notebook shows the list as a table.

    `provider` is a link spec ("shm", "tcp:eth0", "shm+tcp"). The list has every combination of one device per provider, at most
    64 (else FI_E2BIG). Devices that the spec names are used together, as rails. "lnx" stands for $FI_LNX_PROV_LINKS. None lists
    every device of every provider, after the links of that variable if it is set. All entries have `caps` and at least
    `max_group_id`. FabricError FI_ENODATA if nothing matches, InvalidArgumentError if the spec cannot be read. `node` and
    `service`: only entries with that local address. ep_type: every endpoint is reliable and unconnected (RDM); nothing matches
    another type.

    mr_mode: the requirements for registered memory that the program can meet. Each entry shows what its provider requires;
    entries that require more are left out. The providers of this build require nothing by themselves. `needs` adds requirements,
    as if a device had them, and a `Domain` that is opened with such an entry enforces them.
    """
    demanded = bits_in_force(needs)
    met = None if mr_mode is None else bits_in_force(MRMode(mr_mode))
    if provider is not None:
        if not provider.strip():
            raise InvalidArgumentError(
                f"provider={provider!r}: a link is a string such as 'shm' or 'shm+tcp'"
            )
        found = _core.find_links(provider)
    else:
        found = [entry for entry in _core.discover() if entry["usable"]]
        linked = _core.configured_links()
        if linked:
            found = _found_or_nothing(linked) + found
    infos = [make_info(entry) for entry in found]
    wanted = [
        info
        for info in infos
        if caps & info.caps == caps
        and (met is None or not demanded & ~met)
        and info.max_group_id >= max_group_id
        and EPType(ep_type) in (EPType.UNSPEC, info.ep_type)
        and (node is None or info.src_addr.startswith(node))
        and (service is None or info.src_addr.endswith(":" + service))
    ]
    if not wanted:
        raise FabricError(
            NO_DATA,
            f"nothing here matches provider={provider!r}, caps={caps!r}, mr_mode={mr_mode!r}, max_group_id={max_group_id}, "
            f"ep_type={ep_type!r}; found "
            + (", ".join(info.spec for info in infos) or "nothing")
            + (f", which demand {demanded!r}" if demanded else ""),
        )
    shown = demanded
    if mr_mode is not None and mr_mode & MRMode.BASIC:
        shown = MRMode.BASIC | (demanded & MRMode.LOCAL)
    return Infos(dataclasses.replace(info, mr_mode=shown) for info in wanted)


def _found_or_nothing(spec: str) -> list[dict[str, Any]]:
    """The entries of a link spec, or none if nothing matches it: the ordinary providers are listed without it."""
    try:
        return _core.find_links(spec)
    except FabricError as error:
        if error.errno != NO_DATA:
            raise
        return []
