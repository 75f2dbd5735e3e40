"""Connections that break, lie, say nothing or come from the wrong side."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer
from test_killed import free_port
from test_stopped import TIMEOUT, rounds


@pytest.fixture
def served(station):
    """A station, a peer that it uses over tcp, and the peer's port."""
    here, port = station("tcp"), free_port()
    peer, handle = here.peer(tcp_listen=f"127.0.0.1:{port}")
    exposed = peer.expose(np.zeros(1001, np.int64))
    rounds(here.endpoint, handle, exposed, 1)
    return here, handle, exposed, port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)


def test_garbage_is_refused_and_others_go_on(served):
    here, handle, exposed, port = served
    generator = np.random.default_rng(3)
    for size in [1, 8, 64, 1000, 100_000] * 10:
        with connect(port) as stranger:
            try:
                stranger.sendall(generator.bytes(size))
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(1 << 16):
                    pass
            except OSError:  # the peer has hung up, as it should
                pass
        rounds(here.endpoint, handle, exposed, 1)
    assert exposed.content()[1000] == 51


@pytest.mark.slow
def test_strangers_who_say_nothing_are_dropped(served):
    here, handle, exposed, port = served
    strangers = [connect(port) for _ in range(200)]
    rounds(here.endpoint, handle, exposed, 20)
    for stranger in strangers:
        try:
            while stranger.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        stranger.close()
    rounds(here.endpoint, handle, exposed, 20)


def for_each_socket(listening: bool, act: Callable[[socket.socket], object]) -> int:
    """Calls `act` with every socket of this process that listens, or with every other one; the calls that succeeded."""
    succeeded = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as duplicate:
                if duplicate.family == socket.AF_INET and listening == bool(
                    duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                ):
                    act(duplicate)
                    succeeded += 1
        except OSError:  # not connected any more, or the descriptor of the listing itself
            continue
    return succeeded


def shut_down(listening: bool) -> int:
    """Breaks these sockets behind the library's back; how many."""
    return for_each_socket(listening, lambda one: one.shutdown(socket.SHUT_RDWR))


def wait_until_listening(count: int) -> None:
    end = time.monotonic() + TIMEOUT
    while for_each_socket(True, socket.socket.fileno) < count:
        assert time.monotonic() < end, "the listener was not opened anew"
        time.sleep(0.001)


def test_a_broken_connection_is_made_anew(served):
    """What was in the air may be lost, or the first operation that meets the break; what comes next works."""
    here, handle, exposed, _ = served
    data = np.ones(1000, np.int64)
    for turn in range(20):
        operations = [here.endpoint.write(data, handle, exposed.remote[:1000]) for _ in range(50)]
        assert shut_down(listening=False) > 0
        errors = [operation.exception(TIMEOUT) for operation in operations]
        if not any(errors):
            errors.append(here.endpoint.write(data, handle, exposed.remote[:1000]).exception(TIMEOUT))
        assert all(error is None or isinstance(error, pyfab.PeerLostError) for error in errors)
        rounds(here.endpoint, handle, exposed, 1)
        assert exposed.content()[1000] == turn + 2


@pytest.mark.slow
def test_a_broken_listener_is_opened_anew(station):
    """At the same port: who knows the endpoint by its address reaches it, and closing it takes no longer."""
    here = station("tcp")
    array = np.zeros(8)
    with here.domain.register(array, pyfab.Access.REMOTE_WRITE) as region:
        for turn in range(5):
            broken = shut_down(listening=True)
            assert broken > 0
            wait_until_listening(broken)
            with Peer("tcp", peer_deadline=20) as peer:
                assert peer.run(write_to, here.endpoint.address, region.key, turn) is None
            assert array[0] == turn


def write_to(peer, address: bytes, key: int, value: int) -> None:
    peer.endpoint.put(np.full(8, float(value)), peer.endpoint.av.insert(address), (0, key))


@pytest.mark.slow
def test_nobody_listens(station):
    """An address whose owner is gone: unreachable, soon, and with the place named."""
    here = station("tcp")
    port = free_port()
    with Peer("tcp", tcp_listen=f"127.0.0.1:{port}") as peer:
        handle = here.endpoint.av.insert(peer.address)
    with pytest.raises(pyfab.PeerLostError, match=rf"peer {handle}"):
        here.endpoint.write(np.ones(8), handle, (0, 1)).result(TIMEOUT)


WAIT = """
import numpy as np, pyfab, sys
with pyfab.Domain("tcp") as domain, domain.endpoint() as endpoint:
    handle = endpoint.av.insert(bytes.fromhex(sys.argv[1]))
    operation = endpoint.write(np.ones(8), handle, (0, 1))
    try:
        print("waiting", flush=True)
        {wait}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "wait",
    [
        "operation.result()",
        "operation.exception(timeout=1000)",
        "endpoint.flush()",
        "endpoint.cq.wait(1000)",
        "domain.counter().wait(1, None)",
        "endpoint.put(np.ones(8), handle, (0, 1))",
    ],
)
def test_ctrl_c_ends_a_wait(wait):
    """The wait for a peer that does not answer is over at once."""
    with Peer("tcp", progress="manual") as silent:
        waiting = subprocess.Popen(
            [sys.executable, "-c", WAIT.format(wait=wait), silent.address.hex()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signal.SIGINT)
        output, errors = waiting.communicate(timeout=TIMEOUT)
        assert (output, errors, waiting.returncode) == ("interrupted\n", "", 0)
