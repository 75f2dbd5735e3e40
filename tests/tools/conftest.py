"""Servers in processes of their own, and a client of one that a test has."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyfab.tools.file_client import FileClient
from pyfab.tools.serve import ArrayServer


def _serve() -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Starts ``pyfab serve`` and waits until it says where."""
    servers: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "pyfab", "serve", *map(str, arguments)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        servers.append(server)
        assert server.stdout is not None
        for line in server.stdout:
            if found := re.match(r"serving on (\S+)", line):
                return server, found[1]
        raise AssertionError("it does not serve")

    yield start
    for server in servers:
        server.kill()
        server.communicate()


serve = pytest.fixture(_serve)
serve_all_tests = pytest.fixture(scope="module")(_serve)


@pytest.fixture
def client(server: ArrayServer) -> Iterator[FileClient]:
    """Of the server that the module's fixture `server` is."""
    with FileClient(server.address) as made:
        yield made
