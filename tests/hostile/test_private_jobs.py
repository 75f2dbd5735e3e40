"""Jobs, agents and servers with nothing set: no other user of the host gets in, learns or changes anything."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyfab
import pytest
from private import TIMEOUT, free_place, two_ranks, wait_until_listening
from pyfab import _core
from pyfab.core.deadline import Deadline, Looks
from pyfab.meeting.addresses import split_address
from pyfab.meeting.rendezvous import exchange
from pyfab.meeting.sealing import derive
from pyfab.testing import RemoteAgent
from pyfab.testing.agent import Agent
from pyfab.tools.fetch import ArrayClient

pytestmark = pytest.mark.usefixtures("common")
NOBODY = 65534  # a user


BECOME_NOBODY = """
import hashlib, hmac, json, os, socket, struct, sys
import encodings.idna, numpy, pyfab, pyfab.meeting.rendezvous
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.dont_write_bytecode = True
"""


def as_nobody(program: str, *arguments: str) -> str:
    """What a program of another user says, which has loaded pyfab before, in case that user cannot read it."""
    if os.geteuid() != 0:
        pytest.skip("only root can run a program as another user")
    ran = subprocess.run(
        [sys.executable, "-c", BECOME_NOBODY + program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return ran.stdout


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[tuple[str, str]]:
    """A command that serves, as root: where, and all that it says until then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pyfab", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if found := re.match(r"(?:serving|listening) on (\S+)", line):
                yield found[1], said
                return
        raise AssertionError(said)
    finally:
        process.kill()
        process.communicate()


INTRUDER = """
import hashlib, hmac, json, socket, struct, sys
host, port = sys.argv[1].rsplit(":", 1)

def frame(header):
    head = json.dumps(header).encode()
    return struct.pack("<4sII", MAGIC, len(head), 0) + head

def hear(stream):
    global MAGIC
    MAGIC, head, _ = struct.unpack("<4sII", stream.recv(12, socket.MSG_WAITALL))
    return json.loads(stream.recv(head, socket.MSG_WAITALL))

for token in (b"", b"secret"):
    stream = socket.create_connection((host, int(port)), 20)
    theirs, mine = hear(stream)["nonce"], "0" * 64
    to = f"{sys.argv[2]} at {sys.argv[1]}"
    parts = (b"pyfab 2", b"proof client", to.encode(), theirs.encode(), mine.encode())
    message = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    proof = hmac.new(pyfab._core.stretched_key(token), message, hashlib.sha256).hexdigest()
    stream.sendall(frame({"nonce": mine, "to": to, "proof": proof}))
    print(hear(stream))
"""

READER = """
import os, sys
for place, _, names in os.walk(sys.argv[1], onerror=print):
    for name in names:
        path = os.path.join(place, name)
        try:
            print(path, open(path, "rb").read())
        except OSError as error:
            print(error)
"""


@pytest.mark.slow
def test_nobody_else_gets_into_a_server(common: Path) -> None:
    np.save(common / "labels.npy", np.arange(10))
    commands = [["agent"], ["serve", str(common / "labels.npy")], ["bench"]]
    for command in commands:
        with server(*command, "--listen", "127.0.0.1:0") as (address, said):
            assert (
                as_nobody(INTRUDER, address, f"pyfab {command[0]}").splitlines()
                == ["{'refused': 'token'}"] * 2
            )
            (token,) = re.findall(r"[0-9a-f]{64}", said)  # it is told once
            assert token not in as_nobody(READER, str(common))
            if command[0] == "agent":  # its own user needs nothing
                assert RemoteAgent(*split_address(address)).facts()["pyfab"] == pyfab.__version__
            if command[0] == "serve":
                with ArrayClient(address) as client:
                    client.fetch("labels", ..., common / "fetched.npy")
                with ArrayClient(address, token) as client:
                    assert "labels" in client.names()


def test_nobody_else_gets_into_a_meeting_over_tcp() -> None:
    place = free_place()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pyfab.Group, 0, 2, f"tcp://{place}", "tcp", timeout=TIMEOUT)
        wait_until_listening(place)
        assert as_nobody(INTRUDER, place, "meeting").splitlines() == ["{'refused': 'token'}"] * 2
        said = as_nobody(
            "import pyfab, sys; pyfab.Group(1, 2, sys.argv[1], 'tcp', timeout=20)", f"tcp://{place}"
        )
        assert "set PYFAB_TOKEN to the same secret" in said
        second = pool.submit(pyfab.Group, 1, 2, f"tcp://{place}", "tcp", timeout=TIMEOUT)
        groups = [first.result(), second.result()]
        assert [group.rank for group in groups] == [0, 1]
        list(pool.map(pyfab.Group.close, groups))


def test_nobody_else_reads_a_folder(common: Path) -> None:
    folder = common / "meeting"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(exchange, f"file://{folder}", 0, 2, b"a secret of the ranks", TIMEOUT)
        looks = Looks(Deadline(TIMEOUT))
        while not (folder / "bell.0").exists():  # the last of its files before the rank waits
            looks.pause()
        assert stat.S_IMODE((folder / "0-2").stat().st_mode) == 0o600
        folder.chmod(0o755)  # as if the user had made it
        said = as_nobody(READER, str(folder))
        assert said.count("Permission denied") == len(list(folder.iterdir())) == 3
        assert "secret" not in said
        exchange(f"file://{folder}", 1, 2, b"", TIMEOUT)
        first.result()


def plant_a_folder_for_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def plant_anothers_folder(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)


def plant_a_link(folder: Path) -> None:
    (folder.parent / "victim").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "victim")


def plant_anothers_file(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "1-2").write_bytes(b"evil")
    os.chown(folder / "1-2", NOBODY, NOBODY)


def plant_a_link_as_rank(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder.parent / "evil").write_bytes(b"evil")
    (folder / "1-2").symlink_to(folder.parent / "evil")


def plant_a_second_name(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder.parent / "evil").write_bytes(b"evil")
    (folder / "1-2").hardlink_to(folder.parent / "evil")


def plant_a_pipe(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "1-2")


@pytest.mark.parametrize(
    "plant, message",
    [
        (plant_a_folder_for_all, r"can be changed by other users \(mode 0777\); run: chmod go-w"),
        (plant_anothers_folder, "belongs to another user"),
        (plant_a_link, "is a link or no folder"),
        (plant_anothers_file, r"1-2 belongs to another user \(uid 65534\)"),
        (plant_a_link_as_rank, "1-2 is no file but a link"),
        (plant_a_second_name, "1-2 has a second name"),
        (plant_a_pipe, "1-2 is no ordinary file"),
    ],
)
def test_what_others_planted_is_refused(common: Path, plant: Callable[[Path], None], message: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can plant what belongs to another user")
    folder = common / "meeting"
    plant(folder)
    with pytest.raises(pyfab.AccessDeniedError, match=message):
        exchange(f"file://{folder}", 0, 2, b"", 20)
    if plant is plant_a_link:
        assert list((common / "victim").iterdir()) == []


def test_who_takes_the_place_for_tokens_stops_nobody(common: Path) -> None:
    taken = [str(common / f"pyfab-{os.geteuid()}{ending}") for ending in ("", "-1")]
    as_nobody("import os, sys; [os.mkdir(path) for path in sys.argv[1:]]", *taken)
    assert all(Path(path).stat().st_uid == NOBODY for path in taken)
    with Agent("127.0.0.1:0") as agent:
        assert RemoteAgent(*split_address(agent.address)).facts()
        assert len(list((common / f"pyfab-{os.geteuid()}-2").iterdir())) == 1


def test_tokens_of_dead_servers_are_removed(common: Path) -> None:
    with server("agent", "--listen", "127.0.0.1:0"):
        assert len(list((common / f"pyfab-{os.geteuid()}").iterdir())) == 1
    with Agent("127.0.0.1:0"):  # the other one was killed
        assert len(list((common / f"pyfab-{os.geteuid()}").iterdir())) == 1
    assert list((common / f"pyfab-{os.geteuid()}").iterdir()) == []


def test_every_group_has_a_key_of_its_own(common: Path) -> None:
    keys = []
    for _ in range(2):
        with two_ranks(common, "shm+tcp") as groups:
            (key,) = {group.domain._core.auth_key for group in groups}
            keys.append(key)
            control = pyfab.RemoteRegion.from_bytes(groups[0]._control.remote)
            with pyfab.Domain("shm+tcp") as domain, domain.endpoint() as stranger:
                peer = stranger.av.insert(groups[0].endpoint.address)
                with pytest.raises(pyfab.FabricError) as refused:
                    stranger.write(np.zeros(8, np.uint8), peer, control.bytes(0, 8)).result(20)
                assert isinstance(refused.value, pyfab.KeyRejectedError | pyfab.UnreachableError)
    assert [len(key) for key in keys] == [32, 32]
    assert keys[0] != keys[1]


def test_a_group_over_a_domain_without_a_key_has_one_all_the_same(common: Path) -> None:
    with pyfab.Domain("tcp") as mine, pyfab.Domain("tcp") as theirs, ThreadPoolExecutor(2) as pool:
        place = f"file://{common}/meeting"
        made = [pool.submit(pyfab.Group, r, 2, place, d, timeout=20) for r, d in enumerate((mine, theirs))]
        groups = [one.result() for one in made]

        def use(group: pyfab.Group) -> list[int]:
            with group.window(shape=2, dtype=np.int64) as window:
                window[1 - group.rank][0] = group.rank + 1
                window.fence()
                return [int(window.local[0]), *group.allgather(group.rank)]

        assert list(pool.map(use, groups)) == [[2, 0, 1], [1, 0, 1]]
        with mine.endpoint() as stranger:  # even of the same domain
            peer = stranger.av.insert(groups[1].endpoint.address)
            control = pyfab.RemoteRegion.from_bytes(groups[1]._control.remote)
            with pytest.raises(pyfab.KeyRejectedError):
                stranger.write(np.zeros(8, np.uint8), peer, control.bytes(0, 8)).result(20)
        list(pool.map(pyfab.Group.close, groups))


def test_what_members_show_is_no_quick_test_of_guesses(common: Path) -> None:
    """Somebody between two hosts sees what they show, with a proof, and can try words as the key of their domain."""
    place, domain = f"file://{common}/meeting", {"spec": "tcp", "auth_key": b"hunter2"}
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(pyfab.Group, rank, 2, place, domain, timeout=20) for rank in range(2)]
        groups = [one.result() for one in made]
        assert list(pool.map(lambda group: group.allgather(7), groups)) == [[7, 7]] * 2
        control = groups[0]._control
        box = control._boxes[control._barrier % 2]
        length, kind, number = map(int, box[:24].view(np.uint64))
        proof, content = box[24:56].tobytes(), box[56 : 24 + length].tobytes()
        assert kind == 0
        shown = b"shown", control._windows[0], b"%d %d" % (kind, number), content
        assert proof == derive(derive(_core.stretched_key(b"hunter2"), b"proofs of a group"), *shown)
        assert proof != derive(b"hunter2", *shown)
        list(pool.map(pyfab.Group.close, groups))


RANK = """
import pyfab, sys
with eval(sys.argv[1]) as group:
    assert len(group._keys.secret(group.domain)) == 32
    print(group.allgather(group.rank))
"""


@pytest.mark.parametrize("how", ["tcp", "torchrun"])
def test_nothing_has_to_be_set_on_one_node(how: str) -> None:
    """As two shells do it, and as torchrun does."""
    address = free_place()
    ranks = []
    for rank in range(2):
        more = {}
        made = f"pyfab.Group({rank}, 2, 'tcp://{address}', timeout=60)"
        if how == "torchrun":
            made = "pyfab.Group.from_env(timeout=60)"
            host, port = split_address(address)
            more = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": host}
            more["MASTER_PORT"] = str(port - 1)
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, made],
                env=os.environ | more,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [rank.communicate(timeout=TIMEOUT)[0] for rank in ranks]
    assert said == ["[0, 1]\n"] * 2


def test_an_empty_token_is_taken_only_in_a_trusted_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match="an empty token would let in everybody"):
        Agent("127.0.0.1:0", "")
    monkeypatch.setenv("PYFAB_TRUST_NETWORK", "1")
    with Agent("127.0.0.1:0", "") as agent:
        assert RemoteAgent(*split_address(agent.address)).facts()
