"""Addresses of servers, ``host:port``: how they are written and listened on, and who can reach them."""

from __future__ import annotations

import ipaddress
import os
import socket

from pyfab.meeting.tokens import Token

BACKLOG = 1024
"""Connections that may wait to be accepted. With fewer, a burst makes the kernel turn others away for seconds."""


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``[v6]:port`` or ``:port``, which means loopback. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is no address: write host:port with a port from 0 to 65535")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r} is no address: write an IPv6 host in brackets, as in [::1]:29400")
    return host.strip("[]") or "127.0.0.1", int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def open_to(host: str, token: Token) -> str:
    """Who may connect to a server on that address, in words."""
    if not token.open:
        return "those who have the token"
    return "this machine" if ipaddress.ip_address(host).is_loopback else "everyone who can reach it"


def listen(address: str) -> socket.socket:
    """A socket that listens on ``host:port``, port 0 for any. ValueError for what is no address, OSError naming the address."""
    host, port = split_address(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:  # its own text has the address as a tuple, or not at all
        # Numbers below 0 are the resolver's, also where create_server has made a plain OSError of its error.
        own = (error.strerror or str(error)).partition(" (while attempting")[0]
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else own
        raise OSError(error.errno, f"cannot listen on {address}: {reason}") from None
