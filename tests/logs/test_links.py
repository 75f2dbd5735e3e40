"""The log `pyfab.links`: which link carries which peer, and where a better one was passed over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer

from capabilities import WITH_LESS, needs_setpriv
from link_log import LOG, LinkLog


@pytest.fixture
def log() -> Iterator[LinkLog]:
    log, logger = LinkLog(), logging.getLogger(LOG)
    before = logger.level
    yield log
    logger.setLevel(before)
    logger.removeHandler(log)


@pytest.mark.parametrize("progress", ["auto", "manual"])
@pytest.mark.parametrize("spec, said", [("shm+tcp", "shm.0: same node"), ("tcp", "tcp.0: tcp to ")])
def test_each_way_is_told_once_where_the_log_wants_it(
    log: LinkLog, spec: str, said: str, progress: Any
) -> None:
    logging.getLogger(LOG).setLevel(logging.INFO)
    with (
        pyfab.Domain(spec) as peers,
        pyfab.Domain(spec, progress=progress) as domain,
        domain.endpoint() as ours,
    ):
        array = np.zeros(8)
        with peers.endpoint() as theirs, peers.register(array, pyfab.Access.REMOTE) as region:
            handle = ours.av.insert(theirs.address)
            for _ in range(3):
                ours.write(np.ones(8), handle, region.remote).result(60)
            if progress == "manual":
                assert not log.lines, "there is no thread that may tell"
                domain.stats()
            assert len(log.wait_for(1)) == 1
        assert log.lines[0].startswith(f"INFO pyfab: peer {handle} is reached over {said}")


def test_a_way_as_it_should_be_is_not_noted_where_nobody_asks(log: LinkLog) -> None:
    with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as ours, domain.endpoint() as theirs:
        array = np.zeros(8)
        with domain.register(array, pyfab.Access.REMOTE) as region:
            ours.write(np.ones(8), ours.av.insert(theirs.address), region.remote).result(60)
        domain.stats()  # tells what waits
    assert not log.lines


def test_a_peer_elsewhere_is_no_fallback(log: LinkLog) -> None:
    with pyfab.Domain("tcp") as peers, pyfab.Domain("shm+tcp") as domain, domain.endpoint() as ours:
        array = np.zeros(8)
        with peers.endpoint() as theirs, peers.register(array, pyfab.Access.REMOTE) as region:
            ours.write(np.ones(8), ours.av.insert(theirs.address), region.remote).result(60)
        domain.stats()
    assert not log.lines


def start_log(target: Any) -> None:
    target.log = LinkLog()


def put(target: Any, address: Any, remote: Any) -> list[str]:
    handle = target.endpoint.av.insert(address)
    for _ in range(2):
        target.endpoint.write(np.ones(8), handle, remote).result(60)
    return target.log.wait_for(1)


@needs_setpriv
def test_a_link_that_is_passed_over_is_a_warning() -> None:
    """Two processes of one node of which one may not open what the other has: their bytes go over the network."""
    with Peer("shm+tcp", launcher=WITH_LESS) as target, Peer("shm+tcp") as initiator:
        exposed = target.expose(np.zeros(8))
        initiator.run(start_log)
        (line,) = initiator.run(put, target.address, exposed.remote)
        assert line.startswith("WARNING pyfab: peer 0 is reached over tcp.0, and not over shm.0 (process ")
        assert "capabilities" in line
