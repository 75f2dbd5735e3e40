"""What tests of rails need: two network links to the same peer on this machine, and connections that break."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import psutil


def _another_device() -> str | None:
    for name, state in psutil.net_if_stats().items():
        addresses = psutil.net_if_addrs().get(name, ())
        if name != "lo" and state.isup and any(address.family == socket.AF_INET for address in addresses):
            return str(name)
    return None


_DEVICE = _another_device()
# None where the loopback is the only network device.
RAILS = f"tcp:lo,{_DEVICE}" if _DEVICE else None
# Of both sides, for links that encrypt.
ENCRYPTED = {"auth_key": b"a key of both sides", "encrypt": True}
if os.environ.get("PYFAB_TEST_KERNEL_TLS"):
    ENCRYPTED["tcp_kernel_tls"] = "on"
WHY_NOT = "this machine has no network device besides the loopback"


def connections() -> list[socket.socket]:
    """Duplicates of all TCP connections of this process."""
    found = []
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(descriptor.readlink()).startswith("socket:"):
                continue
            copy = os.dup(int(descriptor.name))
        except OSError:
            continue  # closed meanwhile
        try:
            connection = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        try:
            if connection.family != socket.AF_INET or connection.type != socket.SOCK_STREAM:
                raise OSError
            connection.getpeername()
        except OSError:
            connection.close()
        else:
            found.append(connection)
    return found


def cut(most: int | None = None) -> int:
    """Ends `most` TCP connections of this process, chosen at random, or all; returns how many there were to end."""
    there = connections()
    random.shuffle(there)
    ended = 0
    for connection in there:
        if most is None or ended < most:
            try:
                connection.shutdown(socket.SHUT_RDWR)
                ended += 1
            except OSError:
                pass  # it ended by itself
        connection.close()
    return ended
