"""Where ranks meet that have nothing set, and two ranks of one group."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyfab
from pyfab.core.deadline import Deadline, Looks
from pyfab.meeting.addresses import split_address

TIMEOUT = 60


def free_place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def wait_until_listening(place: str) -> None:
    looks = Looks(Deadline(TIMEOUT))
    while True:
        try:
            socket.create_connection(split_address(place), 1).close()
            return
        except ConnectionRefusedError:
            looks.pause()


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
