"""Who is local: whoever shares memory, whatever the hosts are called."""

from __future__ import annotations

import socket

import numpy as np
import pyfab
import pytest
from netns import TIMEOUT, Bench, finish
from pyfab.testing import Peer

LINKS = "shm+tcp:r0"


def put(target, address, remote):
    handle = target.endpoint.av.insert(address)
    target.endpoint.write(np.ones(8), handle, remote).result(TIMEOUT)
    return target.endpoint.report(handle)[0].partition(".")[0]


def check(near, far, link):
    place = far.expose(np.zeros(8))
    assert near.run(put, far.address, place.remote) == link
    assert place.content().all()
    place.close()


@pytest.mark.slow
@pytest.mark.req("LNX-23", "LNX-24")
def test_containers_with_one_host_name_are_two_hosts():
    with (
        Bench(nodes=2, hosts=["same", "same"]) as bench,
        bench.node(0).peer(LINKS) as near,
        bench.node(0).peer(LINKS) as neighbour,
        bench.node(1).peer(LINKS) as far,
    ):
        check(near, neighbour, "shm")
        check(near, far, "tcp")
        check(far, near, "tcp")


@pytest.mark.slow
@pytest.mark.req("LNX-24")
def test_a_host_with_two_names_is_one_host():
    rename = ["unshare", "--uts", "sh", "-c", 'hostname other; exec "$@"', "sh"]
    with (
        Bench(nodes=1) as bench,
        bench.node(0).peer(LINKS) as near,
        Peer(LINKS, launcher=[*bench.node(0).command, *rename]) as renamed,
    ):
        assert near.run(host_name) != renamed.run(host_name)
        check(near, renamed, "shm")
        check(renamed, near, "shm")


def host_name(_target):
    return socket.gethostname()


SERVE = """
import ctypes, os
import numpy as np, pyfab
os.setresuid(int(sys.argv[2]), int(sys.argv[2]), int(sys.argv[2]))
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again: otherwise it says that it cannot use shared memory
with pyfab.Domain(sys.argv[1]) as domain, domain.endpoint() as endpoint:
    memory = np.zeros(8)
    with domain.register(memory, pyfab.Access.REMOTE) as region:
        print(endpoint.address.hex(), region.remote.to_bytes().hex(), flush=True)
        sys.stdin.readline()
        print(memory.tolist() == [1.0] * 8)
"""


@pytest.mark.req("LNX-24")
def test_processes_of_another_user_are_not_local():
    """What one may not map, one does not map."""
    with Bench(nodes=1) as bench, bench.node(0).peer(LINKS) as near:
        stranger = bench.node(0).popen(SERVE, LINKS, "65534")
        assert stranger.stdout
        told = stranger.stdout.readline().split()
        assert len(told) == 2, stranger.communicate()
        address, remote = map(bytes.fromhex, told)
        assert near.run(put_at, address, remote) == "tcp"
        assert finish(stranger) == "True\n"


def put_at(target, address, remote):
    return put(target, address, pyfab.RemoteRegion.from_bytes(remote))
