"""The log `pyfab.links`: which link carries which peer, and where a better one was passed over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.logs.rate import MOST_LINES
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


def put_to(endpoint: pyfab.Endpoint, address: bytes, remote: pyfab.RemoteRegion) -> int:
    handle = endpoint.av.insert(address)
    for _ in range(3):
        endpoint.write(np.ones(8), handle, remote).result(60)
    return handle


@pytest.mark.parametrize("progress", ["auto", "manual"])
@pytest.mark.parametrize("spec, said", [("shm+tcp", "shm.0: same node"), ("tcp", "tcp.0: tcp to ")])
def test_each_way_is_told_once_where_the_log_wants_it(
    log: LinkLog, spec: str, said: str, progress: Any
) -> None:
    logging.getLogger(LOG).setLevel(logging.INFO)
    with (
        pyfab.Domain(spec) as peers,
        peers.endpoint() as theirs,
        peers.register(np.zeros(8), pyfab.Access.REMOTE) as region,
    ):
        with pyfab.Domain(spec, progress=progress) as domain, domain.endpoint() as ours:
            handles = []
            for count in range(1, 3):
                handles.append(put_to(ours, theirs.address, region.remote))
                if progress == "auto":
                    log.wait_for(count)  # before close() tells what is left, in this thread
            if progress == "manual":
                assert not log.lines, "there is no thread that may tell"
                domain.stats()
        assert len(log.lines) == 2
        for handle, line in zip(handles, log.lines, strict=True):
            assert line.startswith(f"INFO pyfab: peer {handle} is reached over {said}")


def test_a_way_as_it_should_be_is_not_noted_where_nobody_asks(log: LinkLog) -> None:
    with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as ours, domain.endpoint() as theirs:
        logging.getLogger(LOG).setLevel(logging.INFO)  # too late
        with domain.register(np.zeros(8), pyfab.Access.REMOTE) as region:
            put_to(ours, theirs.address, region.remote)
    assert not log.lines


def test_a_peer_without_the_link_is_no_fallback(log: LinkLog) -> None:
    with (
        pyfab.Domain("tcp") as peers,
        pyfab.Domain("shm+tcp", progress="manual") as domain,
        peers.endpoint() as theirs,
        peers.register(np.zeros(8), pyfab.Access.REMOTE) as region,
        domain.endpoint() as ours,
    ):
        put_to(ours, theirs.address, region.remote)
    assert not log.lines


@pytest.mark.parametrize("what", ["killed", "closed", "domain closed", "another key"])
def test_a_peer_that_nothing_can_mend_is_no_fallback(log: LinkLog, what: str) -> None:
    key = {"auth_key": b"theirs"} if what == "another key" else {}
    with Peer("shm+tcp:lo", **key) as there, pyfab.Domain("shm+tcp:lo", progress="manual") as domain:
        exposed = there.expose(np.zeros(8))
        with domain.endpoint() as ours:
            handle = ours.av.insert(there.address)
            if what == "killed":
                there.kill()
            elif what == "closed":
                there.run(close_endpoint)
            elif what == "domain closed":
                there.run(close_domain)
            with pytest.raises(pyfab.FabricError):
                ours.write(np.ones(8), handle, exposed.remote).result(60)
    assert not log.lines


def close_endpoint(target: Any) -> None:
    target.endpoint.close()


def close_domain(target: Any) -> None:
    target.domain._end()  # with all that is open in it


@pytest.mark.slow
@needs_setpriv
def test_a_link_that_is_passed_over_is_a_warning_and_many_are_counted() -> None:
    """Two processes of one node of which one may not open what the other has: their bytes go over the network."""
    with Peer("shm+tcp", launcher=WITH_LESS) as target, Peer("shm+tcp") as initiator:
        exposed = target.expose(np.zeros(8))
        lines = initiator.run(put_to_many, target.address, exposed.remote, MOST_LINES + 7)
    assert len(lines) == MOST_LINES + 1
    for number, line in enumerate(lines[:-1]):
        said = f"WARNING pyfab: peer {number} is reached over tcp.0, and not over shm.0 (process "
        assert line.startswith(said)
        assert "capabilities" in line
    assert lines[-1] == "WARNING pyfab: 7 more peers are reached over other links than they could be"


def put_to_many(_target: Any, address: bytes, remote: pyfab.RemoteRegion, peers: int) -> list[str]:
    log = LinkLog()
    with pyfab.Domain("shm+tcp", progress="manual") as domain, domain.endpoint() as endpoint:
        for _ in range(peers):
            put_to(endpoint, address, remote)
    return log.lines
