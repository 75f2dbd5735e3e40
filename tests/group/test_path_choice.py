"""Which way to a peer is taken: through memory, by a device that leads to all peers, or by messages; of equals the fastest."""

from __future__ import annotations

import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyfab
import pytest
from pyfab import Transport, _core
from pyfab.core.addressing.link_traits import LinkTraits, traits_of
from pyfab.group import path_choice
from rails import RAILS, WHY_NOT

TIMEOUT = 60


@pytest.mark.req("WIN-74")
def test_ways_in_order() -> None:
    rank = path_choice.rank
    ways = [rank(True, False, 9.0), rank(False, True, 1.0), rank(False, True, 2.0), rank(False, False, 0.1)]
    assert ways == sorted(ways)
    direct = [traits_of(link).by_device for link in ("verbs:mlx5_0", "verbs.1", "tcp.0", "shm", "later.0")]
    assert direct == [True, True, False, False, False]


def test_nobody_takes_from_the_others_what_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "address_links", lambda address: address.decode().split())
    addresses = [b"shm.0 tcp.0 verbs.0", b"shm.0 tcp.0 verbs.1"]
    named = [["verbs.0", "shm.0"], ["tcp.0", "verbs.7"], ["verbs.0"]]
    assert path_choice.left_out(named, addresses) == {"verbs.0"}


@pytest.mark.req("WIN-74")
def test_a_device_that_does_not_lead_to_all_counts_as_any_other() -> None:
    with Transport(["tcp", "tcp"]) as transport, Transport(["tcp", "shm"]) as half:
        near = transport.peer(transport.name)
        deadline = time.monotonic() + TIMEOUT
        while len(near.latency) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert all(0 < seconds < TIMEOUT for seconds in near.latency.values())
        near.latency.update({0: 1.0, 1: 2.0})
        transport._modules[1].direct = True
        near._chosen = None
        assert transport._peers.module_for(near) is transport._modules[1], (
            "slower, but it moves the bytes itself"
        )
        other = transport.peer(half.name)
        assert other.reachable
        assert transport._peers.module_for(near) is transport._modules[0], (
            "one peer is not reached by the device"
        )
        transport.remove(other, TIMEOUT)
        assert transport._peers.module_for(near) is transport._modules[1]


@pytest.mark.req("WIN-74")
def test_shared_memory_comes_first() -> None:
    with Transport(["tcp", "shm"]) as transport:
        myself = transport.peer(transport.name)
        assert myself.link == "shm"
        memory = np.zeros(8, np.int64)
        registration = transport.register(memory, pyfab.Access.REMOTE)
        transport.wait(
            transport.put, myself, np.arange(8), registration.address, registration, timeout=TIMEOUT
        )
        assert memory.tolist() == list(range(8))


@pytest.mark.skipif(RAILS is None, reason=WHY_NOT)
@pytest.mark.req("WIN-74")
@pytest.mark.parametrize("lacking", [None, 2])
def test_a_link_is_for_all_members_of_a_group_or_for_none(
    lacking: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a device that moves bytes itself; here it is a tcp link that is taken for one."""
    monkeypatch.setattr(path_choice, "traits_of", lambda link: LinkTraits(by_device=link == "tcp.1"))
    meeting = f"file://{tmp_path}/meeting"
    together = threading.Barrier(3)

    def member(rank: int) -> list[str]:
        spec = RAILS if rank != lacking else "tcp:lo"
        with pyfab.Group(rank, 3, meeting, spec, timeout=TIMEOUT) as group:
            with group.window(shape=3, dtype=np.int64) as window:
                for peer in group.peers:
                    window[peer][rank] = rank + 1
                window.fence()
                assert window.local.tolist() == [1 * (rank != 0), 2 * (rank != 1), 3 * (rank != 2)]
                links = [row.link for row in group.links()]
                together.wait(TIMEOUT)
            return links

    with ThreadPoolExecutor(3) as pool:
        told = [future.result(TIMEOUT) for future in [pool.submit(member, rank) for rank in range(3)]]
    expected = "tcp.0" if lacking is not None else "tcp.0+tcp.1"
    assert told == [[expected] * 2] * 3


def test_links_that_are_not_text_are_shown_escaped() -> None:
    """An address comes from another process, which may have written anything."""
    with pyfab.Domain("tcp:lo") as domain, domain.endpoint() as endpoint:
        head, body = endpoint.address[:10], endpoint.address[10:-4].replace(b"tcp.0", b"tcp\xff0")
        foreign = head + body + struct.pack("<I", zlib.crc32(body))
        assert _core.address_links(foreign) == ["tcp\\xff0"]


def test_a_type_that_is_not_text_is_shown_escaped() -> None:
    with pyfab.Domain("tcp:lo") as domain, domain.register(np.zeros(4, "i8"), pyfab.Access.REMOTE) as region:
        body = region.remote.to_bytes()[8:].replace(b"<i8", b"<\xff8")
        foreign = b"pfv1" + struct.pack("<I", zlib.crc32(body)) + body
        with pytest.raises(pyfab.InvalidArgumentError, match=r'the dtype "<\\xff8" is unknown'):
            pyfab.RemoteRegion.from_bytes(foreign)


def _meet_without_shm(group: pyfab.Group, place: str) -> tuple[set[str], int, list[int]]:
    """As if shm were a device that does not lead from rank 1 to all."""
    path_choice.mixed = lambda *_: True
    path_choice.not_to_all = lambda *_: ["shm.0"] if group.rank == 1 else []
    path_choice._direct = lambda *_: {"shm.0"}
    with (
        pyfab.Group(group.rank, group.size, f"file://{place}", "shm+tcp", timeout=60) as met,
        met.window(shape=2, dtype=np.int64) as window,
    ):
        window.fence()
        window[(met.rank + 1) % met.size][:] = met.rank
        window.fence()
        met.barrier()
        return {link.link for link in met.links()}, len(met.endpoint.av), window.local.tolist()


@pytest.mark.slow
def test_a_link_that_a_rank_leaves_out_is_used_by_none(tmp_path: Path) -> None:
    told = pyfab.spawn(_meet_without_shm, 3, str(tmp_path / "place"), timeout=60)
    assert told == [({"tcp.0"}, 3, [before, before]) for before in (2, 0, 1)]
