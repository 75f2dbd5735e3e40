"""Which of its links an endpoint takes to a peer, and how a program or the environment chooses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numpy as np
import pyfab
import pytest
from linked import link_to
from pyfab.testing import Peer
from support import TIMEOUT, collect, insert


@pytest.mark.req("LNX-25")
@pytest.mark.parametrize("by_variable", [True, False])
def test_shared_memory_can_be_switched_off(monkeypatch, by_variable):
    """For one process or for all; the spec stays the same."""
    settings = {} if by_variable else {"lnx_disable_shm": True}
    if by_variable:
        monkeypatch.setenv("FI_LNX_DISABLE_SHM", "1")
    with pyfab.Domain("shm+tcp", **settings) as domain, domain.endpoint() as endpoint:
        assert domain.info.spec == "tcp:lo"
        with Peer("shm+tcp", **settings) as like, Peer("shm+tcp", lnx_disable_shm=0) as other:
            for peer in (like, other):
                handle = endpoint.av.insert(peer.address)
                place = peer.expose(np.zeros(4))
                endpoint.write(np.ones(4), handle, place.remote).result(TIMEOUT)
                assert link_to(endpoint, handle) == "tcp"
                assert place.content().all()
    with pyfab.Domain("shm") as domain:
        assert domain.info.spec == "shm", "which is no linked one"
    monkeypatch.setenv("FI_LNX_DISABLE_SHM", "0")
    with pyfab.Domain("shm+tcp") as domain:
        assert domain.info.spec == "shm+tcp:lo"


@pytest.mark.parametrize("switch", ["lnx_disable_shm", "lnx_use_srq"])
def test_switches_are_on_or_off(monkeypatch, switch):
    variable = f"FI_{switch.upper()}"
    for bad in ("maybe", "2", "-1"):
        with pytest.raises(pyfab.InvalidArgumentError, match=f"{switch} is"):
            pyfab.Domain("shm+tcp", **{switch: bad})
        monkeypatch.setenv(variable, bad)
        with pytest.raises(pyfab.InvalidArgumentError, match=f"{variable} is"):
            pyfab.Domain("shm+tcp")
        with pyfab.Domain("shm+tcp", **{switch: "0"}):
            pass  # what is said comes before the environment
        monkeypatch.delenv(variable)


def exchange(group):
    with group.window(shape=group.size, dtype=np.int64) as window:
        for peer in group.peers:
            window[peer][group.rank] = 1 + group.rank
        window.fence()
        return [link.link for link in group.links()], window[group.rank][:].tolist()


@pytest.mark.req("LNX-26")
@pytest.mark.parametrize("links", ["shm", "shm+tcp"])
def test_jobs_of_one_node_need_no_network(monkeypatch, links):
    monkeypatch.setenv("FI_LNX_PROV_LINKS", links)
    for rank, (used, got) in enumerate(pyfab.spawn(exchange, 2, links=None)):
        assert used == ["shm.0"]
        assert got == ([0, 2] if rank == 0 else [1, 0])


@pytest.mark.req("LNX-29")
def test_a_full_link_takes_no_other():
    """The peer has both links, and does not look: sends are refused until it does, none goes over tcp, all keep their order."""
    count, message = 500, np.zeros(512, np.int64)
    with (
        Peer("shm+tcp", progress="manual") as peer,
        pyfab.Domain("shm+tcp") as domain,
        domain.completion_queue(size=16) as queue,
        domain.endpoint(cq=queue) as endpoint,
    ):
        handle = endpoint.av.insert(peer.address)
        peer.run(insert, endpoint.address)
        sent = 0

        def send_next():
            message[0] = sent
            try:
                endpoint.send(message.copy(), handle)
            except pyfab.FabricError as refusal:
                if refusal.errno != errno.EAGAIN:
                    raise
                return False
            return True

        while True:
            if send_next():
                sent += 1
            elif not queue.read(max=16):
                break  # full, and nothing completes any more
        assert 0 < sent < count
        assert link_to(endpoint, handle) == "shm"
        peer.start(receive_numbers, count)
        while sent < count:
            if send_next():
                sent += 1
            else:
                collect(queue, 1)
        assert peer.finish() == list(range(count))
        assert link_to(endpoint, handle) == "shm"


def receive_numbers(target, count):
    landing = np.zeros(512, np.int64)
    return [int(landing[0]) for _ in range(count) if target.endpoint.recv(landing).result(TIMEOUT)]


ENVIRONMENT = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
def now():
    table, found = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ"), []
    while table[len(found)] is not None:
        found.append(table[len(found)])
    return sorted(found)
before = now()
import pyfab
with pyfab.Domain() as domain, domain.endpoint() as endpoint:
    endpoint.send(b"x", endpoint.av.insert(endpoint.address))
    assert len(domain.info.links) == 2
assert now() == before
"""


@pytest.mark.req("LNX-41")
def test_the_environment_is_only_read():
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "FI_LNX_PROV_LINKS": "shm+tcp",
        "FI_LNX_USE_SRQ": "1",
    }
    subprocess.run([sys.executable, "-c", ENVIRONMENT], env=environment, check=True, timeout=TIMEOUT)
