"""The machine and the versions of a measurement; without them it cannot be compared."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
from pyfab.tools.doctor import report


def facts() -> dict[str, Any]:
    """This machine, and what pyfab finds on it, as JSON takes it."""
    found = report()
    return {
        "host": socket.gethostname(),
        "pyfab": pyfab.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel": platform.release(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "providers": found["providers"],
        "checks": found["checks"],
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
