"""What a figure is worth nothing without: the machine and the versions, of what pyfab is compared with, too."""

from __future__ import annotations

import importlib.metadata
import subprocess
from typing import Any

import pyfab.bench


def machine_facts(cores: tuple[int, int]) -> dict[str, Any]:
    """Everything recorded with a run; ``None`` for what this machine does not say."""
    return {
        **pyfab.bench.machine_facts(cores[0]),
        "pinned": {"initiator": cores[0], "target": cores[1]},
        "mpi4py": distribution("mpi4py"),
        "open mpi": first_line("mpirun", "--version"),
        "libfabric": first_line("pkg-config", "--modversion", "libfabric"),
        "ucx": first_line("pkg-config", "--modversion", "ucx"),
        "perftest": first_line("dpkg-query", "--show", "--showformat=${Version}", "perftest"),
        "compiler": first_line("cc", "--version"),
    }


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
