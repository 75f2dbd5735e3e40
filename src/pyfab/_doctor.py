"""``pyfab doctor``: what this build and this machine can do, why not more, and what mends it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pyfab import _core
from pyfab._errors import FabricError
from pyfab._table import Table

# Reads 8 bytes at an address of its parent: what cross-memory attach between two processes of one user needs.
_ATTACH = """
import ctypes, sys
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
here = ctypes.create_string_buffer(8)
mine, theirs = Piece(ctypes.addressof(here), 8), Piece(int(sys.argv[2]), 8)
count = libc.process_vm_readv(int(sys.argv[1]), ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
sys.exit(0 if count == 8 else ctypes.get_errno())
"""


class Check(NamedTuple):
    """One thing that was tried. `state` is "ok", or "limited": something is slower or missing; `mend` says what helps."""

    name: str
    state: str
    found: str
    mend: str = ""


class Found(NamedTuple):
    """One provider on one device."""

    provider: str
    device: str
    usable: str
    why: str


def report() -> dict[str, Any]:
    """Everything, as JSON takes it: build, providers, checks."""
    return {
        "build": {
            "version": _core.__version__,
            "compiler": _core.compiler,
            "verbs_headers": _core.has_verbs_headers,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "kernel": platform.release(),
        },
        "providers": _core.discover(),
        "checks": [check._asdict() for check in checks()],
        "usable": any(info["usable"] for info in _core.discover()),
    }


def tables(found: dict[str, Any]) -> tuple[Table[Found], Table[Check]]:
    """The providers and the checks of a `report`."""
    providers = [
        Found(info["provider"], info["domain"], "yes" if info["usable"] else "no", info["why"])
        for info in found["providers"]
    ]
    return Table(Found, providers, "providers"), Table(
        Check, [Check(**check) for check in found["checks"]], "checks"
    )


def checks() -> list[Check]:
    """Tries what the links need from the system."""
    return [_tried(name, check) for name, check in _CHECKS.items()]


def _tried(name: str, check: Callable[[], tuple[str, str, str]]) -> Check:
    try:
        return Check(name, *check())
    except OSError as error:
        return Check(
            name, "limited", f"{error.strerror or error}", "a container or sandbox forbids it: allow it there"
        )


def _memfd() -> tuple[str, str, str]:
    memory = os.memfd_create("pyfab-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.close(memory)
    return "ok", "shared memory can be made (memfd_create)", ""


def _proc_fd() -> tuple[str, str, str]:
    memory = os.memfd_create("pyfab-doctor", os.MFD_CLOEXEC)
    try:
        os.close(os.open(f"/proc/self/fd/{memory}", os.O_RDWR))
    except OSError as error:
        return (
            "limited",
            f"{error.strerror}: peers cannot map memory",
            "mount /proc: mount -t proc proc /proc",
        )
    finally:
        os.close(memory)
    return "ok", "peers can open it (/proc/PID/fd)", ""


def _attach() -> tuple[str, str, str]:
    here = ctypes.create_string_buffer(b"attached")
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _ATTACH, str(os.getpid()), str(ctypes.addressof(here))],
        check=False,
        capture_output=True,
        timeout=30,
    )
    if ran.returncode == 0:
        return "ok", "one process can read another one's memory (process_vm_readv)", ""
    reason = (
        os.strerror(ran.returncode) if ran.returncode in errno.errorcode else "the probe ended unexpectedly"
    )
    return (
        "limited",
        f"{reason}: memory that is not from dom.alloc goes through a ring, with one copy more",
        "sysctl kernel.yama.ptrace_scope=0, or in a container --cap-add=SYS_PTRACE",
    )


def _yama() -> tuple[str, str, str]:
    path = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope = path.read_text().strip() if path.exists() else "absent"
    if scope in ("absent", "0"):
        return "ok", f"ptrace_scope is {scope}", ""
    return (
        "limited",
        f"ptrace_scope is {scope}: processes may not attach to each other",
        "sysctl kernel.yama.ptrace_scope=0",
    )


def _memlock() -> tuple[str, str, str]:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return "ok", "no limit", ""
    return (
        "limited",
        f"{soft // 1024:,} KiB: RDMA devices can register no more",
        "ulimit -l unlimited (limits.conf: memlock)",
    )


def _dev_shm() -> tuple[str, str, str]:
    try:
        found = os.statvfs("/dev/shm")
    except OSError as error:
        return (
            "limited",
            f"{error.strerror}; pyfab does not need it, torch's workers do",
            "mount -t tmpfs tmpfs /dev/shm",
        )
    return "ok", f"{found.f_bavail * found.f_frsize >> 20:,} MiB free; pyfab does not need it", ""


def _loopback() -> tuple[str, str, str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        client = threading.Thread(target=lambda: socket.create_connection(listener.getsockname(), 5).close())
        client.start()
        try:
            listener.accept()[0].close()
        except OSError as error:
            return "limited", f"no connection over 127.0.0.1: {error}", "ip link set lo up"
        finally:
            client.join()
    return "ok", "127.0.0.1 connects", ""


def _links() -> tuple[str, str, str]:
    spec = _core.configured_links()
    if not spec:
        return "ok", "FI_LNX_PROV_LINKS is not set", ""
    try:
        found = [" + ".join(info["links"]) for info in _core.find_links(spec)]
    except FabricError as error:
        return "limited", f"FI_LNX_PROV_LINKS: {error}", "set it to what is there, see docs/links.md"
    return "ok", f"FI_LNX_PROV_LINKS={spec}: {', '.join(found)}", ""


def _rdma() -> tuple[str, str, str]:
    folder = Path("/sys/class/infiniband")
    devices = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if not devices:
        return (
            "limited",
            "no RDMA device",
            "a software one: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0",
        )
    names = ", ".join(devices)
    if not _core.has_verbs_headers:
        return (
            "limited",
            f"{names}, but this build has no verbs provider",
            "build it again with Debian's libibverbs-dev and librdmacm-dev installed",
        )
    if missing := [name for name in ("libibverbs.so.1", "librdmacm.so.1") if not _opens(name)]:
        return (
            "limited",
            f"{names}, but {' and '.join(missing)} cannot be opened",
            "apt install libibverbs1 librdmacm1 ibverbs-providers",
        )
    wanted = [Path("/dev/infiniband/rdma_cm"), *Path("/dev/infiniband").glob("uverbs*")]
    if len(wanted) == 1 or not wanted[0].exists():
        return (
            "limited",
            f"{names}, but /dev/infiniband has no {'uverbs*' if len(wanted) == 1 else 'rdma_cm'}",
            "modprobe ib_uverbs rdma_ucm; in a container --device=/dev/infiniband",
        )
    if refused := [str(path) for path in wanted if not os.access(path, os.R_OK | os.W_OK)]:
        return (
            "limited",
            f"{names}, but this user may not open {' and '.join(refused)}",
            "chmod 666 it, or join the group that owns it (udev rules of rdma-core do that)",
        )
    return "ok", names, ""


def _opens(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


_CHECKS: dict[str, Callable[[], tuple[str, str, str]]] = {
    "memfd": _memfd,
    "/proc/self/fd": _proc_fd,
    "cross-memory attach": _attach,
    "yama": _yama,
    "locked memory": _memlock,
    "/dev/shm": _dev_shm,
    "loopback": _loopback,
    "rdma devices": _rdma,
    "links": _links,
}
