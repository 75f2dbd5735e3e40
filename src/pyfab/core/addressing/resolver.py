"""Turns names of nodes and services into packed socket addresses. Tests replace `getaddrinfo`."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyfab.core.errors import NO_DATA, FabricError, InvalidArgumentError

__all__ = ["Services", "pack", "symmetric"]

getaddrinfo = socket.getaddrinfo
_Host = ipaddress.IPv4Address | ipaddress.IPv6Address


class Services(NamedTuple):
    """Services whose addresses are asked for: `svccnt` from `service` on, of each of `nodecnt` nodes from `node` on."""

    node: str
    nodecnt: int
    service: str
    svccnt: int


def pack(host: _Host, port: int) -> bytes:
    """The bytes of a struct sockaddr_in or sockaddr_in6."""
    if isinstance(host, ipaddress.IPv4Address):
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + host.packed + bytes(8)
    return (
        struct.pack("=H", socket.AF_INET6)
        + struct.pack("!HI", port, 0)
        + host.packed
        + struct.pack("=I", int(host.scope_id or 0))
    )


def _literal(node: str) -> _Host | None:
    try:
        return ipaddress.ip_address(node.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def _port(service: str | None) -> int | None:
    return int(service) if service and service.isascii() and service.isdigit() else None


def _resolve(node: str, service: str | None, family: int) -> tuple[_Host, int]:
    try:
        found = getaddrinfo(node, service, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a label that is too long is no OSError
        reason = getattr(error, "strerror", None) or error
        raise FabricError(
            NO_DATA, f"node={node!r}, service={service!r} cannot be resolved: {reason}"
        ) from None
    host, port = found[0][4][:2]
    return ipaddress.ip_address(host), int(port)


def _nodes(node: str, count: int, family: int) -> Iterator[_Host | FabricError]:
    """The addresses of `count` nodes from `node` on."""
    first = _literal(node)
    if first is not None:
        for offset in range(count):
            try:
                yield first + offset
            except ipaddress.AddressValueError:
                yield InvalidArgumentError(f"{offset} nodes after {node} there are no more addresses")
        return
    match = re.search(r"(\d+)$", node)
    if match is None and count > 1:
        raise InvalidArgumentError(
            f"node={node!r}, nodecnt={count}: a name of several nodes ends in a number, as in 'host10'"
        )
    for offset in range(count):
        name = node
        if match and count > 1:
            name = node[: match.start()] + str(int(match[1]) + offset).zfill(len(match[1]))
        try:
            yield _resolve(name, None, family)[0]
        except FabricError as error:
            yield error


def symmetric(services: Services, family: int) -> Iterator[bytes | FabricError]:
    """The address of each service, node by node, or the reason why it has none."""
    node, nodecnt, service, svccnt = services
    if nodecnt < 0 or svccnt < 0:
        raise InvalidArgumentError(f"nodecnt={nodecnt}, svccnt={svccnt}: they are not negative")
    first = _port(service)
    if first is None:
        if svccnt > 1:
            raise InvalidArgumentError(
                f"service={service!r}, svccnt={svccnt}: several services start at a number"
            )
        if not service:
            raise InvalidArgumentError(f"node={node!r}: the service, a port, is missing")
        first = _resolve(node, service, family)[1]
    for host in _nodes(node, nodecnt, family):
        for port in range(first, first + svccnt):
            if isinstance(host, FabricError):
                yield host
            elif not 0 < port < 65536:
                yield InvalidArgumentError(f"port {port} of {host}: ports are 1 to 65535")
            else:
                yield pack(host, port)
