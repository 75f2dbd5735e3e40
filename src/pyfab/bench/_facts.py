"""The machine and the versions that figures were measured with; without them, figures cannot be compared."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from pyfab import _core


def machine_facts(core: int) -> dict[str, Any]:
    """What is recorded with a run whose process here is kept on `core`. A fact that this machine does not tell is None."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "core": core,
        "virtual": "hypervisor" in _text("/proc/cpuinfo"),
        "governor": _text(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor") or None,
        "huge_pages": _text("/sys/kernel/mm/transparent_hugepage/enabled") or None,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "numpy": importlib.metadata.version("numpy"),
        "pyfab-rdma": _core.__version__,
    }


def _cpu_model() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
