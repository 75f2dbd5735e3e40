"""RDMA cards that pyfab has met by simulation only, and what is asked of people who have one (docs/cards.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyfab import _core

# By the driver of the PCI device. Devices made by software have none.
_FAMILIES = {
    "mlx4_core": "NVIDIA ConnectX-3",
    "mlx5_core": "NVIDIA ConnectX-4 to 7 or BlueField",
    "bnxt_en": "Broadcom NetXtreme-E (bnxt_re)",
    "ice": "Intel E810 (irdma)",
    "i40e": "Intel X722 (irdma)",
    "cxgb4": "Chelsio T5 or T6",
    "efa": "Amazon EFA",
    "hns3": "HiSilicon (hns)",
    "qede": "Marvell FastLinQ (qedr)",
    "erdma": "Alibaba erdma",
    "mana": "Microsoft MANA",
}


def request(
    specs: Iterable[str] | None = None, report: str = "", providers: Iterable[dict[str, Any]] | None = None
) -> str:
    """What to ask of people who have such a card; empty if there is none.

    With `specs`, only devices that these links use are meant. `report` is the file of a validation that was run; without it one
    is asked for. `providers` is what was found; without it this looks.
    """
    used = None if specs is None else list(specs)
    lines = []
    for info in _core.discover() if providers is None else providers:
        link, drivers = f"verbs:{info['domain']}", {nic["driver"] for nic in info["nics"]}
        families = sorted(_FAMILIES[driver] for driver in drivers & _FAMILIES.keys())
        if (
            info["provider"] != "verbs"
            or not families
            or (used is not None and not _uses(used, info["domain"]))
        ):
            continue
        lines.append(
            f"{info['domain']} ({', '.join(families)}) is a card that pyfab knows from simulations only."
        )
        if not report:
            lines.append(
                f"Please run `pyfab validate --links {link} --peer HOST --json {info['domain'].replace('/', '-')}.json`."
            )
    if not lines:
        return ""
    file = report or "the file"
    lines.append(f"Please send {file} to the project, whether all passed or not (docs/cards.md).")
    lines.append("It names the hosts, their devices and addresses.")
    return "\n".join(lines)


def _uses(specs: Iterable[str], device: str) -> bool:
    """Whether links may lead over a port of the device."""
    for part in "+".join(specs).replace("|", "+").split("+"):
        provider, _, names = part.replace(" ", "").partition(":")
        cards = {name.split("/")[0] for name in names.split(",")}
        if provider == "verbs" and (not names or device.split("/")[0] in cards):
            return True
    return False
