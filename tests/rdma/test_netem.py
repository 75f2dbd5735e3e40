"""Cables that delay, reorder, lose and corrupt packets: what arrives is right all the same.

Only in a guest (`scripts/guest-tests`), whose kernel has netem.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from pyfab.testing import Peer
from test_ports import shell

pytestmark = pytest.mark.skipif(
    "PYFAB_GUEST_RANK" not in os.environ, reason="asked for by scripts/guest-tests"
)
TIMEOUT = 60
SIZE = 1 << 20  # bytes
# Of each cable, in both directions.
FAULTS = ["delay 1ms 1ms loss 0.5% corrupt 2%", "delay 3ms reorder 30% 50%"]


def kernel_counts(*where: str) -> dict[str, int]:
    """What the TCP of a network name space has met."""
    counts: dict[str, int] = {}
    for file in ("snmp", "netstat"):
        lines = [line.split() for line in shell(*where, "cat", f"/proc/net/{file}").splitlines()]
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            counts.update(
                {f"{names[0]}{name}": int(n) for name, n in zip(names[1:], values[1:], strict=True)}
            )
    return counts


@contextlib.contextmanager
def far_end() -> Iterator[list[str]]:
    """Another network name space at the end of two bad cables, c0 and c1: the beginning of a command that runs there."""
    script = "ip link set lo up && echo ready && exec cat"
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout and holder.stdout.readline() == "ready\n"
        there = ["nsenter", "--target", str(holder.pid), "--net"]
        for cable, faults in enumerate(FAULTS):
            name = f"c{cable}"
            shell("ip", "link", "add", name, "type", "veth", "peer", "name", name, "netns", str(holder.pid))
            for end, enter in enumerate(([], there)):
                shell(*enter, "ip", "address", "add", f"10.78.{cable}.{1 + end}/24", "dev", name)
                shell(*enter, "ip", "link", "set", name, "up")
                shell(*enter, "tc", "qdisc", "add", "dev", name, "root", "netem", *faults.split())
        yield there  # then its input closes, which ends it, and with it the cables


def faults_of(spec: str) -> list[str]:
    """Counts that grow where the cables of `spec` do what FAULTS says."""
    return ["TcpExt:TCPOFOQueue", *(["Tcp:InCsumErrors", "Tcp:RetransSegs"] if "c0" in spec else [])]


@pytest.mark.req("LNX-64")
@pytest.mark.parametrize("spec", ["tcp:c0", "tcp:c1", "tcp:c0,c1"])
def test_bad_cables_change_nothing(spec):
    generator = np.random.default_rng(1)
    with far_end() as there:

        def met() -> dict[str, int]:
            here, far = kernel_counts(), kernel_counts(*there)
            return {name: here[name] + far[name] for name in faults_of(spec)}

        before = met()
        with (
            Peer(spec, launcher=there, peer_deadline=30, rail_deadline=5) as peer,
            pyfab.Domain(spec, peer_deadline=30, rail_deadline=5) as domain,
            domain.endpoint() as here,
        ):
            handle = here.av.insert(peer.address)
            exposed, sums = peer.expose(np.zeros(SIZE, np.uint8)), peer.expose(np.zeros(1, np.int64))
            for turn in range(100):  # the kernel draws lots: three are enough, now and then it takes more
                content = generator.integers(0, 256, SIZE, np.uint8)
                put = here.write(content, handle, exposed.remote)
                adds = [
                    here.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, sums.remote) for _ in range(100)
                ]
                for operation in (put, *adds):
                    operation.result(TIMEOUT)
                back = np.zeros_like(content)
                here.read(back, handle, exposed.remote).result(TIMEOUT)
                assert (back == content).all() and (exposed.content() == content).all()
                assert sums.content()[0] == 100 * (turn + 1)
                grown = {name: count - before[name] for name, count in met().items()}
                if turn >= 2 and all(grown.values()):
                    break
    assert all(grown.values()), grown
