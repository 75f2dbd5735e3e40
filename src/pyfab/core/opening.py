"""Checks what a program asks for when it opens a domain, and tells what it is granted."""

from __future__ import annotations

import dataclasses
import math
import operator

from pyfab import _core
from pyfab.core.addressing.addresses import FORMATS
from pyfab.core.addressing.link_traits import traits_of
from pyfab.core.enums import Caps, MRMode
from pyfab.core.errors import InvalidArgumentError, NotSupportedError
from pyfab.core.info import Info, make_info

__all__ = ["cache_setting", "emulated_cache", "granted", "seconds"]


def seconds(name: str, value: float) -> float:
    """The duration given to the keyword of this name. InvalidArgumentError unless it is finite and above 0."""
    try:
        duration = float(value)
    except (TypeError, ValueError):
        duration = 0.0
    if not (math.isfinite(duration) and duration > 0):
        raise InvalidArgumentError(f"{name}={value!r}: it is a positive number of seconds")
    return duration


def cache_setting(mr_cache: object) -> str:
    """The keyword mr_cache as the setting that the core knows."""
    if not isinstance(mr_cache, bool) and mr_cache != "auto":
        raise InvalidArgumentError(f'mr_cache={mr_cache!r}: it is True, False, "auto" or None')
    return str(mr_cache)


def emulated_cache(cache: str, line: int, checker: bool) -> tuple[bool, int, bool]:
    """The emulation of non-coherent memory as the core takes it.

    That is whether the cache is the processor's, the bytes of its line, and whether the checker is on.
    """
    if str(cache) not in ("device", "cpu"):
        raise InvalidArgumentError(f'cache={cache!r}: it is at the "device" or the "cpu"')
    if operator.index(line) <= 0:
        raise InvalidArgumentError(f"cache_line={line}: it is a power of two, in bytes")
    return cache == "cpu", min(line, 2**32 - 1), bool(checker)


def granted(core: _core.DomainCore, mode: MRMode, caps: Caps, addr_format: str) -> Info:
    """What an open domain offers to the program that asked for this. NotSupportedError for what it lacks."""
    info = make_info(core.info, mode)
    if caps & info.caps != caps:
        raise NotSupportedError(f"{info.spec} offers {info.caps!r}, which lacks {caps & ~info.caps!r}")
    wrong = None
    if addr_format not in FORMATS:
        wrong = f"it is one of {', '.join(FORMATS)}"
    elif addr_format != "bundle" and (len(info.links) != 1 or not traits_of(info.links[0]).called_by_socket):
        wrong = f'{info.spec} has addresses of format "bundle"; those of sockets belong to one tcp link'
    elif addr_format.startswith("sockaddr") and (addr_format == "sockaddr_in6") != info.src_addr.startswith(
        "["
    ):
        wrong = f"{info.spec} listens on {info.src_addr}; name another address in tcp_listen"
    if wrong:
        raise InvalidArgumentError(f"addr_format={addr_format!r}: {wrong}")
    return dataclasses.replace(
        info,
        addr_format=addr_format,
        caps=caps or info.caps,
        mr_key_size=core.raw_key_size,
        needs_sync_rdma_read=core.needs_sync_rdma_read,
        needs_sync_rdma_write=core.needs_sync_rdma_write,
    )
