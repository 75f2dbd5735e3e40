"""The provider for libfabric: where it is, and whether the system's libfabric takes it (docs/libfabric.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyfab import _core

_FILE = "libpyfab-fi.so"
_VERSION_1_17 = 1 << 16 | 17
# Asks the system's libfabric, which sees no other provider, and prints its version: 0 at the end if pyfab's was taken.
_ASK = f"""
import ctypes
library = ctypes.CDLL("libfabric.so.1")
library.fi_version.restype = ctypes.c_uint32
version, found = library.fi_version(), ctypes.c_void_p()
result = library.fi_getinfo({_VERSION_1_17}, None, None, ctypes.c_uint64(0), None, ctypes.byref(found))
print(version >> 16, version & 0xffff, result)
"""


def folder() -> Path | None:
    """The folder that libfabric has to look into; None: this build has no provider."""
    found = Path(_core.__file__).parent / "libfabric"
    return found if (found / _FILE).is_file() else None


def export_line(where: Path) -> str:
    """The line of a shell after which programs find the provider in the folder `where`."""
    return f"export FI_PROVIDER_PATH={where}"


def problem(where: Path) -> tuple[str, str]:
    """("", the version of the system's libfabric), or why it does not take the provider in `where`, and a command that helps."""
    environment = {
        **os.environ,
        "FI_PROVIDER_PATH": str(where),
        "FI_PROVIDER": "pyfab",
        "PYFAB_FI_LINKS": "shm",
        "PYFAB_FI_NAME": "pyfab",
    }
    asked = subprocess.run(
        [sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    if asked.returncode != 0:
        return "the system has no libfabric that could load it", "apt install libfabric1"
    major, minor, result = (int(number) for number in asked.stdout.split()[-3:])
    if result != 0:
        return f"libfabric {major}.{minor} does not take it (it answers {result})", "pyfab info --libfabric"
    return "", f"{major}.{minor}"
