"""Somebody between two hosts: passes on what two sides say to each other, or something else."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

Change = Callable[[int, bool, bytes], bytes]
"""What goes on in place of some bytes: number of the connection, whether the caller said them, the bytes."""


class Relay:
    """Listens at `port` of 127.0.0.1 for those who believe that this is the other side, and calls that one for each."""

    def __init__(self, to: tuple[str, int], change: Change) -> None:
        self._to, self._change = to, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                self._sockets.append(caller)
                try:
                    called = socket.create_connection(self._to, 20)
                except ConnectionRefusedError:
                    caller.shutdown(socket.SHUT_RDWR)
                    continue
                self._sockets.append(called)
                for one, other, from_caller in ((caller, called, True), (called, caller, False)):
                    self._threads.append(
                        threading.Thread(target=self._pass_on, args=(number, from_caller, one, other))
                    )
                    self._threads[-1].start()
                number += 1

    def _pass_on(self, number: int, from_caller: bool, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(self._change(number, from_caller, data))
            other.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for connection in self._sockets:
            connection.close()
