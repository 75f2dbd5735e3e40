"""Messages of a transport, and the modes that leave them or the transfers out."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pyfab
import pytest
from crew import WAYS, Way
from pyfab import Access, AtomicOp, Outcome, Transport
from pyfab.testing import Target
from sides import Sides, wait_for
from support import TIMEOUT

# --- the other side, in a process of its own


def echo_there(target: Target, tag: int) -> None:
    transport = target.kept["transport"][0]

    def answer(sender: Any, message: bytes) -> None:
        known = sender is target.kept["peer"]
        while transport.send(target.kept["peer"], tag, bytes([known]) + message) is Outcome.TRY_AGAIN:
            pass

    transport.handle(tag, answer)


def receives_there(target: Target) -> int:
    return int(target.kept["transport"][0].posted_receives)


# --- messages


@pytest.mark.req("WIN-2")
def test_modes_leave_the_other_side_out() -> None:
    with Transport("shm", mode="one_sided") as transport:
        myself = transport.peer(transport.name)
        with pytest.raises(pyfab.NotSupportedError, match="one_sided"):
            transport.send(myself, 1, b"x")
        assert transport.posted_receives == 0
    with Transport("shm", mode="two_sided") as transport:
        myself = transport.peer(transport.name)
        registration = transport.register(np.zeros(8), Access.REMOTE)
        for call in (
            lambda: transport.put(myself, b"x", registration.address, registration),
            lambda: transport.get(myself, bytearray(1), registration.address, registration),
            lambda: transport.atomic(myself, AtomicOp.SUM, 1, registration.address, registration),
        ):
            with pytest.raises(pyfab.NotSupportedError, match="two_sided"):
                call()
        got = threading.Event()
        transport.handle(5, lambda *_: got.set())
        transport.send(myself, 5, b"x")
        assert got.wait(TIMEOUT)


@pytest.mark.req("WIN-62", "WIN-63", "WIN-61")
@pytest.mark.parametrize("inject", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_messages_reach_their_handler(way: Way, inject: bool) -> None:
    with Sides(way, message_size=200_000, inject=inject) as sides:
        transport = sides.transport
        limit = transport.limits[0].inject_size
        answers: list[tuple[Any, int, bytes]] = []
        for tag in (0, 7, 255):
            transport.handle(tag, lambda peer, message, tag=tag: answers.append((peer, tag, message)))
            sides.process.run(echo_there, tag)
        posted = transport.posted_receives, sides.process.run(receives_there)
        sizes = [0, 1, limit - 9, limit - 8, limit - 7, limit, limit + 1, 100_000]
        sent = []
        for number, size in enumerate(sizes * 8):
            tag = (0, 7, 255)[number % 3]
            while transport.send(sides.peer, tag, bytes([number % 251]) * size) is Outcome.TRY_AGAIN:
                transport.progress()
            sent.append((tag, b"\1" + bytes([number % 251]) * size))
        wait_for(lambda: len(answers) == len(sent))
        assert all(peer is sides.peer for peer, _, _ in answers)
        assert Counter((tag, message) for _, tag, message in answers) == Counter(sent)
        assert transport.send(sides.peer, 7, bytes(200_001)) is Outcome.NOT_POSSIBLE
        for tag in (-1, 256):
            with pytest.raises(pyfab.InvalidArgumentError):
                transport.send(sides.peer, tag, b"")
        assert (transport.posted_receives, sides.process.run(receives_there)) == posted
