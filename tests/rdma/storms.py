"""What the processes of a storm do: many endpoints that call one, and one endpoint that calls many."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyfab

A_DOMAIN = 40  # endpoints
DESCRIPTORS = 1 << 16
ROW = 64 * 1024  # bytes: large enough for devices to move them at the first use of a region
TIMEOUT = 60.0
Where = Sequence[tuple[bytes, pyfab.RemoteRegion]]


def have_descriptors(*_: Any) -> None:
    """Enough for some hundreds of endpoints, of which each has some ten over verbs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # only some may have more than that
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, DESCRIPTORS),) * 2)
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def opened(device: str, count: int, **settings: Any) -> Iterator[list[tuple[pyfab.Domain, pyfab.Endpoint]]]:
    """As many endpoints, each with its domain."""
    with contextlib.ExitStack() as stack:
        endpoints = []
        for number in range(count):
            if number % A_DOMAIN == 0:
                domain = stack.enter_context(pyfab.Domain(device, **settings))
            endpoints.append((domain, stack.enter_context(domain.endpoint())))
        yield endpoints


@contextlib.contextmanager
def exposed(called: Sequence[tuple[pyfab.Domain, pyfab.Endpoint]]) -> Iterator[tuple[list[Any], Where]]:
    """A row of memory of each of these endpoints, and where they are."""
    with contextlib.ExitStack() as stack:
        rows = [np.zeros(ROW, np.uint8) for _ in called]
        regions = [
            stack.enter_context(domain.register(row, pyfab.Access.REMOTE))
            for (domain, _), row in zip(called, rows, strict=True)
        ]
        yield (
            rows,
            [
                (endpoint.address, region.remote)
                for (_, endpoint), region in zip(called, regions, strict=True)
            ],
        )


def call_at_once(
    _target: Any,
    device: str,
    address: bytes,
    remote: pyfab.RemoteRegion,
    count: int,
    timeout: float = TIMEOUT,
    **settings: Any,
) -> list[str]:
    """The errors of puts that as many endpoints begin at once."""
    with opened(device, count, **settings) as endpoints:
        ones = np.ones(remote.nbytes, np.uint8)
        puts = [each.write(ones, each.av.insert(address), remote) for _, each in endpoints]
        return [str(error) for put in puts if (error := put.exception(timeout)) is not None]


def put_to_all(target: Any, where: Where, timeout: float = TIMEOUT) -> int:
    """A row of its own to each; of how many peers the devices do nothing."""
    here = target.endpoint
    handles = [here.av.insert(address) for address, _ in where]
    puts = [
        here.write(np.full(ROW, 1 + number % 255, np.uint8), handle, remote)
        for number, (handle, (_, remote)) in enumerate(zip(handles, where, strict=True))
    ]
    for put in puts:
        put.result(timeout)
    return sum("by messages" in here.report(handle)[1] for handle in handles)
