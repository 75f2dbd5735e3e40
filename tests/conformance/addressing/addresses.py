"""What the tests of address vectors share: addresses of sockets, good and bad, and the events of insertion."""

from __future__ import annotations

import pyfab

NOTAVAIL = pyfab.ADDR_NOTAVAIL
BAD = b"not an address"


def v4(text: str) -> bytes:
    return pyfab.parse_addr(f"fi_sockaddr_in://{text}")


def v6(text: str) -> bytes:
    return pyfab.parse_addr(f"fi_sockaddr_in6://{text}")


def some(count: int, port: int = 5000) -> list[bytes]:
    return [v4(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}:{port}") for i in range(1, count + 1)]


def read(queue: pyfab.EventQueue) -> pyfab.Event:
    """The next event, an error entry included."""
    try:
        event = queue.read(10)
    except pyfab.FabricError:
        event = queue.read_error()
    assert event is not None
    return event
