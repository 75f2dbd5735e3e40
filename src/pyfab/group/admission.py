"""What comes before the cards of a group: one key for all, and the certainty that all run the same pyfab.

Rank 0 tells the key through the meeting, which nobody else can read or change. Endpoints are opened with it, so only members
reach each other; and what a member shows the others carries a proof made with it.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyfab import _core, versions
from pyfab.core.buffers import auth_key_of
from pyfab.core.domain import Domain
from pyfab.core.errors import FabricError, InvalidArgumentError
from pyfab.core.region import RemoteRegion
from pyfab.meeting.frames import shown
from pyfab.meeting.ranks import Exchange

_KEY_BYTES = 32


def given_key(domain: Any) -> bytes:
    """The authorization key that the caller has chosen for a group's domain; empty if it is left to the group."""
    if isinstance(domain, Domain):
        return domain._core.auth_key
    return auth_key_of(domain.get("auth_key")) if isinstance(domain, Mapping) else b""


def agree_on_key(exchange: Exchange, rank: int, key: bytes) -> bytes:
    """The key of the group: the one that rank 0 gives here, or a new one if that is empty. All ranks give theirs, or none.

    InvalidArgumentError names the ranks and their versions if not all run the same pyfab.
    """
    told: dict[str, Any] = {"pyfab": _core.__version__, "card": versions.CARD}
    if rank == 0:
        told["key"] = base64.b64encode(key or secrets.token_bytes(_KEY_BYTES)).decode()
    hellos = exchange(json.dumps(told).encode())
    return _key_of([_parsed(number, hello) for number, hello in enumerate(hellos)])


def cards_of(values: list[bytes]) -> list[dict[str, Any]]:
    """The cards of all ranks, parsed."""
    cards = [_parsed(rank, value) for rank, value in enumerate(values)]
    for rank, card in enumerate(cards):
        if "pyfab" in card:
            raise InvalidArgumentError(
                f"rank {rank} told again what it told before. A communicator's allgather() is called twice, and gives each"
                " time what the ranks gave to that call"
            )
    return cards


class Place(NamedTuple):
    """What a rank's card says of it."""

    host: str
    address: bytes
    control: RemoteRegion


def places_of(cards: list[Any]) -> list[Place]:
    """What the cards of all ranks say. FabricError names the rank whose card says something else."""
    return [_place_of(rank, card) for rank, card in enumerate(cards)]


def members_of(card: dict[str, Any]) -> tuple[list[Any], int]:
    """The cards of the ranks that a group has, and its epoch, as its rank 0 tells them to those that join."""
    cards, epoch = card.get("cards"), card.get("epoch")
    if not isinstance(cards, list) or type(epoch) is not int:
        raise FabricError("what rank 0 told at the meeting does not name the members of a group")
    return cards, epoch


def _place_of(rank: int, card: Any) -> Place:
    try:
        host = card["host"]
        address, control = (base64.b64decode(card[part], validate=True) for part in ("address", "control"))
        if isinstance(host, str) and host.isprintable():
            return Place(host, address, RemoteRegion.from_bytes(control))
        why = f"it has the host {shown(host)}"
    except FabricError as error:
        why = str(error.strerror)
    except (KeyError, TypeError, ValueError):
        why = "it lacks a host, an address or a control window"
    raise FabricError(f"the card of rank {rank} is damaged: {why}")


def _key_of(hellos: list[dict[str, Any]]) -> bytes:
    found: dict[tuple[str, str], list[int]] = {}
    for rank, hello in enumerate(hellos):
        told = str(hello.get("pyfab", "before 0.2"))[:100], shown(hello.get("card"))
        found.setdefault(told, []).append(rank)
    if len(found) > 1:
        mixed = "; ".join(
            f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:20]))}: pyfab {version!r}, cards {card}"
            for (version, card), ranks in found.items()
        )
        raise InvalidArgumentError(f"the ranks run different versions; install the same everywhere. {mixed}")
    try:
        return base64.b64decode(hellos[0]["key"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise FabricError("rank 0 told no key for the group") from None


def _parsed(rank: int, value: bytes) -> dict[str, Any]:
    try:
        card = json.loads(value)
    except (ValueError, RecursionError):
        card = None
    if not isinstance(card, dict):
        raise FabricError(f"what rank {rank} told at the meeting is no card of a rank")
    return card
