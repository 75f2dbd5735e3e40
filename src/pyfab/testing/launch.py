"""Starts agents on other hosts: over ssh or any command that reaches them, and as the ranks of a job."""

from __future__ import annotations

import contextlib
import json
import secrets
import select
import shlex
import socket
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import pyfab.meeting.launchers
from pyfab.meeting.addresses import join_address, split_address
from pyfab.meeting.rendezvous import exchange
from pyfab.testing._remote import RemoteAgent
from pyfab.testing.agent import Agent

_PATIENCE = 60.0  # seconds that an agent has to start, and to end


@contextlib.contextmanager
def launched(command: str, host: str, reach: str) -> Iterator[RemoteAgent]:
    """An agent that a command starts on a host, until the end of the block.

    `command` is split like a shell's, but run without one. It may contain ``{host}``, and ``{agent}`` for the arguments of
    ``pyfab`` on that host; without ``{agent}``, ``pyfab {agent}`` is appended. `reach` is the address at which the agent is
    connected. The agent's token is made here and goes through the command's standard input, so no list of processes shows it.
    """
    token = secrets.token_hex(32)
    words = shlex.split(command if "{agent}" in command else f"{command} pyfab {{agent}}")
    listen = "[::]:0" if ":" in reach else "0.0.0.0:0"
    agent = f"agent --attached --listen {listen}"
    line = [part for word in words for part in _filled(word, host, agent)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            address = _started(process, token, shlex.join(line))
            remote = RemoteAgent(reach, split_address(address)[1], token)
            hold = remote.hold()
            try:
                yield remote
            finally:
                hold.close()
                process.wait(_PATIENCE)
        except BaseException:
            process.kill()
            raise


def _filled(word: str, host: str, agent: str) -> list[str]:
    return agent.split() if word == "{agent}" else [word.replace("{host}", host).replace("{agent}", agent)]


def _started(process: subprocess.Popen[str], token: str, line: str) -> str:
    """The address that the agent says it serves on."""
    assert process.stdin and process.stdout
    with contextlib.suppress(BrokenPipeError):  # it has ended, as its output will tell
        process.stdin.write(f"{token}\n")
        process.stdin.close()
    said = ""
    if select.select([process.stdout], [], [], _PATIENCE)[0]:
        said = process.stdout.readline()
    if not said.startswith("serving on "):
        process.kill()
        said += process.stdout.read()
        raise ConnectionError(f"no agent was started by: {line}\n{said.strip() or '(it said nothing)'}")
    return said.split()[2]


@contextlib.contextmanager
def job(timeout: float = _PATIENCE) -> Iterator[list[RemoteAgent] | None]:
    """The processes of a job that torchrun, mpirun or srun has started.

    Rank 0 gets the agents of all others, which serve until the end of its block; the others get None after that.
    """
    launch = pyfab.meeting.launchers.from_environment()
    if launch.size < 2:
        raise ValueError(f"the job has {launch.size} process; rank 0 tests, the others are its peers")
    if launch.rank:
        _serve(launch, timeout)
        yield None
        return
    token = secrets.token_hex(32)
    told = exchange(launch.rendezvous, 0, launch.size, json.dumps({"token": token}).encode(), timeout)
    here = socket.gethostname()
    agents = []
    for card in map(json.loads, told[1:]):
        host = card["address"] or ("127.0.0.1" if card["host"] == here else card["host"])
        agents.append(RemoteAgent(host, card["port"], token))
    with contextlib.ExitStack() as stack:
        for agent in agents:
            stack.callback(agent.hold().close)
        yield agents


def _serve(launch: pyfab.meeting.launchers.Launch, timeout: float) -> None:
    """A rank that is not 0: an agent, reached at the address by which this host reaches the meeting place."""
    address = _towards(launch.rendezvous)
    # It answers nobody before the meeting, which tells rank 0 its port, and tells it the token of the job.
    agent = Agent(join_address("::" if ":" in address else "0.0.0.0", 0), secrets.token_hex(32))
    card = {"address": address, "host": socket.gethostname(), "port": split_address(agent.address)[1]}
    try:
        told = exchange(launch.rendezvous, launch.rank, launch.size, json.dumps(card).encode(), timeout)
        agent.token = str(json.loads(told[0])["token"])
        with agent:
            agent.wait_until_left()
    finally:
        agent.close()


def _towards(rendezvous: object) -> str:
    """This host's address on the way to a meeting over tcp; empty if the meeting is elsewhere."""
    url = urlsplit(str(rendezvous))
    if url.scheme != "tcp":
        return ""
    host, port = split_address(url.netloc)
    (family, _, _, _, place), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # sends nothing, but finds the way
        return str(probe.getsockname()[0])
