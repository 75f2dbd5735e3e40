"""``pyfab doctor``: what this build and this machine can do, why not more, and what mends it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
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
from pyfab.core.errors import FabricError
from pyfab.display.tables import Table
from pyfab.tools import libfabric

# This program reads 8 bytes of its parent's memory. If it can, cross-memory attach works between processes of one user.
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


_FORK_DISABLED, _FORK_ENABLED, _FORK_UNNEEDED = 0, 1, 2  # of ibv_is_fork_initialized(3)
_SMALL_SHM = 256 << 20  # bytes


class Check(NamedTuple):
    """One thing that was tried. `state` is "ok", or "limited": something is slower or missing; `mend` is a command that helps."""

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
    """All that was found, as JSON takes it: build, providers, checks."""
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


class Shown(NamedTuple):
    """A check as its table shows it. What mends it is printed on a line of its own, so that it can be copied."""

    check: str
    state: str
    found: str


def tables(found: dict[str, Any]) -> tuple[Table[Found], Table[Shown]]:
    """The providers and the checks of a `report`."""
    providers = [
        Found(info["provider"], info["domain"], "yes" if info["usable"] else "no", info["why"])
        for info in found["providers"]
    ]
    shown = [Shown(check["name"], check["state"], check["found"]) for check in found["checks"]]
    return Table(Found, providers, "providers"), Table(Shown, shown, "checks")


def checks() -> list[Check]:
    """Tries what the links need from the system."""
    return [_tried(name, check) for name, check in _CHECKS.items()]


_Result = tuple[str, str, str]


def _tried(name: str, check: Callable[[], _Result]) -> Check:
    try:
        return Check(name, *check())
    except OSError as error:
        mend = "docker run --security-opt seccomp=unconfined ..."
        return Check(name, "limited", f"{error.strerror or error}: a sandbox forbids it", mend)


def _ok(found: str) -> _Result:
    return "ok", found, ""


def _limited(found: str, mend: str, in_container: str = "") -> _Result:
    """`mend` is a command for a shell of root; `in_container` the one that starts a container without the limit."""
    return "limited", found, in_container if in_container and _contained() else mend


def _contained() -> bool:
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))


def _text(path: str) -> str:
    """The text of a file of the system; empty if there is no such file."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _memfd() -> _Result:
    memory = os.memfd_create("pyfab-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.close(memory)
    return _ok("shared memory can be made (memfd_create)")


def _proc_fd() -> _Result:
    memory = os.memfd_create("pyfab-doctor", os.MFD_CLOEXEC)
    try:
        os.close(os.open(f"/proc/self/fd/{memory}", os.O_RDWR))
    except OSError as error:
        return _limited(f"{error.strerror}: peers cannot map memory", "mount -t proc proc /proc")
    finally:
        os.close(memory)
    return _ok("peers can open it (/proc/PID/fd)")


def _attach() -> _Result:
    here = ctypes.create_string_buffer(b"attached")
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _ATTACH, str(os.getpid()), str(ctypes.addressof(here))],
        check=False,
        capture_output=True,
        timeout=30,
    )
    if ran.returncode == 0:
        return _ok("one process can read another one's memory (process_vm_readv)")
    reason = (
        os.strerror(ran.returncode) if ran.returncode in errno.errorcode else "the probe ended unexpectedly"
    )
    allow = "docker run --cap-add=SYS_PTRACE ..."
    return _limited(
        f"{reason}: memory that is not from Domain.alloc goes through a ring, with one copy more",
        allow if _ptrace_scope() == "0" else _attachable(),
        allow,
    )


def _yama() -> _Result:
    scope = _ptrace_scope()
    if scope == "0":
        return _ok("processes may attach to each other")
    return _limited(f"ptrace_scope is {scope}: processes may not attach to each other", _attachable())


def _ptrace_scope() -> str:
    return _text("/proc/sys/kernel/yama/ptrace_scope") or "0"


def _attachable() -> str:
    if _ptrace_scope() == "3":  # this value stays until the machine starts again
        return "echo kernel.yama.ptrace_scope=0 > /etc/sysctl.d/99-ptrace.conf && reboot"
    return "sysctl -w kernel.yama.ptrace_scope=0"


def _memlock() -> _Result:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return _ok("no limit")
    told = f"{soft // 1024:,} KiB: RDMA devices can register no more"
    if hard == resource.RLIM_INFINITY:
        return _limited(told, "ulimit -l unlimited")
    who = "*" if os.geteuid() else "root"  # the asterisk does not stand for root
    return _limited(
        told,
        f"echo '{who} - memlock unlimited' > /etc/security/limits.d/memlock.conf  # and log in again",
        "docker run --ulimit memlock=-1 ...",
    )


def _dev_shm() -> _Result:
    use = "named address vectors and torch's workers need it, other memory does not"
    try:
        found = os.statvfs("/dev/shm")
    except OSError as error:
        return _limited(f"{error.strerror}: {use}", "mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm")
    if not os.access("/dev/shm", os.R_OK | os.W_OK | os.X_OK):
        return _limited(f"this user may not write there: {use}", "chmod 1777 /dev/shm")
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    told = f"{size >> 20:,} MiB, {free >> 20:,} free"
    if size < _SMALL_SHM:
        return _limited(
            f"{told}: {use}", "mount -o remount,size=50% /dev/shm", "docker run --shm-size=1g ..."
        )
    if free < _SMALL_SHM // 4:
        return _limited(f"{told}: {use}", "ls -lS /dev/shm  # and remove what nobody uses")
    return _ok(told)


def _huge_pages() -> _Result:
    folder = "/sys/kernel/mm/transparent_hugepage"
    chosen = {}
    for name in ("enabled", "shmem_enabled"):
        setting = re.search(r"\[(\w+)\]", _text(f"{folder}/{name}"))
        chosen[name] = setting[1] if setting else "absent"
    told = f"arrays: {chosen['enabled']}, memory from Domain.alloc: {chosen['shmem_enabled']}"
    for name, off, on in (("enabled", ("never",), "madvise"), ("shmem_enabled", ("never", "deny"), "advise")):
        if chosen[name] in off:
            return _limited(f"{told}: large transfers miss the TLB", f"echo {on} > {folder}/{name}")
    return _ok(told)


def _loopback() -> _Result:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        client = threading.Thread(target=lambda: socket.create_connection(listener.getsockname(), 5).close())
        client.start()
        try:
            listener.accept()[0].close()
        except OSError as error:
            return _limited(f"no connection over 127.0.0.1: {error}", "ip link set lo up")
        finally:
            client.join()
    return _ok("127.0.0.1 connects")


def _links() -> _Result:
    spec = _core.configured_links()
    if not spec:
        return _ok("FI_LNX_PROV_LINKS is not set")
    try:
        found = [" + ".join(info["links"]) for info in _core.find_links(spec)]
    except FabricError as error:
        return _limited(f"FI_LNX_PROV_LINKS: {error}", "unset FI_LNX_PROV_LINKS")
    return _ok(f"FI_LNX_PROV_LINKS={spec}: {', '.join(found)}")


def _rdma_modules() -> _Result:
    marks = {"ib_uverbs": "/sys/class/infiniband_verbs", "rdma_ucm": "/sys/class/misc/rdma_cm"}
    missing = [module for module, mark in marks.items() if not Path(mark).exists()]
    if missing:
        where = "  # on the host" if _contained() else ""
        return _limited(
            f"{' and '.join(missing)} not loaded: RDMA devices cannot be used",
            f"modprobe -a {' '.join(missing)}{where}",
        )
    return _ok(f"{' and '.join(marks)} loaded")


def _rdma() -> _Result:
    folder = Path("/sys/class/infiniband")
    devices = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if not devices:
        cards = (info["domain"] for info in _core.discover() if info["provider"] == "tcp")
        card = next((name for name in cards if name != "lo"), "lo")
        return _limited(
            "no RDMA device; one of software works on any network card",
            f"modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {card}",
        )
    names = ", ".join(devices)
    if not _core.has_verbs_headers:
        return _limited(
            f"{names}, but this build has no verbs provider",
            "apt install libibverbs-dev librdmacm-dev && pip install --force-reinstall --no-binary :all: pyfab-rdma",
        )
    if missing := [name for name in ("libibverbs.so.1", "librdmacm.so.1") if not _opens(name)]:
        return _limited(
            f"{names}, but {' and '.join(missing)} cannot be opened",
            "apt install libibverbs1 librdmacm1 ibverbs-providers",
        )
    files = [Path("/dev/infiniband/rdma_cm"), *Path("/dev/infiniband").glob("uverbs*")]
    if len(files) == 1 or not files[0].exists():
        return _limited(
            f"{names}, but /dev/infiniband has no {'uverbs*' if len(files) == 1 else 'rdma_cm'}",
            "modprobe -a ib_uverbs rdma_ucm",
            "docker run --device=/dev/infiniband ...",
        )
    if refused := [str(path) for path in files if not os.access(path, os.R_OK | os.W_OK)]:
        return _limited(f"{names}, but this user may not open them", f"chmod 666 {' '.join(refused)}")
    unusable = [
        info["why"] for info in _core.discover() if info["provider"] == "verbs" and not info["usable"]
    ]
    if unusable:
        return _limited("; ".join(unusable), "rdma link; ip address  # then ip link set INTERFACE up")
    return _ok(names)


def _rdma_and_fork() -> _Result:
    # To discover opens the library, which is when it prepares for a fork().
    if not any(info["provider"] == "verbs" for info in _core.discover()):
        return _ok("no RDMA device, so a child of fork() takes no memory away from one")
    state = getattr(ctypes.CDLL("libibverbs.so.1"), "ibv_is_fork_initialized", lambda: _FORK_ENABLED)()
    if state == _FORK_UNNEEDED:
        return _ok("the kernel leaves registered memory to this process when it forks")
    if state == _FORK_DISABLED:
        return _limited(
            "after fork(), devices may no longer see what this process writes to registered memory: some library had"
            " registered memory before pyfab was asked for RDMA, and the kernel is older than 5.12",
            "export RDMAV_FORK_SAFE=1",
        )
    if not os.environ.get("RDMAV_HUGEPAGES_SAFE"):
        return _limited(
            "fork() leaves registered memory to this process page by page: memory in huge pages of hugetlbfs cannot be"
            " registered (the kernel is older than 5.12)",
            "export RDMAV_HUGEPAGES_SAFE=1",
        )
    return _ok("registered memory, also in huge pages, is left to this process when it forks")


def _signatures() -> _Result:
    if problem := _core.libcrypto_problem():
        return _limited(
            f"{problem}: over networks no peer can prove who it is (docs/security.md)", "apt install libssl3"
        )
    return _ok("endpoints prove who they are, over networks too")


def _encryption() -> _Result:
    if problem := _core.libssl_problem():
        return _limited(f"{problem}: no domain opens with encrypt=True", "apt install libssl3")
    if _core.kernel_seals():
        return _ok(
            "links over tcp can be encrypted (encrypt=True), by OpenSSL or the kernel (tcp_kernel_tls)"
        )
    return _ok("links over tcp can be encrypted (encrypt=True), by OpenSSL in this process")


def _libfabric() -> _Result:
    where = libfabric.folder()
    if where is None:
        return _limited(
            "this build has no provider for programs of libfabric: its headers were not there",
            "apt install libfabric-dev && pip install --force-reinstall --no-binary :all: pyfab-rdma",
        )
    why, what = libfabric.problem(where)
    if why:
        return _limited(f"the provider is there; {why}", what)
    return _ok(f"libfabric {what} takes pyfab's provider: pyfab info --libfabric")


def _opens(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


_CHECKS: dict[str, Callable[[], _Result]] = {
    "memfd": _memfd,
    "/proc/self/fd": _proc_fd,
    "cross-memory attach": _attach,
    "yama": _yama,
    "locked memory": _memlock,
    "/dev/shm": _dev_shm,
    "huge pages": _huge_pages,
    "loopback": _loopback,
    "signatures": _signatures,
    "encryption": _encryption,
    "rdma modules": _rdma_modules,
    "rdma devices": _rdma,
    "rdma and fork()": _rdma_and_fork,
    "libfabric": _libfabric,
    "links": _links,
}
