"""Ports that go down and come back, and machines that are not set up: errors and the doctor name each problem.

Only in a guest (`scripts/guest-tests`), whose network may be taken away.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from pyfab.testing import Peer

DEVICES = [spec for spec in os.environ.get("PYFAB_TEST_LINKS", "").split() if spec.startswith("verbs:")]
pytestmark = pytest.mark.skipif(
    "PYFAB_GUEST_RANK" not in os.environ or not DEVICES, reason="asked for by scripts/guest-tests"
)
LINK = DEVICES[0] if DEVICES else ""
DEVICE = LINK.removeprefix("verbs:")
TIMEOUT = 60
SIZE = 1 << 20  # bytes

# Opens an endpoint and says what it met, and what the doctor does.
PROBE = """
import json, sys
import pyfab
from pyfab.tools import doctor
try:
    pyfab.Domain(sys.argv[1]).endpoint()
    said = ""
except pyfab.FabricError as error:
    said = str(error)
print(json.dumps([said, str([doctor._CHECKS[name]() for name in ("locked memory", "rdma devices")])]))
"""


def shell(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=TIMEOUT).stdout


def network_interface() -> str:
    (link,) = json.loads(shell("rdma", "-j", "link", "show", f"{DEVICE}/1"))
    return str(link["netdev"])


@contextlib.contextmanager
def port_down() -> Iterator[None]:
    interface = network_interface()
    shell("ip", "link", "set", interface, "down")
    try:
        yield
    finally:
        shell("ip", "link", "set", interface, "up")


def met(*before: str) -> tuple[str, str]:
    """What a program says that runs behind the words `before`; and the doctor."""
    said, doctor = json.loads(shell(*before, sys.executable, "-c", PROBE, LINK))
    return said, doctor


def test_a_port_without_a_cable_is_named():
    with port_down():
        said, doctor = met()
    for told in (said, doctor):
        assert re.search(f"{DEVICE} has no active port; check the cable", told), told


def test_a_device_without_an_address_is_named():
    interface = network_interface()
    (found,) = json.loads(shell("ip", "-j", "-4", "address", "show", interface))
    address = f"{found['addr_info'][0]['local']}/{found['addr_info'][0]['prefixlen']}"
    no_ipv6 = f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"
    shell("sh", "-c", f"ip address del {address} dev {interface}; echo 1 >{no_ipv6}")
    try:
        said, doctor = met()
    finally:
        shell("sh", "-c", f"ip address add {address} dev {interface}; echo 0 >{no_ipv6}")
    for told in (said, doctor):
        assert f"{DEVICE} has no IP address" in told and "network interface" in told


def test_missing_device_files_are_named():
    said, doctor = met("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/infiniband; "$@"', "sh")
    assert "/dev/infiniband" in said
    assert "/dev/infiniband has no" in doctor


def test_a_limit_of_locked_memory_is_named():
    # Root may lock what it likes, unless it gives that up.
    said, doctor = met(
        *("prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
    )
    assert "this process may lock 64 KiB of memory, raise that limit (ulimit -l)" in said
    assert "64 KiB: RDMA devices can register no more" in doctor


def test_a_peer_without_rdma_is_named():
    with (
        Peer("tcp") as peer,
        pyfab.Domain(LINK) as domain,
        domain.endpoint() as endpoint,
        pytest.raises(pyfab.UnreachableError, match=r"verbs.*tcp"),
    ):
        endpoint.av.insert(peer.address)


def test_another_link_takes_over_from_a_port_that_goes_down():
    spec = f"{LINK}+tcp"
    iwarp = "iwarp" in pyfab.getinfo(LINK)[0].fabric
    with Peer(spec) as peer, pyfab.Domain(spec) as domain, domain.endpoint() as endpoint:
        handle = endpoint.av.insert(peer.address)
        memory = peer.expose(np.zeros(SIZE, np.uint8))
        words = peer.expose(np.zeros(1, np.int64))

        def over_both_is(wanted: bool, seconds: float) -> bool:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                endpoint.write(np.full(SIZE, 1, np.uint8), handle, memory.remote).result(TIMEOUT)
                report = endpoint.report(handle)[1]
                if any(word in report for word in ("down", "joining", "set aside")) != wanted:
                    return True
            return False

        def takes_over(calls: int) -> bool:
            assert over_both_is(True, TIMEOUT), endpoint.report(handle)
            puts = [endpoint.write(np.full(SIZE, 2, np.uint8), handle, memory.remote) for _ in range(8)]
            sums = [
                endpoint.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, words.remote) for _ in range(8)
            ]
            with port_down():
                for operation in [*puts, *sums]:
                    operation.result(TIMEOUT)
                assert (memory.content() == 2).all()
                assert words.content() == [calls * len(sums)]  # each once
                return (
                    over_both_is(False, TIMEOUT / 6 if iwarp else TIMEOUT)
                    and "tcp.0" in endpoint.report(handle)[1]
                )

        # What soft-iWARP connects anew while its port goes down lives on over this machine's loopback.
        assert any(takes_over(call) for call in range(1, 8 if iwarp else 2)), endpoint.report(handle)
        if iwarp:
            assert over_both_is(True, TIMEOUT), endpoint.report(handle)
        # Linux 6.1's soft-RoCE connects to nobody any more once it had to send while its port was down, rping neither.
