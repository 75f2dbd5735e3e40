"""The bench itself: what its nodes share and what not, what happens to their NICs, and that nothing of it stays behind."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import psutil
import pytest
from netns import TIMEOUT, Bench, finish

# Sends one datagram to ADDRESS and tells whether it comes back within 200 ms.
ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 7))
print("ready", flush=True)
while True:
    server.sendto(*server.recvfrom(100))
"""
ASK = """
import socket
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(0.2)
try:
    client.sendto(b"?", (sys.argv[1], 7))
    client.recv(100)
    print("answered")
except OSError:
    print("silent")
"""

ALL_TO_ALL = """
import numpy as np, pyfab
with pyfab.Group.from_env(domain=sys.argv[1]) as group, group.window(shape=group.size, dtype=np.int64) as window:
    for peer in group.peers:
        window[peer][group.rank] = 100 * group.rank + peer
    window.fence()
    expected = [100 * peer + group.rank for peer in range(group.size)]
    expected[group.rank] = 0
    assert window[group.rank][:].tolist() == expected
    for peer in group.peers:
        assert window[peer][group.rank] == 100 * group.rank + peer
    group.barrier()
    print(*(link.link for link in group.links()))
"""


@pytest.mark.slow
def test_ranks_of_a_node_share_memory_and_nodes_share_only_rails():
    with Bench(nodes=2) as bench:
        ranks = [
            bench.node(rank // 2).popen(
                ALL_TO_ALL,
                "shm+tcp:r0",
                PYFAB_RANK=str(rank),
                PYFAB_SIZE="4",
                PYFAB_RENDEZVOUS=f"tcp://{bench.node(0).address()}:29400",
            )
            for rank in range(4)
        ]
        links = [finish(rank).split() for rank in ranks]
        assert links == [
            ["shm.0", "tcp.0", "tcp.0"],
            ["shm.0", "tcp.0", "tcp.0"],
            ["tcp.0", "tcp.0", "shm.0"],
            ["tcp.0", "tcp.0", "shm.0"],
        ]


def put_and_get(target, handle, remote, count):
    back = np.zeros(count, np.int64)
    target.endpoint.write(np.arange(count), handle, remote).result(TIMEOUT)
    target.endpoint.read(back, handle, remote).result(TIMEOUT)
    return back


def insert(target, address):
    return target.endpoint.av.insert(address)


@pytest.mark.slow
def test_two_nodes_over_several_rails():
    with (
        Bench(nodes=2, rails=2) as bench,
        bench.node(0).peer("tcp:r0,r1") as near,
        bench.node(1).peer("tcp:r0,r1") as far,
    ):
        count = 10_000
        place = far.expose(np.zeros(count, np.int64))
        handle = near.run(insert, far.address)
        assert (near.run(put_and_get, handle, place.remote, count) == np.arange(count)).all()
        assert (place.content() == np.arange(count)).all()
        place.close()
        assert sum(bench.node(1).counters(rail)[0] for rail in range(2)) > 8 * count


@pytest.mark.slow
def test_loss_links_and_rates():
    with Bench(nodes=2, rails=2, rates=["1gbit", None]) as bench:
        near, far = bench.node(0), bench.node(1)
        server = far.popen(ECHO, far.address(0))
        assert server.stdout
        assert server.stdout.readline() == "ready\n"

        def ask() -> str:
            return near.run(ASK, far.address(0)).strip()

        assert ask() == "answered"
        for change, undo in (
            (lambda: far.drop(0, 1000), lambda: far.drop(0, 0)),
            (lambda: near.link_down(0), lambda: near.link_up(0)),
            (lambda: far.unplug(0), lambda: far.plug(0)),
        ):
            change()
            assert ask() == "silent"
            undo()
            assert ask() == "answered"
        far.drop(1, 1000)
        assert ask() == "answered", "a rail for itself"
        assert "rate 1Gbit" in near._space.call("tc", "qdisc", "show", "dev", "r0")
        assert "tbf" not in near._space.call("tc", "qdisc", "show", "dev", "r1")


@pytest.mark.slow
def test_a_bench_ends_with_its_process():
    """Also with kill -9: what runs in the nodes, the nodes, and with them the NICs."""
    Bench(nodes=1).close()  # skips where there can be none
    inner = "import time; print('ready', flush=True); time.sleep(1000)"
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\nfrom netns import Bench\nbench = Bench(nodes=2)\n"
        f"print(bench.node(0).popen({inner!r}).stdout.readline(), end='', flush=True)\ninput()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) == 8  # three namespaces, the script, and each one's front
    process.kill()
    process.communicate()
    _, left = psutil.wait_procs(started, timeout=TIMEOUT)
    assert not left


@pytest.mark.slow
@pytest.mark.req("LNX-5")
def test_environment_chooses_the_links_of_a_node():
    with Bench(nodes=1, rails=2) as bench:
        told = "import pyfab\nwith pyfab.Domain() as domain: print(domain.info.spec)"
        assert bench.node(0).run(told, FI_LNX_PROV_LINKS="shm+tcp:r1").strip() == "shm+tcp:r1"
        told = told.replace("Domain()", "Domain('tcp:r0')")
        assert bench.node(0).run(told, FI_LNX_PROV_LINKS="shm+tcp:r1").strip() == "tcp:r0"
