"""Short forms of the drills. Longer: `python tests/network/drills.py --help`."""

from __future__ import annotations

import drills
import pytest
from pair import MIB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.req("LNX-64")
def test_a_rail_goes_down_and_comes_back() -> None:
    figures = drills.lanes(seed=1, cycles=3, down=0, up=0)
    print(figures)
    assert figures["cycles"] == 3


@pytest.mark.req("LNX-62")
def test_each_rail_is_blocked_in_turn() -> None:
    figures = drills.blocked(seed=1, seconds=0)
    print(figures)
    assert figures["phases"] == 2


def test_each_flipped_bit_ends_an_encrypted_connection_and_nothing_else() -> None:
    figures = drills.corruption(seed=1, seconds=0)
    print(figures)
    assert figures["flips"] >= 10


@pytest.mark.parametrize("size", [64, MIB])
def test_flipped_bits_neither_end_nor_stop_a_process_without_encryption(size: int) -> None:
    """What is got is compared with what was put: flips of bytes among headers are seen there."""
    figures = drills.corruption(seed=1, seconds=0, plain=True, size=size)
    print(figures)
    assert figures["flips"] >= 10
    assert figures["wrong"] > 0 or size == 64
