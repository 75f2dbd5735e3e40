"""Killed processes leave nothing in the file system."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyfab.testing import Peer
from test_stopped import TIMEOUT, WAYS


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
