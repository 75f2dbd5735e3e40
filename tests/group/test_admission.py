"""What ranks tell each other at a meeting: whatever it is, it is read, or an error of printable text names the rank."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.group.admission import agree_on_key, cards_of, members_of, places_of


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    with (
        pyfab.Domain("shm") as domain,
        domain.endpoint() as endpoint,
        domain.register(np.zeros(2), pyfab.Access.REMOTE_READ) as region,
    ):
        parts = {"address": endpoint.address, "control": region.remote.to_bytes()}
    return {"host": "host", **{name: base64.b64encode(part).decode() for name, part in parts.items()}}


def test_cards_say_where_ranks_are(card: dict[str, Any]) -> None:
    place = places_of(cards_of([json.dumps(card).encode()]))[0]
    assert place.host == "host"
    assert base64.b64encode(place.address).decode() == card["address"]
    assert place.control.shape == (2,)


@pytest.mark.parametrize(
    "change",
    [
        {"host": None}, {"host": ["x"]}, {"host": "a\nb"}, {"address": 7}, {"address": "ü"}, {"address": "A"},
        {"control": None}, {"control": "AAAA"}, {"control": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_card_names_its_rank(card: dict[str, Any], change: dict[str, Any]) -> None:
    for damaged in ({**card, **change}, {name: card[name] for name in card if name not in change}):
        with pytest.raises(pyfab.FabricError, match="card of rank 1 is damaged") as refused:
            places_of(cards_of([json.dumps(card).encode(), json.dumps(damaged).encode()]))
        assert str(refused.value).isprintable()


def test_what_a_group_tells_of_its_members_is_checked() -> None:
    assert members_of({"cards": [1, 2], "epoch": 3}) == ([1, 2], 3)
    for told in ({}, {"cards": {}, "epoch": 1}, {"cards": [], "epoch": "1"}, {"cards": [], "epoch": True}):
        with pytest.raises(pyfab.FabricError, match="members"):
            members_of(told)
    with pytest.raises(pyfab.FabricError, match="card of rank 0 is damaged"):
        places_of([7])


@pytest.mark.parametrize("version", [[], {}, "\u0000", 10**100])
def test_a_version_of_any_kind_is_another_version(version: Any) -> None:
    told = json.dumps({"pyfab": pyfab.__version__, "card": version}).encode()
    with pytest.raises(pyfab.FabricError, match="different versions") as refused:
        agree_on_key(lambda value: [value, told], 0, b"")
    assert str(refused.value).isprintable()
