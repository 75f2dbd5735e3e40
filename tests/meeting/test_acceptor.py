"""Troubles of accept() that cannot be had at will, and the bounds of memory and of the log."""

from __future__ import annotations

import errno
import logging
import re
import socket
import struct
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from pyfab.core.deadline import Deadline
from pyfab.meeting import acceptor, frames, security_log
from pyfab.meeting.acceptor import Acceptor
from pyfab.meeting.frames import Channel


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
    rates = {event: security_log._Rate() for event in security_log.Event}
    monkeypatch.setattr(security_log, "_rates", rates)


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ECONNABORTED", "EPROTO", "EPERM"])
def test_accepting_goes_on_after(name: str) -> None:
    listener = Troubled([getattr(errno, name)] * 3)
    server = Acceptor(listener, "secret", lambda channel: channel.send({"hello": 1}, deadline=Deadline(10)))
    server.start()
    try:
        channel = Channel.connect(*listener.getsockname(), "secret", Deadline(20))
        assert channel.receive(Deadline(20))[0] == {"hello": 1}
        channel.close()
    finally:
        server.close()
    assert not listener.troubles


def test_closing_ends_what_has_not_proven_the_token() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = Acceptor(listener, "secret", lambda _: None)
    server.start()
    with socket.create_connection(listener.getsockname(), 10) as stranger:
        assert stranger.recv(4)
        server.close()
        while stranger.recv(4096):
            pass
    assert not [thread for thread in threading.enumerate() if thread.name == "pyfab-acceptor"]


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


def test_the_log_says_how_many_lines_it_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with caplog.at_level(logging.WARNING, "pyfab.security"):
        for _ in range(security_log.MOST_LINES + 7):
            security_log.tell(security_log.Event.REFUSED, "10.0.0.1:5", "it guesses")
        security_log.tell(
            security_log.Event.LIMIT, "10.0.0.2:6", "too many"
        )  # another kind has a rate of its own
        now[0] += security_log.PERIOD
        security_log.tell(security_log.Event.REFUSED, "10.0.0.1:5", "it guesses")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == security_log.MOST_LINES + 2
    assert lines[-2] == "pyfab: 10.0.0.2:6: limit reached: too many"
    assert lines[-1].endswith("it guesses (7 such lines were left out before this one)")


def test_the_page_on_security_has_the_figures_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    rows = re.findall(r"\| `(\w+)\.(\w+)` \| ([\d.]+) \|", page)
    assert len(rows) == 8
    modules = {"acceptor": acceptor, "frames": frames, "security_log": security_log}
    for module, name, figure in rows:
        assert getattr(modules[module], name) == float(figure), name
