"""A process stands what others of its user write into shared memory, and takes nothing of other users for its own."""

from __future__ import annotations

import ast
import os
import random
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyfab
import pytest
from names import address_of, parts_of
from pyfab import _core

HERE = Path(__file__).parent
PATIENCE = 120
ROUNDS = int(os.environ.get("PYFAB_SCRIBBLES", "50000"))
"""Words that are written over an owner's; more by hand."""
NOBODY = 65534

Program = subprocess.Popen[str]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def start(*command: str, **options: object) -> Program:
    return subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def run() -> Iterator[object]:
    """Starts programs, and ends those that still run."""
    programs: list[Program] = []

    def begin(*command: str, **options: object) -> Program:
        programs.append(start(*command, **options))
        return programs[-1]

    yield begin
    for program in programs:
        program.kill()
        program.communicate()


def path_of(domain: pyfab.Domain, name: str) -> Path:
    return Path(_core.named_vector_path(f"{domain.info.provider} {domain.info.domain}", name))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_random_words_over_all_that_is_shared_neither_end_nor_stop_the_owner(run):
    seed = int(os.environ.get("PYFAB_SEED", random.SystemRandom().getrandbits(32)))
    print(f"PYFAB_SEED={seed}")
    name = f"scribbled {uuid.uuid4()}"
    with pyfab.Domain("shm") as domain:
        vector = path_of(domain, name)
    owner = run(str(HERE / "owner.py"), name)
    assert owner.stdout.readline() == "ready\n", owner.communicate()[1]
    scribbler = run(str(HERE / "scribbler.py"), str(owner.pid), str(seed), str(ROUNDS), str(vector))
    said, errors = scribbler.communicate(timeout=PATIENCE)
    told, trouble = owner.communicate("\n", timeout=PATIENCE)
    assert owner.returncode == 0, f"PYFAB_SEED={seed}: {owner.returncode}\n{trouble}"
    print(told)
    done = ast.literal_eval(told)
    assert done.get("rounds", 0) >= 1 and done.get("step", 0) >= 1, (
        "what stands all that does its work as well"
    )
    assert scribbler.returncode == 0, errors
    written, kept = (int(text) for text in said.split())
    assert written == ROUNDS
    assert kept >= 1, "the tables of segments are to be written by their owner alone"


# --- foreign bytes

DEAD = """
import pyfab
with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint:
    print(endpoint.address.hex())
"""

FOREIGN = [b"tcp.\x85", b"\xff\xfe", b"\x00", b"a\n\x1b[31m", "ﷺ".encode()[:2], b"\xed\xa0\x80"]


def printable(text: bytes) -> str:
    """As people are to read it."""
    return "".join(
        c if c.isprintable() else f"\\x{ord(c):02x}" for c in text.decode(errors="backslashreplace")
    )


@pytest.mark.parametrize("link", FOREIGN)
def test_an_address_of_foreign_bytes_makes_errors_of_printable_text(link, run):
    program = run("-c", DEAD)
    address, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, errors
    (shm, *_) = (part for part in parts_of(bytes.fromhex(address)) if part[0].startswith(b"shm"))
    with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint:
        peer = endpoint.av.insert(address_of([shm, (link, 0, b"\x80" * 40)]))
        text = [str(endpoint.reachable(peer))] if hasattr(endpoint, "reachable") else []
        with domain.register(np.zeros(8), pyfab.Access.REMOTE) as region:
            for post in (
                lambda: endpoint.write(np.zeros(8), peer, region.remote),
                lambda: endpoint.send(b"x", peer),
            ):
                with pytest.raises(pyfab.FabricError) as caught:
                    post().result(timeout=PATIENCE)
                text.append(str(caught.value))
        with pytest.raises(pyfab.FabricError) as caught:
            endpoint.av.insert(address_of([(link, 0, b"\x80" * 40)]))
        text.append(str(caught.value))
        assert printable(link) in str(caught.value)
        text += [repr(endpoint), repr(domain.stats()), *_core.address_links(endpoint.av.lookup(peer))]
        for line in text:
            assert line.isprintable()
            line.encode()  # no lone surrogates


# --- other users

STRANGER = """
import ctypes, os, sys
os.setgroups([])
os.setgid({nobody})
os.setuid({nobody})
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: let root, and nobody else, look
fd = os.memfd_create("pyfab-segment", os.MFD_ALLOW_SEALING)
os.ftruncate(fd, 1 << 30)
start = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
print(os.getpid(), start, fd, flush=True)
sys.stdin.readline()
os.ftruncate(fd, 0)
print("cut", flush=True)
sys.stdin.readline()
"""

UNSEALED = (
    STRANGER.replace("os.setgroups([])", "")
    .replace("os.setgid({nobody})", "")
    .replace("os.setuid({nobody})", "")
)


def address_in(endpoint: pyfab.Endpoint, pid: int, start: int, fd: int) -> bytes:
    """The address of an endpoint, as it were, whose segment process `pid` shows."""
    ((link, context, data),) = (part for part in parts_of(endpoint.address) if part[0].startswith(b"shm"))
    process = pid.to_bytes(4, "little") + start.to_bytes(8, "little") + fd.to_bytes(4, "little")
    return address_of([(link, context, data[:18] + process + data[34:])])


@pytest.mark.parametrize(
    "program, why",
    [
        pytest.param(STRANGER, f"belongs to user {NOBODY}", marks=as_root, id="another user"),
        pytest.param(UNSEALED, "is not sealed", id="unsealed"),
    ],
)
def test_a_segment_of_another_user_or_without_seals_is_not_mapped(program, why, run):
    other = run("-c", program.format(nobody=NOBODY))
    pid, start_time, fd = (int(text) for text in other.stdout.readline().split())
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        peer = endpoint.av.insert(address_in(endpoint, pid, start_time, fd))
        with domain.register(np.zeros(8), pyfab.Access.REMOTE) as region:
            for _ in range(2):
                with pytest.raises(pyfab.FabricError, match=why):
                    endpoint.write(np.zeros(8), peer, region.remote).result(timeout=PATIENCE)
                assert f"/proc/{pid}" not in Path("/proc/self/maps").read_text()
                if not other.poll() and _ == 0:
                    other.stdin.write("\n")
                    other.stdin.flush()
                    assert other.stdout.readline() == "cut\n"


def plant(path: Path, what: str, victim: Path) -> None:
    if "link" in what:
        path.symlink_to(victim)
    elif what == "second name":
        os.link(victim, path)
    elif "pipe" in what:
        os.mkfifo(path, 0o600)
    else:
        path.touch()
        path.chmod(0o666 if what == "open to others" else 0o600)
    if "another user's" in what:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


FOREIGN_FILES = [pytest.param(f"another user's {what}", marks=as_root) for what in ("file", "pipe", "link")]


@pytest.mark.parametrize("what", ["link", "second name", "open to others", "pipe", *FOREIGN_FILES])
def test_a_planted_file_is_not_taken_for_a_named_address_vector(what):
    name = f"planted {uuid.uuid4()}"
    victim = Path(f"/dev/shm/victim-{uuid.uuid4()}")
    victim.write_text("precious")
    victim.chmod(0o600)
    with pyfab.Domain("shm") as domain:
        path = path_of(domain, name)
        try:
            plant(path, what, victim)
            user = path.lstat().st_uid
            # What this user left behind itself, and nobody has open, is cleared away by who makes a vector.
            stays = "link" in what or "another user's" in what
            for read_only in (True, False) if stays else (True,):
                with pytest.raises(pyfab.FabricError) as caught:
                    domain.address_vector(name=name, read_only=read_only)
                for part in (str(path), f"belongs to user {user}", "remove it"):
                    assert part in str(caught.value)
                assert path.lstat().st_uid == user
            if stays:
                path.unlink()
            with domain.address_vector(name=name) as vector:
                assert path.lstat().st_mode == stat.S_IFREG | 0o600
                assert len(vector) == 0
            assert victim.read_text() == "precious"
        finally:
            path.unlink(missing_ok=True)
            victim.unlink()
