"""Processes that are gone leave nothing: not in the file system, and not in those that are left."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from pyfab.testing import Peer
from test_stopped import TIMEOUT, WAYS, rounds


def files_of(pid: int) -> set[str]:
    """Paths that a process has open or mapped where temporary files live."""
    fds = Path(f"/proc/{pid}/fd")
    names = {str(fd.readlink()) for fd in fds.iterdir() if fd.is_symlink()}
    names |= {
        line.split(maxsplit=5)[5]
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "/" in line
    }
    return {name for name in names if name.startswith(("/dev/shm/", "/tmp/", "/run/")) and ".so" not in name}


def named_after_us() -> set[Path]:
    return {path for folder in ("/dev/shm", "/tmp", "/run") for path in Path(folder).glob("*fab*")}


def insert(target, address):
    return target.endpoint.av.insert(address)


def put(target, handle, remote):
    target.kept["memory"] = target.domain.alloc(1 << 20, np.uint8)
    target.endpoint.write(target.kept["memory"], handle, remote).result(TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", WAYS)
def test_nothing_is_left_when_all_are_killed(spec, settings, alloc):
    before = named_after_us()
    peers = [Peer(spec, **settings) for _ in range(3)]
    try:
        exposed = [peer.expose(np.zeros(1 << 20, np.uint8), alloc=alloc) for peer in peers]
        for peer in peers:
            for other, place in zip(peers, exposed, strict=True):
                peer.run(put, peer.run(insert, other.address), place.remote)
        used = set().union(*(files_of(peer.pid) for peer in peers))
    finally:
        for peer in peers:
            peer.kill()
    assert {name for name in used if Path(name).exists()} == set()
    assert named_after_us() - before == set()


def kept() -> collections.Counter[str]:
    """What this process has open, by kind, and what it has mapped of memory files."""
    found: collections.Counter[str] = collections.Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing itself
            found[re.sub("[0-9]+", "", str(Path(f"/proc/self/fd/{name}").readlink()))] += 1
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd" in line:
            found["map of " + line.split(maxsplit=5)[5]] += 1
    return found


def await_no_more_than(before: collections.Counter[str]) -> None:
    end = time.monotonic() + TIMEOUT
    while more := kept() - before:
        assert time.monotonic() < end, f"still kept: {more}"
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", WAYS)
@pytest.mark.parametrize("messages", [True, False])
def test_nothing_is_kept_of_a_dead_peer_whose_handle_stays(station, spec, settings, alloc, messages):
    """Nor is anything asked of it again: what did something tells of it, and the rest goes by itself."""
    here = station(spec, **settings)
    before = kept()
    with Peer(spec, **here.settings) as peer:
        handle = here.endpoint.av.insert(peer.address)
        rounds(here.endpoint, handle, peer.expose(np.zeros(1001, np.int64), alloc=alloc), 1)
        if messages:
            here.endpoint.send(np.ones(8), handle).result(TIMEOUT)
        counts = here.endpoint.counts(handle)
        peer.kill()
    await_no_more_than(before)
    assert here.endpoint.counts(handle) == counts
    assert len(here.domain.stats()["peers"]) == 1


def receive(target):
    target.endpoint.recv(np.empty(8)).result(TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", [way for way in WAYS if way.values[0] == "shm"])
def test_nothing_is_kept_of_a_peer_that_was_removed(station, spec, settings, alloc):
    """Over a network the connection stays: it is the peer's as well."""
    here = station(spec, **settings)
    before = kept()
    with Peer(spec, **here.settings) as peer:
        with_peer = kept()
        for messages in (False, True):
            handle = here.endpoint.av.insert(peer.address)
            rounds(here.endpoint, handle, peer.expose(np.zeros(1001, np.int64), alloc=alloc), 1)
            if messages:
                here.endpoint.send(np.ones(8), handle).result(TIMEOUT)
            assert kept() - with_peer
            here.endpoint.av.remove(handle)
            await_no_more_than(with_peer)
        peer.run(receive)  # what was under way arrives
    await_no_more_than(before)
