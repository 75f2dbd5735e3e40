"""What `pyfab doctor` advises about the system itself, taken at its word in a guest, whose system may be broken."""

from __future__ import annotations

import json
import sys

import pytest
from test_guest import SKIPPED, kernel, run

__all__ = ["kernel"]  # which prepares it for all tests
pytestmark = [pytest.mark.skipif(bool(SKIPPED), reason=SKIPPED), pytest.mark.slow, pytest.mark.timeout(300)]

# Prints what is advised after each fault, and the state before and after that was done.
SCRIPT = """
import ctypes, json, os, resource, subprocess, sys
from pyfab.tools import doctor

doctor._contained = lambda: False
told = []

def look(name):
    return doctor._tried(name, doctor._CHECKS[name])

def look_without_capability(name):
    # As all users but root: in a child that has given CAP_SYS_PTRACE away, so that its own children lack it, too.
    read, write = os.pipe()
    if os.fork() == 0:
        libc, ptrace = ctypes.CDLL(None), 1 << 19
        libc.prctl(24, 19)
        header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc.capget(header, sets)
        sets[0], sets[1] = sets[0] & ~ptrace, sets[1] & ~ptrace
        libc.capset(header, sets)
        os.write(write, json.dumps(look(name)).encode())
        os._exit(0)
    os.wait()
    return doctor.Check(*json.loads(os.read(read, 4096)))

def mended(fault, name, look=look):
    before = look(name)
    subprocess.run(fault, shell=True, check=True)
    found = look(name)
    subprocess.run(found.mend, shell=True, check=True)
    told.append([name, before.state, found.state, found.mend, look(name).state])

thp = "/sys/kernel/mm/transparent_hugepage"
subprocess.run(f"echo madvise > {thp}/enabled; echo advise > {thp}/shmem_enabled", shell=True, check=True)
mended(f"echo never > {thp}/enabled", "huge pages")
mended(f"echo never > {thp}/shmem_enabled", "huge pages")
mended("sysctl -w kernel.yama.ptrace_scope=1", "yama")
mended("sysctl -w kernel.yama.ptrace_scope=2", "cross-memory attach", look_without_capability)
subprocess.run("sysctl -w kernel.yama.ptrace_scope=3", shell=True, check=True)
told.append(look("yama").mend)

# Limits are a shell's, or of who logs in.
def limit(shell, soft, hard):
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    found = look("locked memory")
    ran = subprocess.run(["sh", "-c", shell.format(found.mend)], capture_output=True, text=True)
    told.append([found.name, found.state, found.mend, ran.stdout.strip()])

limit("{}\\nulimit -l", 65536, resource.RLIM_INFINITY)
limit("{}\\nsu -s /bin/sh root -c 'ulimit -l'", 65536, 65536)
print(json.dumps(told))
"""


def test_what_doctor_says_mends_it() -> None:
    done = run(sys.executable, "-c", SCRIPT, options=("--timeout", "250"))
    assert done.returncode == 0, done.stderr
    thp = "/sys/kernel/mm/transparent_hugepage"
    lower = "sysctl -w kernel.yama.ptrace_scope=0"
    assert json.loads(done.stdout.splitlines()[-1]) == [
        ["huge pages", "ok", "limited", f"echo madvise > {thp}/enabled", "ok"],
        ["huge pages", "ok", "limited", f"echo advise > {thp}/shmem_enabled", "ok"],
        ["yama", "ok", "limited", lower, "ok"],
        ["cross-memory attach", "ok", "limited", lower, "ok"],
        "echo kernel.yama.ptrace_scope=0 > /etc/sysctl.d/99-ptrace.conf && reboot",
        ["locked memory", "limited", "ulimit -l unlimited", "unlimited"],
        [
            "locked memory",
            "limited",
            "echo 'root - memlock unlimited' > /etc/security/limits.d/memlock.conf  # and log in again",
            "unlimited",
        ],
    ]
