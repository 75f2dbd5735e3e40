"""What a figure is worth nothing without: the machine and the versions."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def machine_facts(cores: tuple[int, int]) -> dict[str, Any]:
    """Everything recorded with a run; ``None`` for what this machine does not say."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "pinned": {"initiator": cores[0], "target": cores[1]},
        "virtual": "hypervisor" in text("/proc/cpuinfo"),
        "governor": text(f"/sys/devices/system/cpu/cpu{cores[0]}/cpufreq/scaling_governor") or None,
        "huge_pages": text("/sys/kernel/mm/transparent_hugepage/enabled") or None,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        **{name: distribution(name) for name in ("numpy", "pyfab-rdma", "mpi4py")},
        "open mpi": first_line("mpirun", "--version"),
        "libfabric": first_line("pkg-config", "--modversion", "libfabric"),
        "ucx": first_line("pkg-config", "--modversion", "ucx"),
        "perftest": first_line("dpkg-query", "--show", "--showformat=${Version}", "perftest"),
        "compiler": first_line("cc", "--version"),
    }


def cpu_model() -> str:
    for line in text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def first_line(*command: str) -> str | None:
    """What a program says of its version; None when it is not there or fails."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.splitlines()[0].strip() if said else None
