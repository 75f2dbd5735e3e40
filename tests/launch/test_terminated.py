"""What SIGTERM ends leaves nothing in the temporary folder, and no process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

DEMO = """
import pyfab.tools.demo, threading
from pathlib import Path
from rich.console import Console
def spawn(visit, procs, path, **options):
    assert Path(path).stat().st_size > 0  # what the processes are to read is there
    print("there", flush=True)
    threading.Event().wait()
pyfab.tools.demo.spawn = spawn
pyfab.tools.demo.demo(None, 2, "shm", Console(file=open("/dev/null", "w")))
"""

CELLS = """
import threading, types
from pyfab.notebook.cell_ranks import CellRanks
shell = types.SimpleNamespace(user_ns={}, display_pub=types.SimpleNamespace(), display_formatter=None)
ranks = CellRanks(2, "shm", shell)
assert [report.error for report in ranks.meet() + ranks.run("group.barrier()", 60)] == [None] * 4
print("there", flush=True)
threading.Event().wait()
"""

RECORDED = """
import numpy, pyfab, threading
def work():
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        region = domain.register(numpy.zeros(8), pyfab.Access.REMOTE)
        endpoint.write(numpy.ones(8), endpoint.av.insert(endpoint.address), region.remote).result(60)
        print("there", flush=True)
        threading.Event().wait()
"""

TRACE = (
    RECORDED
    + """
import sys
with pyfab.trace(sys.argv[1]):
    work()
"""
)

TRACED = (
    RECORDED
    + """
import os
from pyfab.launch.child import bind_to
bind_to(os.getppid())
work()
"""
)

COMMAND = """
import sys
from pathlib import Path
from pyfab.cli import main
program = Path(sys.argv[1]).with_name("program.py")
program.write_text(sys.argv[2])
sys.argv[1:] = ["trace", "-o", sys.argv[1], str(program)]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, arguments",
    [(DEMO, []), (CELLS, []), (TRACE, []), (COMMAND, [TRACED])],
    ids=["demo", "cells", "trace", "trace command"],
)
def test_nothing_is_left(
    script: str, arguments: list[str], start: Callable[..., Any], tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = start(script, str(tmp_path / "trace.json"), *arguments, TMPDIR=str(temporary))
    assert process.stdout.readline() == "there\n"
    assert list(temporary.iterdir()) == []  # so that no way to end it can leave anything
    below = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.wait(60)
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == []
    assert list(temporary.iterdir()) == []
