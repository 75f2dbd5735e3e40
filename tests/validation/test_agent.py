"""The agent's own rules: nothing before the token, peers that do as they are told and end with their client."""

from __future__ import annotations

import os
import pickle
import queue
import re
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.core.deadline import Deadline
from pyfab.meeting.addresses import split_address
from pyfab.meeting.channel import Channel
from pyfab.meeting.handshake import called
from pyfab.testing import Peer, RemoteAgent, Target
from pyfab.testing._sides import SERVICE
from pyfab.testing.agent import Agent

TOKEN = "secret"


@pytest.fixture
def agent() -> Iterator[RemoteAgent]:
    with Agent("127.0.0.1:0", TOKEN) as agent:
        yield RemoteAgent(*split_address(agent.address), TOKEN)


@pytest.fixture
def peer(agent: RemoteAgent) -> Iterator[Peer]:
    with Peer("tcp", where=agent, peer_deadline=2.0) as peer:
        yield peer


def _pid(_: Target) -> int:
    return os.getpid()


class _Mark:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_before_the_token_was_proven(agent: RemoteAgent, tmp_path: Path) -> None:
    evil = pickle.dumps(_Mark(tmp_path / "mark"))
    pickle.loads(evil)
    assert (tmp_path / "mark").exists()  # it would
    (tmp_path / "mark").unlink()
    for message in (evil, b"pyf1" + evil, len(evil).to_bytes(4, "big") + evil):
        # It may end the connection before all was sent.
        with socket.create_connection((agent.host, agent.port)) as connection, suppress(OSError):
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    with closing(Channel(socket.create_connection((agent.host, agent.port)))) as channel:
        channel.receive(Deadline(10))
        to = called(SERVICE, (agent.host, agent.port))
        channel.send({"nonce": "0" * 64, "to": to, "proof": "0" * 64, "op": "peer"}, deadline=Deadline(10))
        assert channel.receive(Deadline(10))[0] == {"refused": "token"}
    assert not (tmp_path / "mark").exists()
    assert agent.facts()["pyfab"] == pyfab.__version__


def test_a_ticket_is_needed_to_join(agent: RemoteAgent) -> None:
    channel = agent.connect()
    with pytest.raises(ConnectionError):
        agent.ask(channel, {"op": "join", "ticket": "00"})
    channel.close()


@pytest.mark.parametrize(
    "request_, message",
    [
        ({"op": "peer", "version": "0.0.1"}, "install the same on both"),
        ({"op": "shell"}, "unknown request 'shell'"),
    ],
)
def test_what_it_does_not_do(agent: RemoteAgent, request_: dict[str, str], message: str) -> None:
    channel = agent.connect()
    with pytest.raises(ConnectionError, match=message):
        agent.ask(channel, request_)
    channel.close()


def test_a_peer_stops_goes_on_and_dies(peer: Peer) -> None:
    assert peer.run(_pid) == peer.pid != os.getpid()
    peer.suspend()
    assert Path(f"/proc/{peer.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    peer.start(_pid)
    with pytest.raises(TimeoutError):
        peer.finish(0.1)
    peer.resume()
    assert peer.finish() == peer.pid
    peer.kill()
    assert not Path(f"/proc/{peer.pid}").exists()
    assert peer.over


@pytest.mark.slow
def test_two_peers_of_one_agent(agent: RemoteAgent, peer: Peer) -> None:
    with Peer("tcp", where=agent) as other, pyfab.Domain("tcp") as domain, domain.endpoint() as endpoint:
        for one in (peer, other):
            one.meet(endpoint)
            exposed = one.expose(np.zeros(10))
            endpoint.write(np.full(10, float(one.handle)), one.handle, exposed.remote).result(10)
            assert (exposed.content() == one.handle).all()
        peer.kill()
        assert other.run(_pid) == other.pid


@pytest.mark.slow
def test_an_error_at_the_start_is_told(agent: RemoteAgent) -> None:
    for where, named in ((agent, f"the agent at 127.0.0.1:{agent.port}"), ("process", "a process here")):
        with pytest.raises(pyfab.InvalidArgumentError) as raised:
            Peer("tcp:nosuch", where=where)
        assert raised.value.strerror.startswith(
            f"the peer, in {named}, cannot open 'tcp:nosuch': tcp has no device"
        )
        assert "raised in peer" in str(raised.value.__cause__)


@pytest.mark.slow
def test_an_agent_says_who_came_and_how_it_ended() -> None:
    said = queue.Queue[str]()
    with Agent("127.0.0.1:0", TOKEN, tell=said.put) as agent:
        here = RemoteAgent(*split_address(agent.address), TOKEN)
        for end, how in [
            (Peer.close, "ended with status 0"),
            (Peer.kill, "was ended by SIGKILL"),
            (lambda peer: peer._side._control.close(), "was killed, as its connection had gone"),
        ]:
            peer = Peer("shm", where=here)
            came = said.get(timeout=30)
            assert re.fullmatch(rf"127\.0\.0\.1:\d+ has come: peer {peer.pid} runs for it", came)
            end(peer)
            went = said.get(timeout=30)
            assert went == f"{came.partition(' ')[0]} has gone: peer {peer.pid} {how}"
        with pytest.raises(pyfab.AccessDeniedError):
            RemoteAgent(here.host, here.port, "guess").facts()
        assert said.get(timeout=30).endswith(" was refused: it has another token")


def test_an_agent_that_is_held_ends_with_the_one_who_holds_it() -> None:
    with Agent("127.0.0.1:0", TOKEN) as agent:
        hold = RemoteAgent(*split_address(agent.address), TOKEN).hold()
        hold.close()
        agent.wait_until_left()
