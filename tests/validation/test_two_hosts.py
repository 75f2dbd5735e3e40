"""A user's own tests, and the suite, between two hosts: name spaces that share nothing but a network."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
from hosts import PYFAB, PYTEST, TEN_LINES, TOKEN, Hosts, Run, Start


@pytest.fixture
def user_test(tmp_path: Path) -> Path:
    path = tmp_path / "test_of_a_user.py"
    path.write_text(TEN_LINES)
    return path


def options(hosts: Hosts) -> list[str]:
    return ["--pyfab-links", "tcp:r0", "--pyfab-peer", hosts.agent]


def test_ten_lines_validate_two_hosts(hosts: Hosts, run: Run, user_test: Path) -> None:
    received_before, _ = hosts.there.counters(0)
    status, said = run(hosts.here, PYTEST, user_test, *options(hosts), "-W", "error", PYFAB_TOKEN=TOKEN)
    assert status == 0, said
    assert "2 passed" in said
    received, _ = hosts.there.counters(0)
    assert received - received_before > 8000  # the array went over the network


@pytest.mark.slow
def test_functions_of_a_users_file_run_there(hosts: Hosts, run: Run, tmp_path: Path) -> None:
    """Although the other host does not have the file."""
    path = tmp_path / "test_own_function.py"
    path.write_text(
        "import socket\n"
        "def name(target, suffix):\n    return helper() + suffix\n"
        "def helper():\n    return socket.gethostname()\n"
        "def test_name(peer):\n    assert peer.run(name, '!') == 'node1!'\n"
        "def wrong(target):\n    raise KeyError('there')\n"
        "def test_error(peer):\n    peer.run(wrong)\n"
    )
    status, said = run(hosts.here, PYTEST, path, *options(hosts), PYFAB_TOKEN=TOKEN)
    assert status == 1
    assert "1 failed, 1 passed" in said
    assert re.search(r"raised in peer \d+", said)
    assert "KeyError: 'there'" in said


@pytest.mark.slow
def test_a_wrong_token_is_refused(hosts: Hosts, run: Run, user_test: Path) -> None:
    status, said = run(hosts.here, PYTEST, user_test, *options(hosts), "--pyfab-token", "guess")
    assert status == 1
    assert f"the agent at {hosts.agent} has another token" in said
    assert "2 errors" in said
    status, said = run(hosts.here, PYTEST, user_test, *options(hosts), PYFAB_TOKEN=TOKEN)
    assert status == 0, said


@pytest.mark.slow
def test_the_suite_refuses_to_begin_without_its_peer(hosts: Hosts, run: Run) -> None:
    status, said = run(hosts.here, PYFAB, "validate", "--links", "tcp:r0", "--peer", hosts.agent)
    assert status == 4
    assert "asks for a token, and this process has none" in said
    status, said = run(hosts.here, PYFAB, "validate", "--peer", f"{hosts.there.address()}:1")
    assert status == 4
    assert f"pyfab agent --listen {hosts.there.address()}:1" in said


@pytest.mark.slow
def test_an_agent_that_is_killed(hosts: Hosts, start_agent: Start, run: Run, tmp_path: Path) -> None:
    """Its peers end with it: the test that needs one fails, those after it fail soon, nothing hangs."""
    _, agent = start_agent(hosts.there)
    path = tmp_path / "test_killed.py"
    path.write_text(
        "import os, signal\n"
        "def test_before(peer):\n    assert peer.run(os_name) == 'posix'\n"
        "def os_name(target):\n    return os.name\n"
        "def kill_agent(target):\n    os.kill(os.getppid(), signal.SIGKILL)\n    signal.pause()\n"
        "def test_it(peer):\n    peer.run(kill_agent)\n"
        "def test_after(peer):\n    pass\n"
    )
    links = ["--pyfab-links", "tcp:r0", "--pyfab-peer", agent]
    status, said = run(hosts.here, PYTEST, path, *links, PYFAB_TOKEN=TOKEN)
    assert status == 1
    assert re.search(r"ConnectionError: peer \d+ ended", said)
    assert "no agent answers" in said
    assert "1 failed, 1 passed, 1 error" in said


@pytest.mark.slow
def test_the_suite_with_soak_and_drills(hosts: Hosts, run: Run) -> None:
    down, up = ("ip link set r0 " + way for way in ("down", "up"))
    status, said = run(
        hosts.here,
        PYFAB,
        *["validate", "--links", "tcp:r0", "--peer", hosts.agent, "--soak", "0.5", "--drills", "all"],
        *[
            "--link-down",
            down,
            "--link-up",
            up,
            "--pytest",
            "-W error -k 'soak or drills'",
        ],
        PYFAB_TOKEN=TOKEN,
    )
    assert status == 0, said
    assert not re.search(r"\d skipped", said)  # the table has a column of that name
    passed = re.search(r"(\d+) passed", said)
    assert passed and int(passed[1]) == 5


@pytest.mark.slow
def test_a_peer_that_was_left_in_a_bad_state_is_replaced(hosts: Hosts, run: Run, tmp_path: Path) -> None:
    """Killed by one test; in the middle of a call after another."""
    path = tmp_path / "test_states.py"
    path.write_text(
        "import os, signal\n"
        "def pid(target):\n    return os.getpid()\n"
        "def end(target):\n    os._exit(3)\n"
        "seen = []\n"
        "def test_first(peer):\n    seen.append(peer.run(pid))\n    peer.kill()\n"
        "def test_second(peer):\n    seen.append(peer.run(pid))\n    peer.start(end)\n"
        "def test_third(peer, window):\n    seen.append(peer.run(pid))\n"
        "    shared = window(shape=8)\n    shared[1][:] = 5\n    assert shared.content().sum() == 40\n"
        "    assert len(set(seen)) == 3\n"
    )
    status, said = run(hosts.here, PYTEST, path, *options(hosts), PYFAB_TOKEN=TOKEN)
    assert status == 1
    assert "3 passed, 1 error" in said, said
    assert "the test left the peer in the middle of a call" in said


@pytest.mark.slow
def test_several_links_to_several_peers(hosts: Hosts, run: Run, user_test: Path) -> None:
    more = ["--pyfab-links", "shm+tcp:r0", "--pyfab-peer", "process"]
    status, said = run(hosts.here, PYTEST, user_test, "-v", *options(hosts), *more, PYFAB_TOKEN=TOKEN)
    assert status == 0, said
    for links in ("tcp:r0", "shm+tcp:r0"):
        for peer in (hosts.agent, "process"):
            assert f"test_put[{links} to {peer}] PASSED" in said


@pytest.mark.slow
def test_an_agent_takes_no_empty_token(run: Run) -> None:
    status, said = run(None, PYFAB, "agent", "--listen", "0.0.0.0:0", "--token", "")
    assert status == 1
    assert "an empty token would let in everybody who can connect" in said


@pytest.mark.slow
def test_peers_end_with_their_agent(hosts: Hosts, start_agent: Start) -> None:
    """SIGTERM ends it at once, with the peers of a client that is still there."""
    process, address = start_agent(hosts.there)
    client = hosts.here.popen(
        "import pyfab.testing as t, sys\n"
        "host, port, token = sys.argv[1:]\n"
        "peer = t.Peer('tcp:r0', where=t.RemoteAgent(host, int(port), token))\n"
        "print(peer.pid, flush=True)\n"
        "try:\n    peer.finish()\nexcept ConnectionError as error:\n    print(error)\n",
        *address.rsplit(":", 1),
        TOKEN,
    )
    assert client.stdout and client.stdout.readline().strip().isdigit()
    (agent,) = psutil.Process(process.pid).children()
    agent.terminate()
    said, _ = client.communicate(timeout=30)
    assert "ended" in said
    process.communicate(timeout=30)
