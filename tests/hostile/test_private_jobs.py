"""Jobs, agents and servers with nothing set: no other user of the host gets in, learns or changes anything."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.core.deadline import Deadline, Looks
from pyfab.meeting.frames import split_address
from pyfab.meeting.rendezvous import exchange
from pyfab.testing import Peer, RemoteAgent
from pyfab.testing.agent import Agent
from pyfab.tools.fetch import ArrayClient
from relay import Relay

NOBODY = 65534  # a user
TIMEOUT = 60


@pytest.fixture(autouse=True)
def common(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A host's folder for all, and nothing set."""
    tmp_path_factory.getbasetemp()  # stays where it is
    for name in ("PYFAB_TOKEN", "PYFAB_TRUST_NETWORK", "PYFAB_RENDEZVOUS", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def free_place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


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
    parts = (b"pyfab 2", b"proof", b"client", theirs.encode(), mine.encode())
    message = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    if MAGIC == b"pyf1":
        message = f"client {theirs} {mine}".encode()
    stream.sendall(frame({"nonce": mine, "proof": hmac.new(token, message, hashlib.sha256).hexdigest()}))
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


def test_nobody_else_gets_into_a_server(common: Path) -> None:
    np.save(common / "labels.npy", np.arange(10))
    commands = [["agent"], ["serve", str(common / "labels.npy")], ["bench"]]
    for command in commands:
        with server(*command, "--listen", "127.0.0.1:0") as (address, said):
            assert as_nobody(INTRUDER, address).splitlines() == ["{'refused': 'token'}"] * 2
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
        assert as_nobody(INTRUDER, place).splitlines() == ["{'refused': 'token'}"] * 2
        said = as_nobody(
            "import pyfab, sys; pyfab.Group(1, 2, sys.argv[1], 'tcp', timeout=20)", f"tcp://{place}"
        )
        assert "set PYFAB_TOKEN to the same secret" in said
        second = pool.submit(pyfab.Group, 1, 2, f"tcp://{place}", "tcp", timeout=TIMEOUT)
        groups = [first.result(), second.result()]
        assert [group.rank for group in groups] == [0, 1]
        list(pool.map(pyfab.Group.close, groups))


def wait_until_listening(place: str) -> None:
    looks = Looks(Deadline(TIMEOUT))
    while True:
        try:
            socket.create_connection(split_address(place), 1).close()
            return
        except ConnectionRefusedError:
            looks.pause()


def test_nobody_else_reads_a_folder(common: Path) -> None:
    folder = common / "meeting"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(exchange, f"file://{folder}", 0, 2, b"a secret of the ranks", TIMEOUT)
        looks = Looks(Deadline(TIMEOUT))
        while not (folder / "0-2").exists():
            looks.pause()
        assert stat.S_IMODE((folder / "0-2").stat().st_mode) == 0o600
        folder.chmod(0o755)  # as if the user had made it
        said = as_nobody(READER, str(folder))
        assert said.count("Permission denied") == 2
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


def test_a_place_for_tokens_that_another_user_took_is_told(
    common: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_nobody("import os, sys; os.mkdir(sys.argv[1])", str(common / "pyfab-0"))
    with pytest.raises(pyfab.AccessDeniedError, match=r"no place for a token.*belongs to another user"):
        Agent("127.0.0.1:0")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(common))
    with Agent("127.0.0.1:0") as agent:
        assert RemoteAgent(*split_address(agent.address)).facts()


def test_tokens_of_dead_servers_are_removed(common: Path) -> None:
    with server("agent", "--listen", "127.0.0.1:0"):
        assert len(list((common / "pyfab-0").iterdir())) == 1
    with Agent("127.0.0.1:0"):  # the other one was killed
        assert len(list((common / "pyfab-0").iterdir())) == 1
    assert list((common / "pyfab-0").iterdir()) == []


class Mark:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("of_caller", [True, False])
def test_who_flips_bits_between_two_ranks_is_found_out(
    caplog: pytest.LogCaptureFixture, of_caller: bool
) -> None:
    place = free_place()
    parts: Counter[tuple[int, bool]] = Counter()

    def flip(number: int, from_caller: bool, data: bytes) -> bytes:
        parts[number, from_caller] += 1
        # The caller's second frame is its value; the third of the other side is the answer.
        changed = number == 1 and from_caller == of_caller and parts[number, from_caller] == 3 - of_caller
        return data[:-1] + bytes([data[-1] ^ 1]) if changed else data

    with ThreadPoolExecutor(2) as pool, Relay(split_address(place), flip) as relay:
        first = pool.submit(exchange, f"tcp://{place}", 0, 2, b"0" * 50, TIMEOUT)
        wait_until_listening(place)
        socket.create_connection(("127.0.0.1", relay.port)).close()  # number 0
        second = pool.submit(exchange, f"tcp://127.0.0.1:{relay.port}", 1, 2, b"1" * 50, 2)
        if of_caller:  # rank 0 takes no word of it, and rank 1 comes again
            assert first.result(TIMEOUT) == second.result(TIMEOUT) == [b"0" * 50, b"1" * 50]
            assert "protocol broken: what came was changed on its way" in caplog.text
        else:
            with pytest.raises(pyfab.OperationTimeout, match="rank 0 of 2 did not answer"):
                second.result(TIMEOUT)


def test_who_replaces_a_pickle_on_its_way_to_an_agent_runs_nothing(tmp_path: Path) -> None:
    evil = pickle.dumps(Mark(tmp_path / "mark"))

    def replace(_: int, from_caller: bool, data: bytes) -> bytes:
        if not from_caller or data.startswith(b"pyf"):  # what is no frame is a message of the peer's stream
            return data
        return len(evil).to_bytes(4, "big") + evil

    with Agent("127.0.0.1:0") as agent, Relay(split_address(agent.address), replace) as relay:
        with pytest.raises((OSError, RuntimeError, EOFError)):
            Peer("tcp", where=RemoteAgent("127.0.0.1", relay.port))
        assert RemoteAgent(*split_address(agent.address)).facts()
    assert not (tmp_path / "mark").exists()


@contextlib.contextmanager
def two_ranks(common: Path, links: str) -> Iterator[list[pyfab.Group]]:
    with ThreadPoolExecutor(2) as pool:
        place = f"file://{common}/meeting"
        made = [pool.submit(pyfab.Group, rank, 2, place, links, timeout=20) for rank in range(2)]
        groups = [one.result() for one in made]
        try:
            yield groups
        finally:
            for group in groups:
                group.__exit__(ConnectionError, None, None)


@pytest.mark.parametrize("size", [0, 100_000])
def test_a_pickle_that_was_changed_on_its_way_to_a_member_is_not_loaded(
    common: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """What a rank shows is changed where it lies, as somebody between the hosts changes it on its way."""
    evil = b"p\x01" + pickle.dumps((Mark(tmp_path / "mark"), b"." * size))
    with two_ranks(common, "tcp") as (zero, one):
        if size:
            from pyfab.group import control

            real = control.open_region

            def open_other(domain: Any, memory: Any, *args: Any, **how: Any) -> Any:
                return real(
                    domain, np.frombuffer(evil, np.uint8) if domain is one.domain else memory, *args, **how
                )

            monkeypatch.setattr(control, "open_region", open_other)
        show = one._control._show

        def show_other(data: bytes) -> None:
            show(data)
            if not size:
                box = one._control._boxes[(one._control._barrier + 1) % 2]
                box[:8].view(np.uint64)[0] += len(evil) - len(data)
                end = int(box[:8].view(np.uint64)[0]) + 24
                box[end - len(evil) : end] = np.frombuffer(evil, np.uint8)

        monkeypatch.setattr(one._control, "_show", show_other)
        with ThreadPoolExecutor(2) as pool:
            seen = pool.submit(zero.allgather, 0)
            shown = pool.submit(one.allgather, {1, 2} if not size else b"." * (len(evil)))
            with pytest.raises(pyfab.AccessDeniedError, match="rank 1 of 2 shows was changed on its way"):
                seen.result(TIMEOUT)
            shown.result(TIMEOUT)
    assert not (tmp_path / "mark").exists()


def test_every_group_has_a_key_of_its_own(common: Path) -> None:
    keys = []
    for _ in range(2):
        with two_ranks(common, "shm+tcp") as groups:
            (key,) = {group.domain._options.auth_key for group in groups}
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


class Store:
    """Keeps what it is told, and lets everybody read and write it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.change: Callable[[str, bytes], bytes] = lambda _, value: value
        self._changed = threading.Condition()

    def view(self) -> Any:
        class View:
            set, get, wait = self.set, self.get, self.wait

        return View()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self.values[key] = self.change(key, value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def wait(self, keys: list[str], _: object) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: all(key in self.values for key in keys), 20)


def test_a_store_learns_and_changes_nothing() -> None:
    store = Store()
    views = [store.view(), store.view()]
    value = b"what only the ranks know"
    with ThreadPoolExecutor(2) as pool:
        met = [pool.submit(exchange, view, rank, 2, value, 20) for rank, view in enumerate(views)]
        assert [one.result() for one in met] == [[value] * 2] * 2
        assert not [kept for kept in store.values.values() if value in kept]
        store.values.clear()
        store.change = lambda key, kept: kept[:-1] + bytes([kept[-1] ^ key.endswith("/1")])
        met = [pool.submit(exchange, view, rank, 2, value, 20) for rank, view in enumerate(views)]
        for one in met:
            with pytest.raises(pyfab.AccessDeniedError, match="was not written by a rank"):
                one.result()


@pytest.mark.parametrize("told", [{"address": "", "host": ""}, {"pyfab": "0.0.1", "card": 1}])
def test_ranks_of_different_versions_are_named(common: Path, told: dict[str, Any]) -> None:
    place = f"file://{common}/meeting"
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(exchange, place, 1, 2, json.dumps(told).encode(), 20)
        with pytest.raises(
            pyfab.InvalidArgumentError,
            match=rf"different versions.* rank 0: pyfab '{pyfab.__version__}', cards 2; rank 1: pyfab '.*0.",
        ):
            pyfab.Group(0, 2, place, "tcp", timeout=20)
        other.result()


@pytest.mark.parametrize("card", [b"\xff\xfe", b"[" * 100_000, b"[1]", b"9" * 5000, b'{"pyfab": "\\ud800"}'])
def test_a_card_of_odd_bytes_is_told(common: Path, card: bytes) -> None:
    place = f"file://{common}/meeting"
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(exchange, place, 1, 2, card, 20)
        with pytest.raises(pyfab.FabricError) as refused:
            pyfab.Group(0, 2, place, "tcp", timeout=20)
        assert str(refused.value).isprintable()
        other.result()


RANK = """
import pyfab, sys
with eval(sys.argv[1]) as group:
    assert len(group._keys.secret) == 32
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
