"""Servers in processes of their own, with few descriptors."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path

from pyfab.core.deadline import Deadline
from pyfab.meeting.addresses import split_address
from pyfab.meeting.channel import Channel
from pyfab.meeting.rendezvous import exchange
from pyfab.testing import RemoteAgent
from pyfab.tools.fetch import ArrayClient

TOKEN = "secret"
DESCRIPTORS = 256
"""Of each server."""

MEETING = """
import socket
import threading
from pyfab.meeting.rendezvous import exchange
with socket.create_server(("127.0.0.1", 0)) as found:
    port = found.getsockname()[1]

def tell():
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.01)
    print(f"serving on 127.0.0.1:{port}", flush=True)

threading.Thread(target=tell).start()
assert exchange(f"tcp://127.0.0.1:{port}", 0, 2, b"0", 60) == [b"0", b"1"]
print("met")
"""


class Server:
    """A process that says "serving on ADDRESS"; what it says after that is kept in `said`."""

    def __init__(self, kind: str, *command: str) -> None:
        self.kind = kind
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYFAB_TOKEN": TOKEN},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()  # of lines, and of the end
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.address = self.wait_for(r"(?:serving|listening) on (\S+)")

    @property
    def said(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, pattern: str) -> str:
        """The first group of what matches in what it says."""
        with self._changed:
            self._changed.wait_for(lambda: re.search(pattern, self.said) or self._ended, 20)
            found = re.search(pattern, self.said)
        assert found, self.said
        return found[found.re.groups and 1]

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def descriptors(self) -> set[int]:
        return {int(path.name) for path in Path(f"/proc/{self.process.pid}/fd").iterdir()}

    def use(self) -> None:
        """What those who have the token come for."""
        if self.kind == "serve":
            with ArrayClient(self.address, TOKEN) as client:
                assert "labels" in client.names()
        elif self.kind == "agent":
            assert RemoteAgent(*split_address(self.address), TOKEN).facts()
        elif self.kind == "bench":
            Channel.connect(*split_address(self.address), "pyfab bench", TOKEN, Deadline(10)).close()
        elif self.kind == "meeting":
            assert exchange(f"tcp://{self.address}", 1, 2, b"1", 20) == [b"0", b"1"]
            self.wait_for("met")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
