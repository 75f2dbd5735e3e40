"""What goes wrong on the mock device of a process, and what it holds (tests/cpp/mock_verbs/faults.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_process: Any = ctypes.CDLL(None)
RUNS = hasattr(_process, "mock_verbs_set")
"""Whether the library is preloaded, as scripts/mock-verbs-tests does."""
if RUNS:
    _process.mock_verbs_injected.restype = ctypes.c_uint64


def set_faults(faults: str) -> None:
    assert _process.mock_verbs_set(faults.encode()) == 0, f"no such faults: {faults}"


@contextmanager
def faults(which: str) -> Iterator[None]:
    set_faults(which)
    try:
        yield
    finally:
        set_faults("")


def injected() -> int:
    """Requests of this process that have failed by choice since the faults were set."""
    return int(_process.mock_verbs_injected())


def tell(what: str) -> None:
    """Lets the device tell something by itself: "port_err", "qp_fatal" and others (tests/cpp/mock_verbs/device.cpp)."""
    assert _process.mock_verbs_tell(what.encode()) == 0, f"no such event: {what}"


def objects() -> dict[str, int]:
    """Those of this process that exist, and the receives that the device has of shared queues."""
    return _counts("pd", "cq", "qp", "mr", "held", "cm_id", "shared_receive")


def asked() -> dict[str, int]:
    """What has been asked of the device so far (mock_verbs_objects in tests/cpp/mock_verbs/device.cpp)."""
    return _counts(
        "most_reads",
        "longest",
        "longest_writable",
        "read",
        "written",
        "traffic_class",
        "ack_timeout",
        "retries",
    )


def _counts(*names: str) -> dict[str, int]:
    return {name: _process.mock_verbs_objects(name.encode()) for name in names}
