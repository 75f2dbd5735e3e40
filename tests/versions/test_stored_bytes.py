"""Bytes that were stored by a version are read by this one, as long as the numbers agree, and named where they do not.

``bytes/`` has what each version of a format wrote; files are added there and never changed. What lies there in a version that is
not read any more is refused with both numbers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab import _core, versions
from pyfab.data import GlobalShuffle

BYTES = Path(__file__).parent / "bytes"
PAGE = Path(__file__).parents[2] / "docs" / "versions.md"


def stored(name: str) -> bytes:
    return bytes.fromhex((BYTES / f"{name}.hex").read_text())


def changed(data: bytes, place: int, by: int = 1) -> bytes:
    return data[:place] + bytes([data[place] + by]) + data[place + 1 :]


def test_remote_regions():
    plain = pyfab.RemoteRegion.from_bytes(stored("remote-region-1"))
    assert (plain.key, plain.shape, plain.dtype) == (4711, (100,), np.dtype(np.uint8))
    part = pyfab.RemoteRegion.from_bytes(stored("remote-region-array-1"))
    assert (part.key, part.shape, part.dtype) == (4712, (3, 3), np.dtype("<i4"))
    assert (part.offset, part.nbytes) == (24, 36)
    rows = pyfab.RemoteRegion.from_bytes(stored("remote-region-structured-1"))
    assert rows.dtype == np.dtype([("a", "<f8"), ("b", "<i2")])
    for name in ("remote-region-1", "remote-region-array-1", "remote-region-structured-1"):
        data = stored(name)
        assert pyfab.RemoteRegion.from_bytes(data).to_bytes() == data
        with pytest.raises(pyfab.InvalidArgumentError, match="version 2, this library reads version 1"):
            pyfab.RemoteRegion.from_bytes(changed(data, 3))


@pytest.mark.parametrize("name", ["address-1", "address-1-with-parts-9-2"])
def test_addresses(name):
    parts = _core.decode_name(stored(name))
    assert [(link, context) for link, context, _ in parts] == [("shm.0", 0), ("tcp.0", 0)]
    assert _core.encode_name(parts) == stored(name)


def test_parts_of_addresses():
    now = stored("address-1-with-parts-9-2")
    with pyfab.Domain("tcp") as domain, domain.endpoint() as endpoint:
        peer = endpoint.av.insert(now)
        assert endpoint.av.lookup(peer) == now
        assert pyfab.parse_addr(endpoint.av.straddr(now)) == now
        with pytest.raises(pyfab.UnreachableError, match=r"tcp.0 in version 1\b.*\b2\b"):
            endpoint.av.insert(stored("address-1"))


def test_registrations():
    data = stored("registration-1")
    handle = pyfab.RemoteHandle(data)
    assert (handle.nbytes, handle.address) == (4096, 0x7F0012340000)
    assert handle.access == pyfab.Access.REMOTE_READ | pyfab.Access.REMOTE_WRITE
    with pytest.raises(pyfab.InvalidArgumentError, match="version 2, this library reads version 1"):
        pyfab.RemoteHandle(changed(data, 3))
    for wrong in (b"", data[:-1], changed(data, 0), data[:3] + b"x" + data[4:]):
        with pytest.raises(pyfab.InvalidArgumentError, match=f"{len(data)} bytes"):
            pyfab.RemoteHandle(wrong)


@pytest.mark.parametrize("number", range(versions.SAMPLER_STATE + 1))
def test_states_of_samplers(number: int) -> None:
    state: dict[str, Any] = json.loads((BYTES / f"state-of-a-sampler-{number}.json").read_text())
    sampler = GlobalShuffle(1000, 4, rank=0, size=1)
    sampler.load_state_dict(state)
    written = sampler.state_dict()
    assert written.items() >= {**state, "format": versions.SAMPLER_STATE}.items()
    assert written == json.loads((BYTES / f"state-of-a-sampler-{versions.SAMPLER_STATE}.json").read_text())
    order = _core.shuffled(1000, 42, 1, 400, 8)
    drawn = iter(sampler)
    np.testing.assert_array_equal(np.concatenate([next(drawn), next(drawn)]), order)


def test_the_page_has_the_numbers_of_the_code():
    table = dict(re.findall(r"^\| ([a-z0-9: ]+) \| (\d+) \|", PAGE.read_text(), re.MULTILINE))
    assert {form: int(number) for form, number in table.items()} == versions.formats()
