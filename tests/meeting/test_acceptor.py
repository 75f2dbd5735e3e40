"""Troubles of accept() that cannot be had at will, and the bounds of memory and of the log."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import struct
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyfab import _core
from pyfab.core.deadline import Deadline, Looks
from pyfab.logs import rate, security
from pyfab.meeting import acceptor, addresses, handshake
from pyfab.meeting.acceptor import Acceptor
from pyfab.meeting.channel import Channel
from pyfab.meeting.rendezvous import exchange
from pyfab.meeting.tokens import Token
from pyfab.tools import lending, served


class Troubled(socket.socket):
    """A listener whose first calls of accept() fail."""

    def __init__(self, troubles: list[int]) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.troubles = troubles

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.troubles:
            raise OSError(number := self.troubles.pop(), errno.errorcode[number])
        return super().accept()


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "_rates", {event: rate.LogRate() for event in security.Event})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ECONNABORTED", "EPROTO", "EPERM"])
def test_accepting_goes_on_after(name: str) -> None:
    listener = Troubled([getattr(errno, name)] * 3)
    server = Acceptor(
        listener, Token("secret"), "test", lambda channel: channel.send({"hello": 1}, deadline=Deadline(10))
    )
    server.start()
    try:
        channel = Channel.connect(*listener.getsockname(), "test", "secret", Deadline(20))
        assert channel.receive(Deadline(20))[0] == {"hello": 1}
        channel.close()
    finally:
        server.close()
    assert not listener.troubles


def test_closing_ends_what_has_not_proven_the_token() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = Acceptor(listener, Token("secret"), "test", lambda _: None)
    server.start()
    with socket.create_connection(listener.getsockname(), 10) as stranger:
        assert stranger.recv(4)
        server.close()
        while stranger.recv(4096):
            pass
    assert not [thread for thread in threading.enumerate() if thread.name == "pyfab-acceptor"]


def test_endpoints_and_servers_have_the_same_bounds() -> None:
    """docs/security.md tells one figure for both."""
    source = Path(__file__).parents[2] / "src" / "cpp" / "fabric" / "admission" / "bounds.h"
    found = re.findall(r"std::min<std::size_t>\((\d+), (?:quarter|descriptors)", source.read_text())
    figures = (acceptor.MOST_UNPROVEN, acceptor.MOST_UNPROVEN_OF_ONE, acceptor.RESERVE)
    assert tuple(map(int, found)) == figures


def test_what_the_core_tells_has_a_kind_and_a_line_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| [a-z]", page, re.MULTILINE) == list(_core.security_events)
    for kind in _core.security_events.values():
        security.Event(kind)


def greet(channel: Channel) -> None:
    """What a client that was let in hears, until it goes."""
    channel.send({"hello": 1}, deadline=Deadline(20))
    channel.receive(Deadline(20))


def let_in(address: tuple[str, int]) -> Channel:
    channel = Channel.connect(*address, "test", "secret", Deadline(20))
    try:
        assert channel.receive(Deadline(20))[0] == {"hello": 1}
    except BaseException:
        channel.close()
        raise
    return channel


def test_one_address_pushes_out_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "MOST_UNPROVEN", 8)
    monkeypatch.setattr(acceptor, "MOST_UNPROVEN_OF_ONE", 4)
    listener = socket.create_server(("127.0.0.1", 0))
    server = Acceptor(listener, Token("secret"), "test", greet)
    server.start()
    with contextlib.ExitStack() as held:
        held.callback(server.close)
        address = listener.getsockname()
        other = held.enter_context(socket.create_connection(address, 20, ("127.0.0.2", 0)))
        assert other.recv(1) == b"p"
        burst = [held.enter_context(socket.create_connection(address, 20)) for _ in range(20)]
        assert burst[-1].recv(1) == b"p"
        for connection in burst[:16]:  # the oldest of that address, which have been told all there is
            while connection.recv(4096):
                pass
        other.setblocking(False)
        while True:  # the greeting, and no end after it
            try:
                assert other.recv(4096)
            except BlockingIOError:
                break


def test_who_has_proven_the_token_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "MOST_PROVEN", 2)
    listener = socket.create_server(("127.0.0.1", 0))
    server = Acceptor(listener, Token("secret"), "test", greet)
    server.start()
    try:
        address = listener.getsockname()
        first, second = let_in(address), let_in(address)
        with pytest.raises(ConnectionError):
            let_in(address)
        first.hang_up(Deadline(20))  # the server's side is closed, and counts no more in a moment
        looks = Looks(Deadline(20))
        while True:
            try:
                third = let_in(address)
                break
            except ConnectionError:
                looks.pause()
        for channel in (second, third):
            channel.close()
    finally:
        server.close()


def test_many_ranks_that_come_at_once_are_no_burst(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("MOST_UNPROVEN", "MOST_UNPROVEN_OF_ONE", "MOST_PROVEN"):
        monkeypatch.setattr(acceptor, bound, 4)
    size = 40
    with socket.create_server(("127.0.0.1", 0)) as found:
        place = f"tcp://127.0.0.1:{found.getsockname()[1]}"
    with ThreadPoolExecutor(size) as pool:
        met = [pool.submit(exchange, place, rank, size, b"%d" % rank, 60) for rank in range(size)]
    expected = [b"%d" % rank for rank in range(size)]
    assert all(one.result() == expected for one in met)
    assert not [record for record in caplog.records if record.name == "pyfab.security"]


def test_memory_is_taken_for_what_has_come_and_not_for_what_is_claimed() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.sendall(struct.pack("<4sII", b"pyf1", 1 << 20, 0) + b"{")
        theirs.shutdown(socket.SHUT_WR)
        tracemalloc.start()
        try:
            with pytest.raises(ConnectionError):
                Channel(mine).receive(Deadline(10))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 1 << 19


def test_the_page_on_security_has_the_figures_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    rows = re.findall(r"\| `(\w+)\.(\w+)` \| ([\d.]+) \|", page)
    assert len(rows) == 10
    modules = (acceptor, addresses, handshake, lending, rate, served)
    named = {module.__name__.rpartition(".")[2]: module for module in modules}
    for module, name, figure in rows:
        assert getattr(named[module], name) == float(figure), name
