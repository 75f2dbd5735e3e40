"""Where the system forbids a way, another is taken, or the error says what is forbidden."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import struct
import subprocess
import sys

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from pyfab.testing import Peer
from test_stopped import TIMEOUT

from capabilities import WITH_LESS, needs_setpriv

NOBODY = 65534

# seccomp, process_vm_readv, process_vm_writev
SYSCALLS = {"x86_64": (317, 310, 311), "aarch64": (277, 270, 271)}.get(platform.machine())
needs_seccomp = pytest.mark.skipif(
    SYSCALLS is None, reason=f"system call numbers of {platform.machine()} are not known here"
)


def forbid_attach(_target):
    """From now on the kernel answers EPERM to this process's cross-memory attach, in all of its threads."""
    seccomp, readv, writev = SYSCALLS
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    allow, eperm = 0x7FFF0000, 0x00050001
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in [
            (load, 0, 0, 0),  # the number of the system call
            (jump_if_equal, 1, 0, readv),
            (jump_if_equal, 0, 1, writev),
            (give, 0, 0, eperm),
            (give, 0, 0, allow),
        ]
    )
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, set_mode_filter, all_threads = 38, 1, 1
    buffer = ctypes.create_string_buffer(program)
    filters = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    )
    assert libc.prctl(set_no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.syscall(seccomp, set_mode_filter, all_threads, filters) == 0, os.strerror(ctypes.get_errno())


def insert(target, address):
    return target.endpoint.av.insert(address)


def put_get_add(target, handle, remote):
    """What it took: the report of the path."""
    data, back = np.arange(1000), np.zeros(1000, np.int64)
    target.endpoint.write(data, handle, remote).result(TIMEOUT)
    target.endpoint.read(back, handle, remote).result(TIMEOUT)
    assert np.array_equal(back, data)
    target.endpoint.atomic(AtomicOp.SUM, data, handle, remote).result(TIMEOUT)
    return target.endpoint.report(handle)


@pytest.mark.slow
@needs_seccomp
@pytest.mark.parametrize("spec", ["shm", "shm+tcp"])
@pytest.mark.parametrize("used_before", [False, True], ids=["from the start", "later"])
def test_without_cross_memory_attach_the_ring_is_used(spec, used_before):
    with Peer(spec) as target, Peer(spec) as initiator:
        exposed = target.expose(np.zeros(1000, np.int64))
        handle = initiator.run(insert, target.address)
        if used_before:
            assert initiator.run(put_get_add, handle, exposed.remote)[1] == "cross-memory attach"
        initiator.run(forbid_attach)
        link, how, _why = initiator.run(put_get_add, handle, exposed.remote)
        assert (link.partition(".")[0], how) == ("shm", "ring")
        assert np.array_equal(exposed.content(), 2 * np.arange(1000))


@pytest.mark.slow
@needs_seccomp
def test_what_was_demanded_but_is_forbidden_is_not_claimed():
    """The error says what is forbidden, or the report which other way was taken."""
    with Peer("shm") as target, Peer("shm", shm_copy="cma") as initiator:
        exposed = target.expose(np.zeros(1000, np.int64))
        handle = initiator.run(insert, target.address)
        initiator.run(forbid_attach)
        try:
            _link, how, _why = initiator.run(put_get_add, handle, exposed.remote)
        except pyfab.FabricError as refusal:
            how, reason = "refused", str(refusal)
        if how == "refused":
            assert "process_vm" in reason or "cross-memory attach" in reason
            assert not exposed.content().any()
        else:
            assert how == "ring"
            assert np.array_equal(exposed.content(), 2 * np.arange(1000))


BETWEEN_TWO = """
import numpy as np, os, pyfab
from pyfab.testing import Peer
with Peer("shm") as peer, pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
    handle = endpoint.av.insert(peer.address)
    for alloc in (True, False):
        exposed = peer.expose(np.zeros(1000), alloc=alloc)
        endpoint.write(np.ones(1000), handle, exposed.remote).result(60)
        assert exposed.content().all()
        print(endpoint.report(handle)[1])
"""

TO_ANOTHER_USER = """
import numpy as np, pyfab, sys
address, remote = (bytes.fromhex(text) for text in sys.argv[1:3])
remote = pyfab.RemoteRegion.from_bytes(remote)
for spec in ("shm+tcp", "shm"):
    with pyfab.Domain(spec) as domain, domain.endpoint() as endpoint:
        handle = endpoint.av.insert(address)
        try:
            endpoint.write(np.ones(100), handle, remote).result(60)
        except pyfab.UnreachableError as error:
            print(error)
        else:
            print(endpoint.report(handle)[0].partition(".")[0])
"""


def as_nobody(script: str, *arguments: str) -> list[str]:
    """Runs a script under another user id, without any privilege; gives its lines."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    probe = [sys.executable, "-c", "import numpy, pyfab, psutil"]
    environment = {**os.environ, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
    options = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/", "env": environment}
    try:
        subprocess.run(probe, check=True, capture_output=True, timeout=TIMEOUT, **options)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"another user may not read {sys.executable} or its packages")
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        **options,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.splitlines()


def test_without_privileges():
    """A plain user's processes use all that the kernel allows between them."""
    first, second = as_nobody(BETWEEN_TWO)
    assert first == "mapped"
    assert second in ("cross-memory attach", "ring")  # the ring where Yama restricts ptrace to descendants


@pytest.mark.slow
def test_another_user_is_reached_over_the_network_or_told_why_not():
    with Peer("shm+tcp") as target:
        exposed = target.expose(np.zeros(100))
        over, why = as_nobody(TO_ANOTHER_USER, target.address.hex(), exposed.remote.to_bytes().hex())
        assert over == "tcp"
        assert "user" in why or "permission" in why.lower()
        assert exposed.content().all()


WITHOUT_DEV_SHM = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x00020000) != 0:  # a mount name space of our own
    sys.exit(77)
libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # private
if libc.mount(b"none", b"/dev/shm", b"tmpfs", 1, None) != 0:  # read-only
    sys.exit(77)
try:
    open("/dev/shm/probe", "w")
except OSError:
    exec(sys.argv[1])
else:
    sys.exit(77)
"""


@pytest.mark.slow
def test_without_dev_shm():
    """Shared memory is not kept in files: a full, read-only or forbidden /dev/shm does not matter."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_DEV_SHM, BETWEEN_TWO],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if run.returncode == 77:
        pytest.skip("this process may not mount")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split("\n")[0] == "mapped"


def limit_descriptors(_target, extra):
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + extra, used + extra))


def open_until_it_fails(target):
    opened = []
    try:
        while True:
            opened.append(target.domain.endpoint())
    except pyfab.FabricError as error:
        return str(error)
    finally:
        for endpoint in opened:
            endpoint.close()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_without_descriptors(spec):
    """Running out of them is an error with a name; what was open before goes on."""
    with Peer(spec) as target, pyfab.Domain(spec) as domain, domain.endpoint() as endpoint:
        exposed = target.expose(np.zeros(10))
        handle = endpoint.av.insert(target.address)
        endpoint.write(np.ones(10), handle, exposed.remote).result(TIMEOUT)
        target.run(limit_descriptors, 12)
        assert "open files" in target.run(open_until_it_fails)
        endpoint.write(np.full(10, 2.0), handle, exposed.remote).result(TIMEOUT)
        assert (exposed.content() == 2).all()


WITH_FEW_DESCRIPTORS = """
import errno, os, resource, sys
import numpy as np, pyfab
spec, address, remote = sys.argv[1], bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
remote = pyfab.RemoteRegion.from_bytes(remote)

def put():
    with pyfab.Domain(spec, peer_deadline=20) as domain, domain.endpoint() as endpoint:
        handle = endpoint.av.insert(address)
        endpoint.write(np.ones(8), handle, remote).result(60)
        # What needs the peer's help, so that over shared memory a channel is opened.
        endpoint.atomic(pyfab.AtomicOp.SUM, np.ones(1), handle, remote[:1]).result(60)
        return endpoint.report(handle)[0].partition(".")[0]

def find_out(left):
    "What this process says while so many descriptors are left, and once there are more again."
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, hard))
    try:
        said = put()
    except OSError as error:
        said = f"{errno.errorcode.get(error.errno, error.errno)}: {error}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(left, said, "then", put(), flush=True)

for left in range(40):
    child = os.fork()  # each finds things out for the first time
    if child == 0:
        find_out(left)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"with {left} descriptors: status {status}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_a_lack_of_descriptors_is_called_so_and_passes(spec):
    """Wherever they run out; nothing that could not be looked at then is remembered."""
    with Peer(spec) as target:
        remote = target.expose(np.zeros(8)).remote.to_bytes().hex()
        run = subprocess.run(
            [sys.executable, "-c", WITH_FEW_DESCRIPTORS, spec, target.address.hex(), remote],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    for line in run.stderr.splitlines():  # warnings about shared memory that could not be had
        assert "peer 0 is reached over tcp.0, and not over shm.0" in line and "open files" in line
    found = [line.split(maxsplit=1)[1].rsplit(" then ", 1) for line in run.stdout.splitlines()]
    usual = spec.partition("+")[0]
    assert {then for _said, then in found} == {usual}
    said = [said for said, _then in found]
    assert said[-1] == usual
    for text in said:
        assert text in ("shm", "tcp") or (text.startswith("EMFILE") and "open files" in text)


def data_that_came(target):
    target.endpoint.cq.wait(TIMEOUT)
    return [entry.data for entry in target.endpoint.cq.read()]


@pytest.mark.slow
@needs_setpriv
@pytest.mark.parametrize("target_has", ["less", "more"])
def test_peers_of_other_capabilities_are_reached_over_the_network(target_has):
    """Over shared memory each side has to open what the other one has; where one may not, that is no link."""
    less, all_of_them = {"launcher": WITH_LESS}, {}
    of_target, of_initiator = (less, all_of_them) if target_has == "less" else (all_of_them, less)
    with Peer("shm+tcp", **of_target) as target, Peer("shm+tcp", **of_initiator) as initiator:
        exposed = target.expose(np.zeros(1000, np.int64))
        handle = initiator.run(insert, target.address)
        link, _how, why = initiator.run(put_get_add, handle, exposed.remote)
        assert link.partition(".")[0] == "tcp"
        assert "capabilities" in why or "not permitted" in why or "Permission denied" in why
        initiator.run(put_with_data, handle, exposed.remote, 77)
        assert target.run(data_that_came) == [77]


@pytest.mark.slow
@needs_setpriv
def test_a_peer_that_could_not_answer_is_refused_with_the_reason():
    with Peer("shm", launcher=WITH_LESS) as target, Peer("shm") as initiator:
        exposed = target.expose(np.zeros(1000, np.int64))
        handle = initiator.run(insert, target.address)
        with pytest.raises(pyfab.UnreachableError, match="capabilities"):
            initiator.run(put_with_data, handle, exposed.remote, 77)


def put_with_data(target, handle, remote, data):
    target.endpoint.write(np.ones(1000, np.int64), handle, remote, data=data).result(TIMEOUT)


WITHOUT_PROC = """
import ctypes, os, sys
import numpy as np, pyfab
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x00020000) != 0:  # a mount name space of our own
    sys.exit(77)
libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # private
if libc.mount(b"none", b"/proc", b"tmpfs", 0, None) != 0:
    sys.exit(77)
with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint, domain.endpoint() as other:
    array = np.zeros(8)
    with domain.register(array, pyfab.Access.REMOTE) as region:
        handle = endpoint.av.insert(other.address)
        endpoint.write(np.ones(8), handle, region.remote).result(60)
        assert array.all()
    print(*endpoint.report(handle))
"""


@pytest.mark.slow
def test_without_proc_the_network_is_used():
    """Shared memory needs it; the report says that this is why."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_PROC], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if run.returncode == 77:
        pytest.skip("this process may not mount")
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(
        r"pyfab: peer 0 is reached over tcp\.0, and not over shm\.0 \(.*/proc.*\)\n", run.stderr
    )
    assert run.stdout.startswith("tcp")
    assert "/proc" in run.stdout
