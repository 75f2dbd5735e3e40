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
        "host": platform.node(),
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


def remarks(facts: dict[str, Any]) -> list[str]:
    """What a reader should know of the machines of a run: who shares a processor with other work has worse and unsteady figures.

    facts: those of `Measurements`.
    """
    machines = {side: told for side, told in facts.items() if told.get("load") and told.get("cores")}
    if len({told.get("host") for told in machines.values()}) == 1:
        machines = dict(list(machines.items())[:1])
    # Both sides of a measurement need a core each; on two machines one of them.
    own = 2 if len(machines) == 1 else 1
    return [
        f"{told.get('host') or side} was busy with other work, at a load of {told['load']:g} on {told['cores']} cores, when this"
        " run began: figures are worse than they could be, and vary"
        for side, told in machines.items()
        if told["load"] > max(0.5, told["cores"] - own)
    ]


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
