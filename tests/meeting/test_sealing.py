"""What is sealed can be read with the key alone, and nothing of it can be changed, repeated, left out or moved."""

from __future__ import annotations

import pytest
from pyfab.meeting.sealing import TAG_BYTES, Tampered, derive, directions, seal, unseal

KEY = b"k" * 32


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 40])
def test_what_is_sealed_comes_back(data: bytes) -> None:
    sealed = seal(KEY, b"here", data)
    assert unseal(KEY, b"here", sealed) == data
    assert len(data) < 8 or data[:8] not in sealed
    assert seal(KEY, b"here", data) != sealed
    with pytest.raises(Tampered):
        unseal(KEY, b"there", sealed)
    with pytest.raises(Tampered):
        unseal(b"l" * 32, b"here", sealed)


def test_every_bit_counts() -> None:
    sealed = seal(KEY, b"", b"some bytes")
    for at in range(len(sealed)):
        for bit in range(8):
            changed = sealed[:at] + bytes([sealed[at] ^ (1 << bit)]) + sealed[at + 1 :]
            with pytest.raises(Tampered):
                unseal(KEY, b"", changed)
    for cut in (*range(len(sealed)), len(sealed) + 1):
        with pytest.raises(Tampered):
            unseal(KEY, b"", (sealed + b"\0")[:cut])


def test_frames_come_once_and_in_order() -> None:
    (to_server, _), (_, from_client) = directions(KEY, client=True), directions(KEY, client=False)
    frames = [to_server.close(b"head", b"frame %d" % number) for number in range(3)]
    assert all(len(frame) == 7 + TAG_BYTES for frame in frames)
    assert from_client.open(b"head", frames[0]) == b"frame 0"
    for wrong in (frames[0], frames[2]):  # repeated, and the one after the next
        (_, fresh) = directions(KEY, client=False)
        fresh.open(b"head", frames[0])
        with pytest.raises(Tampered):
            fresh.open(b"head", wrong)
    with pytest.raises(Tampered):  # sent back to where it came from
        directions(KEY, client=True)[1].open(b"head", frames[0])
    with pytest.raises(Tampered):
        directions(KEY, client=False)[1].open(b"heat", frames[0])


def test_parts_of_a_key_have_lengths() -> None:
    assert derive(KEY, b"ab", b"c") != derive(KEY, b"a", b"bc") != derive(KEY, b"abc")
