"""Processes that have fewer capabilities than this one."""

import os
import shutil
import subprocess
import sys

import pytest

# A process that was started this way has fewer capabilities than this one, which may look into it, but not the reverse.
WITH_LESS = ("setpriv", "--bounding-set", "-sys_ptrace,-sys_nice")


def may_start_with_less() -> bool:
    probe = [*WITH_LESS, sys.executable, "-c", ""]
    if shutil.which(WITH_LESS[0]) is None:
        return False
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


needs_setpriv = pytest.mark.skipif(
    os.geteuid() != 0 or not may_start_with_less(),
    reason="only root can start a process with fewer capabilities, by setpriv (util-linux)",
)
