"""Two versions meet: over each way they either understand each other, or say which versions they have, and nothing is lost.

The other version is this one with other numbers (other_version.py). With PYFAB_OTHER_PYTHON, an interpreter that has another
version of pyfab, the other side runs there: scripts/versions-tests makes one of the last release. Then what is not promised for
two unknown versions is not asked: each meeting works, or is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyfab
import pytest
from other_version import LAYOUT, with_parts, write
from pyfab import _core, versions

OTHER_PYTHON = os.environ.get("PYFAB_OTHER_PYTHON", "")
TIMEOUT = 60

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def other() -> Iterator[Start]:
    """Starts ``other(numbers, program, *arguments, **environment)``, a program of the other version."""
    started: list[subprocess.Popen[str]] = []

    def run(numbers: str, program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        here = str(Path(__file__).with_name("other_version.py"))
        command = (
            [OTHER_PYTHON, "-c", f"import pyfab\n{program}"]
            if OTHER_PYTHON and numbers != "this"
            else [sys.executable, here, numbers.replace("this", "nothing"), program]
        )
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYFAB_")}
        if OTHER_PYTHON and numbers != "this":
            clean.pop("PYTHONPATH", None)
        process = subprocess.Popen(
            [*command, *arguments],
            env=clean | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the other side ended with {process.wait(TIMEOUT)}"
    return line.split()


def both(form: str) -> str:
    """A pattern of errors that name the version here and the next."""
    ours = _core.versions[form]
    return rf"{ours + 1}\b.*\b{ours}\b|{ours}\b.*\b{ours + 1}\b"


HOST = """
import sys
import numpy as np
memory = np.zeros(8)
letter = np.zeros(8, np.uint8)
with pyfab.Domain(sys.argv[1]) as domain, domain.endpoint() as endpoint:
    received = endpoint.recv(letter)
    with domain.register(memory, pyfab.Access.REMOTE) as region:
        print(endpoint.address.hex(), region.remote.to_bytes().hex(), flush=True)
        sys.stdin.readline()
        print(int(memory.sum()), received.done() and bytes(letter).decode(), flush=True)
"""


def meet(links: str, host: subprocess.Popen[str]) -> str:
    """Puts, updates, sends and reads back; the link that did it."""
    address, remote = map(bytes.fromhex, told(host))
    with pyfab.Domain(links, peer_deadline=10) as domain, domain.endpoint() as endpoint:
        peer = endpoint.av.insert(address)
        there = pyfab.RemoteRegion.from_bytes(remote)
        endpoint.write(np.ones(8), peer, there).result(TIMEOUT)
        endpoint.send(np.frombuffer(b"a letter", np.uint8), peer).result(TIMEOUT)
        back = np.zeros(8)
        endpoint.read(back, peer, there).result(TIMEOUT)
        assert back.sum() == 8
        link = endpoint.report(peer)[0].partition(".")[0]
    assert host.stdin is not None
    host.stdin.write("\n")
    host.stdin.flush()
    assert told(host) == ["8", "a", "letter"]
    return str(link)


needs_known_numbers = pytest.mark.skipif(
    bool(OTHER_PYTHON), reason="says what happens between two versions whose numbers are known"
)


def test_over_tcp_versions_with_the_same_wire_understand_each_other(other: Start) -> None:
    host = other("memory", HOST, "tcp")
    if not OTHER_PYTHON:
        assert meet("tcp", host) == "tcp"
        return
    with contextlib.suppress(pyfab.FabricError):
        meet("tcp", host)


@needs_known_numbers
def test_over_shared_memory_both_layouts_are_named(other: Start) -> None:
    with pytest.raises(pyfab.UnreachableError, match=both("shared memory")):
        meet("shm", other("memory", HOST, "shm"))


def test_tcp_takes_over_where_shared_memory_differs(other: Start) -> None:
    host = other("memory", HOST, "shm+tcp")
    if not OTHER_PYTHON:
        assert meet("shm+tcp", host) == "tcp"
        return
    with contextlib.suppress(pyfab.FabricError):
        meet("shm+tcp", host)


@pytest.mark.slow
@needs_known_numbers
@pytest.mark.parametrize("links", ["shm", "shm+tcp"])
def test_what_waits_in_a_channel_of_another_layout_is_not_lost_in_silence(other: Start, links: str) -> None:
    """The host is stopped until the number in the channel is another one."""
    host = other("this", HOST, links)
    address, remote = map(bytes.fromhex, told(host))
    with pyfab.Domain(links) as domain, domain.endpoint() as endpoint:
        peer = endpoint.av.insert(address)
        there = pyfab.RemoteRegion.from_bytes(remote)
        host.send_signal(signal.SIGSTOP)
        os.waitpid(host.pid, os.WUNTRACED)  # until it has stopped
        sent = endpoint.send(np.frombuffer(b"the lost", np.uint8), peer)
        put = endpoint.write(np.full(8, 5.0), peer, there, data=7)
        while not write("memfd:pyfab-channel", LAYOUT, "shared memory"):
            assert not sent.done()
        host.send_signal(signal.SIGCONT)
        for lost in (sent, put):
            assert isinstance(lost.exception(TIMEOUT), pyfab.UnreachableError)
        if links == "shm":
            with pytest.raises(pyfab.UnreachableError, match=both("shared memory")):
                endpoint.send(np.zeros(8, np.uint8), peer)
            return
        endpoint.write(np.ones(8), peer, there).result(TIMEOUT)
        endpoint.send(np.frombuffer(b"a letter", np.uint8), peer).result(TIMEOUT)
        assert endpoint.report(peer)[0].startswith("tcp")
    assert host.stdin is not None
    host.stdin.write("\n")
    host.stdin.flush()
    assert told(host) == ["8", "a", "letter"]


CALLER = """
import sys
import numpy as np
with pyfab.Domain(sys.argv[1]) as domain, domain.endpoint() as endpoint:
    peer = endpoint.av.insert(bytes.fromhex(sys.argv[2]))
    there = pyfab.RemoteRegion.from_bytes(bytes.fromhex(sys.argv[3]))
    endpoint.write(np.ones(8), peer, there).result(30)
    endpoint.send(np.frombuffer(b"a letter", np.uint8), peer).result(30)
    print(endpoint.report(peer)[0].partition(".")[0], flush=True)
"""


@pytest.mark.slow
@needs_known_numbers
def test_the_other_version_calls_over_tcp_too(other: Start) -> None:
    host = other("this", HOST, "shm+tcp")
    caller = other("memory", CALLER, "shm+tcp", *told(host))
    assert told(caller) == ["tcp"]
    assert caller.wait(TIMEOUT) == 0
    assert host.stdin is not None
    host.stdin.write("\n")
    host.stdin.flush()
    assert told(host) == ["8", "a", "letter"]


@needs_known_numbers
def test_parts_of_another_version_are_kept_and_others_used() -> None:
    """Each link of an address in turn, and a kind of link that nobody knows."""
    with (
        pyfab.Domain("shm+tcp") as host,
        host.endpoint() as target,
        host.register(np.zeros(8), pyfab.Access.REMOTE) as region,
        pyfab.Domain("shm+tcp") as domain,
        domain.endpoint() as endpoint,
    ):
        newer_memory = with_parts(target.address, "shared memory", "shm")
        newer_tcp = with_parts(target.address, "address: network part", "tcp")
        stranger = _core.encode_name([*_core.decode_name(target.address), ("optics.0", 0, b"?" * 40)])
        for address, link in ((newer_memory, "tcp"), (newer_tcp, "shm"), (stranger, "shm")):
            peer = endpoint.av.insert(address)
            assert endpoint.av.lookup(peer) == address
            endpoint.write(np.ones(8), peer, region.remote).result(TIMEOUT)
            assert endpoint.report(peer)[0].partition(".")[0] == link
        neither = with_parts(newer_memory, "address: network part", "tcp")
        with pytest.raises(pyfab.UnreachableError, match=r"shm.0 in version .* tcp.0 in version"):
            endpoint.av.insert(neither)
        whole = bytearray(target.address)
        whole[4] += 1  # the version of the list follows the magic
        with pytest.raises(pyfab.InvalidArgumentError, match=both("address")):
            endpoint.av.insert(bytes(whole))


@needs_known_numbers
@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_an_address_of_another_version_alone_is_named(link: str) -> None:
    form = "shared memory" if link == "shm" else "address: network part"
    refused = pytest.raises(pyfab.UnreachableError, match=f"{link}.*({both(form)})")
    with pyfab.Domain(link) as domain, domain.endpoint() as endpoint, refused:
        endpoint.av.insert(with_parts(endpoint.address, form, link))


@needs_known_numbers
def test_a_handshake_of_another_version_is_an_error_and_not_a_wait() -> None:
    """Both ways: who calls such a peer, and who is called by one."""
    with (
        pyfab.Domain("tcp", peer_deadline=20) as domain,
        domain.endpoint() as endpoint,
        domain.register(np.zeros(8), pyfab.Access.REMOTE) as region,
    ):
        ((link, context, part),) = _core.decode_name(endpoint.address)
        at = part.index(b"\x7f\0\0\1")  # the host, with the port in front
        port = int.from_bytes(part[at - 2 : at], "little")
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as caller:
            caller.settimeout(TIMEOUT)
            caller.sendall(b"pft1" + (versions.formats()["wire"] + 1).to_bytes(2, "little") + bytes(6 + 100))
            with contextlib.suppress(ConnectionError):
                while caller.recv(4096):
                    pass

        with socket.create_server(("127.0.0.1", 0)) as server:
            elsewhere = server.getsockname()[1].to_bytes(2, "little")
            another = bytes([part[10] ^ 1])  # endpoint: a byte of its id is enough
            moved = part[:10] + another + part[11 : at - 2] + elsewhere + part[at:]
            answer = b"pft1" + (versions.formats()["wire"] + 1).to_bytes(2, "little") + bytes(6)

            def serve() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        with server.accept()[0] as called:
                            called.recv(4096)
                            called.sendall(answer)

            threading.Thread(target=serve, daemon=True).start()
            peer = endpoint.av.insert(_core.encode_name([(link, context, moved)]))
            failed = endpoint.write(np.ones(8), peer, region.remote).exception(TIMEOUT)
            assert isinstance(failed, pyfab.FabricError)
            server.shutdown(socket.SHUT_RDWR)
        me = endpoint.av.insert(endpoint.address)  # others are served as before
        endpoint.write(np.ones(8), me, region.remote).result(TIMEOUT)


VECTOR = """
import sys
with pyfab.Domain("tcp") as domain, domain.address_vector(name=sys.argv[1]) as vector:
    with domain.endpoint() as endpoint:
        vector.insert(endpoint.address)
        print("open", flush=True)
        sys.stdin.readline()
        print(vector.lookup(0) == endpoint.address, flush=True)
"""


def test_a_named_vector_of_another_version_is_refused_and_left_alone(other: Start) -> None:
    name = f"versions-{os.getpid()}"
    keeper = other("vectors", VECTOR, name)
    assert told(keeper) == ["open"]
    with pyfab.Domain("tcp") as domain:
        if not OTHER_PYTHON:
            for read_only in (False, True):
                with pytest.raises(pyfab.InvalidArgumentError, match=both("named address vector")):
                    domain.address_vector(name=name, read_only=read_only)
        else:
            with contextlib.suppress(pyfab.InvalidArgumentError), domain.address_vector(name=name) as vector:
                assert len(vector) == 1
    assert keeper.stdin is not None
    keeper.stdin.write("\n")
    keeper.stdin.flush()
    assert told(keeper) == ["True"]


RANK = """
import json, sys
import numpy as np
try:
    with pyfab.Group.from_env(domain=sys.argv[1], timeout=30) as group:
        gathered = group.allgather(group.rank)
        with group.window(shape=4, dtype=np.int64) as window:
            window[(group.rank + 1) % group.size][:] = group.rank + 1
            group.barrier()
            got = int(window.local[0])
        print(json.dumps({"gathered": gathered, "got": got}), flush=True)
except pyfab.FabricError as error:
    print(json.dumps({"error": str(error)}), flush=True)
"""


def group_of_both(other: Start, folder: Path, links: str) -> list[dict[str, object]]:
    """What the ranks of a group say, of which the second is of the other version."""
    ranks = [
        other(
            "memory" if rank == 1 else "this",
            RANK,
            links,
            PYFAB_RANK=str(rank),
            PYFAB_SIZE="3",
            PYFAB_RENDEZVOUS=f"file://{folder}/meeting",
        )
        for rank in range(3)
    ]
    outcomes = []
    for rank in ranks:
        said, _ = rank.communicate(timeout=TIMEOUT)
        outcomes.append(json.loads(said.splitlines()[-1]))
    return outcomes


@pytest.mark.slow
def test_a_group_of_both_works_over_tcp(other: Start, tmp_path: Path) -> None:
    outcomes = group_of_both(other, tmp_path, "shm+tcp")
    right = [{"gathered": [0, 1, 2], "got": 1 + (rank - 1) % 3} for rank in range(3)]
    assert outcomes == right or (OTHER_PYTHON and all("error" in outcome for outcome in outcomes))


@pytest.mark.slow
@needs_known_numbers
def test_a_group_of_both_over_shared_memory_says_why_not(other: Start, tmp_path: Path) -> None:
    outcomes = group_of_both(other, tmp_path, "shm")
    assert all("error" in outcome for outcome in outcomes)
    assert any(re.search(both("shared memory"), str(outcome["error"])) for outcome in outcomes)
