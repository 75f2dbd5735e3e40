"""What strangers and peers make an endpoint hold is bounded, and the program and its other peers go on."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyfab
import pytest
from pyfab.meeting.acceptor import RESERVE
from servers import DESCRIPTORS, Server
from test_meeting_limits import BURST

Start = Callable[..., Server]
Attack = Callable[..., object]
TIMEOUT = 30
KEYS = pytest.mark.parametrize("key", [None, b"a key"], ids=["without key", "with key"])

ENDPOINT = """
import json, os, socket, sys
import numpy as np
import pyfab

with socket.create_server(("127.0.0.1", 0)) as found:
    port = found.getsockname()[1]
settings = {"tcp_listen": f"127.0.0.1:{port}", "auth_key": KEY, "peer_deadline": PATIENCE}
with pyfab.Domain("tcp:lo", **settings) as domain, domain.endpoint() as endpoint:
    region = domain.register(np.zeros(8), pyfab.Access.REMOTE)
    print("address", endpoint.address.hex(), "remote", region.remote.to_bytes().hex())
    print(f"serving on 127.0.0.1:{port}", flush=True)
    held = []
    for number, line in enumerate(sys.stdin):
        answer = None
        if line == "open some\\n":
            held += [open(os.devnull) for _ in range(48)]
        elif line == "open most\\n":  # nearly up to the reserve
            while not held or held[-1].fileno() < RESERVED - 8:
                held.append(open(os.devnull))
        elif line == "open all\\n":
            try:
                while True:
                    held.append(open(os.devnull))
            except OSError:
                pass
        elif line == "close\\n":
            held.clear()
        elif line == "security\\n":
            answer = domain.stats()["security"]
        elif line == "unexpected\\n":
            answer = endpoint.message_stats()["unexpected"]
        print("answer", number, json.dumps(answer), flush=True)
"""


class Endpoint:
    """An endpoint in a process of its own, with few descriptors."""

    def __init__(self, start: Start, key: bytes | None, patience: float = 10) -> None:
        program = ENDPOINT.replace("KEY", repr(key), 1).replace("PATIENCE", str(patience))
        program = program.replace("RESERVED", str(DESCRIPTORS - RESERVE))
        self.server, self.key, self._asked = start("endpoint", program), key, 0
        self.address = bytes.fromhex(self.server.wait_for(r"address (\w+)"))
        self.remote = bytes.fromhex(self.server.wait_for(r"remote (\w+)"))

    def ask(self, what: str) -> object:
        self.server.tell(what)
        answer = self.server.wait_for(rf"answer {self._asked} (.*)\n")
        self._asked += 1
        return json.loads(answer)

    def security(self, name: str) -> int:
        counts = self.ask("security")
        assert isinstance(counts, dict)
        return int(counts[name])

    def memory(self) -> int:
        """Megabytes that it has."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found[1]) // 1024

    @contextmanager
    def friend(self) -> Iterator[Callable[[], object]]:
        """Puts to it from here."""
        remote = pyfab.RemoteRegion.from_bytes(self.remote)
        with pyfab.Domain("tcp:lo", auth_key=self.key) as domain, domain.endpoint() as endpoint:
            peer = endpoint.av.insert(self.address)
            yield lambda: endpoint.write(np.ones(8), peer, remote).result(TIMEOUT)


@KEYS
def test_silent_calls_take_no_more_than_their_share(start: Start, attack: Attack, key: bytes | None) -> None:
    target = Endpoint(start, key)
    with target.friend() as put:
        put()
        attack("flood", target.server, BURST)
        with target.friend() as another:
            another()
        put()
        target.ask("open some")  # what the program may need
    assert len(target.server.descriptors()) < DESCRIPTORS
    target.server.wait_for("loopback: limit reached: too many handshakes are under way")
    assert target.security("dropped_callers") > BURST / 2


def test_descriptors_are_left_to_the_program(start: Start, attack: Attack) -> None:
    target = Endpoint(start, b"a key")
    target.ask("open most")
    attack("flood", target.server, BURST)
    with target.friend() as put:
        put()
        target.ask("open some")
        put()
    target.server.wait_for("loopback: limit reached: descriptors are left to the program")


@pytest.mark.slow
@KEYS
def test_an_endpoint_goes_on_when_descriptors_are_there_again(
    start: Start, attack: Attack, key: bytes | None
) -> None:
    target = Endpoint(start, key, patience=2)
    with target.friend() as put:
        put()
        target.ask("open all")
        attack("flood", target.server, 10)
        # Without a key an idle stream of a peer may have given way to the first call.
        target.server.wait_for("limit reached: (?:no descriptor is left for a call|descriptors are left to)")
        put()
        target.ask("close")
        with target.friend() as another:
            another()


@pytest.mark.slow
@KEYS
def test_idle_streams_end_for_new_ones(start: Start, peer_attack: Attack, key: bytes | None) -> None:
    target = Endpoint(start, key)
    with target.friend() as put:
        put()
        peer_attack("streams", target, DESCRIPTORS)
        put()
        target.ask("open some")
        with target.friend() as another:
            another()
    assert target.security("limits") > DESCRIPTORS / 4


@pytest.mark.slow
@KEYS
@pytest.mark.parametrize("attack", ["waiting", "trickle"])
def test_streams_without_progress_end_for_new_ones(
    start: Start, peer_attack: Attack, attack: str, key: bytes | None
) -> None:
    target = Endpoint(start, key, patience=1)
    with target.friend() as put:
        put()
        peer_attack(attack, target, DESCRIPTORS)
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                with target.friend() as another:
                    another()
                break
            except pyfab.FabricError:
                assert time.monotonic() < deadline
        put()


@pytest.mark.slow
@KEYS
def test_half_frames_do_not_stay(start: Start, peer_attack: Attack, key: bytes | None) -> None:
    target = Endpoint(start, key, patience=1)
    with target.friend() as put:
        put()
        peer_attack("half frames", target, 8)  # and ends when all of them have been closed
        put()
    assert target.security("half_frames") == 8
    target.server.wait_for("loopback: deadline passed: it began a frame, and did not go on")


@pytest.mark.slow
def test_announcements_hold_little_memory(start: Start, peer_attack: Attack) -> None:
    target = Endpoint(start, None)
    streams, messages = 20, 20 * 8192
    before = target.memory()
    peer_attack("announcements", target, streams)
    deadline = time.monotonic() + 4 * TIMEOUT
    while target.ask("unexpected") != messages + streams:  # each has sent a small one before
        assert time.monotonic() < deadline
    assert target.memory() - before < 200
    with target.friend() as put:
        put()


def test_refused_keys_are_told(start: Start) -> None:
    target = Endpoint(start, b"a key")
    remote = pyfab.RemoteRegion.from_bytes(target.remote)
    with pyfab.Domain("tcp:lo", auth_key=b"another") as domain, domain.endpoint() as endpoint:
        peer = endpoint.av.insert(target.address)
        with pytest.raises(pyfab.KeyRejectedError):
            endpoint.write(np.ones(8), peer, remote).result(TIMEOUT)
    target.server.wait_for("pyfab: loopback: another key: ")
    assert target.security("refused_keys") == 1
