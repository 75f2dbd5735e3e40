"""Two hosts made of network name spaces, one of which runs ``pyfab agent``; and pytest and pyfab as users start them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from netns import Node

TOKEN = "correct horse battery staple"
PYFAB = "from pyfab.__main__ import main\nsys.exit(main(sys.argv[1:]))"
PYTEST = (
    "import pytest\nsys.exit(pytest.main(['-p', 'no:cacheprovider', '-p', 'pytest_pyfab', *sys.argv[1:]]))"
)

TEN_LINES = """\
import numpy as np


def test_put(endpoint, peer):
    exposed = peer.expose(np.zeros((4, 1000)))
    endpoint.write(np.ones(1000), peer.handle, exposed.remote[2]).result(timeout=10)
    assert exposed.content().sum() == 1000


def test_window(window):
    shared = window(shape=1000)
    shared[1][10:20] = np.arange(10)
    assert shared.content()[10:20].tolist() == list(range(10))
"""


@dataclass
class Hosts:
    """`here` tests; on `there` an agent serves at `agent`."""

    here: Node
    there: Node
    agent: str


Start = Callable[..., "tuple[subprocess.Popen[str], str]"]


def agent_on(node: Node) -> tuple[subprocess.Popen[str], str]:
    """``pyfab agent`` on a node, and where it listens."""
    process = node.popen(PYFAB, "agent", "--listen", f"{node.address()}:0", PYFAB_TOKEN=TOKEN)
    assert process.stdout
    line = process.stdout.readline()
    assert line.startswith("serving on "), line + process.stdout.read()
    return process, line.split()[2]


Run = Callable[..., tuple[int, str]]
