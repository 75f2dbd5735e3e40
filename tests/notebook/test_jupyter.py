"""`%%pyfab` and live counters in a real kernel."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest
from kernels import TIMEOUT, Kernel
from pyfab.notebook.cell_ranks import _Rank


@pytest.fixture(autouse=True)
def _loaded(kernel: Kernel) -> Iterator[None]:
    assert kernel.run("%load_ext pyfab").error is None
    yield
    kernel.run("%pyfab stop")
    assert kernel.no_children()


def test_a_cell_in_ranks_that_end_with_it(kernel: Kernel) -> None:
    kernel.run("shift = 10\ndef moved(rank): return rank + shift")
    cell = kernel.run(
        "%%pyfab -n 3\n"
        "with group.window(shape=2) as window:\n"
        "    window[(group.rank + 1) % group.size][:] = moved(group.rank)\n"
        "    window.fence()\n"
        "    print(f'{group.rank} of {group.size}:', window.local)\n"
        "np.arange(group.rank + 1)"
    )
    assert cell.error is None
    assert cell.text().splitlines() == [
        "[0] 0 of 3: [12. 12.]",
        "[0] array([0])",
        "[1] 1 of 3: [10. 10.]",
        "[1] array([0, 1])",
        "[2] 2 of 3: [11. 11.]",
        "[2] array([0, 1, 2])",
    ]
    assert kernel.no_children()


def test_what_ranks_display_comes_as_it_is(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%pyfab -n 2 --links shm\n"
        "from IPython.display import HTML, display\n"
        "import sys\n"
        "display(HTML(f'<b>{group.rank}</b>'))\n"
        "print('aside', file=sys.stderr)\n"
        "group.links()"
    )
    assert cell.error is None
    pages = [data["text/html"] for data in cell.data()]
    assert pages[0] == "<b>0</b>" and pages[2] == "<b>1</b>"
    assert all("<svg" in page and "shm.0" in page for page in pages[1::2])
    assert cell.text("stderr") == "[0] aside\n[1] aside\n"


def test_what_ranks_display_alike_is_shown_once(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%pyfab -n 3 --links shm\n"
        "from IPython.display import HTML, display\n"
        "display(HTML('<i>two</i>' if group.rank else '<i>one</i>'))\n"
        "display(HTML('<b>all</b>'))\n"
        "'text'"
    )
    assert cell.error is None
    assert [data["text/html"] for data in cell.data()] == ["<i>one</i>", "<b>all</b>", "<i>two</i>"]
    assert cell.text().splitlines() == [
        "[0]",
        "[0, 1, 2]",
        "[0] 'text'",
        "[1, 2]",
        "[1] 'text'",
        "[2] 'text'",
    ]


def test_await_in_a_cell(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%pyfab -n 2\n"
        "with group.window(shape=4) as window:\n"
        "    await window[1 - group.rank].put(np.full(4, group.rank + 1.0), np.s_[:])\n"
        "    window.fence()\n"
        "    total = window.local.sum()\n"
        "total"
    )
    assert cell.error is None
    assert "8." in cell.text().splitlines()[0] and "4." in cell.text().splitlines()[1]


@pytest.mark.slow
def test_the_failure_of_a_rank_ends_the_others(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%pyfab -n 3\n"
        "print('before')\n"
        "if group.rank == 1:\n"
        "    raise LookupError('no luck')\n"
        "group.barrier()"
    )
    assert cell.text() == "[0] before\n[1] before\n[2] before\n"
    assert cell.error is not None
    assert "ranks 0, 2 of 3:\ninterrupted after the failure" in cell.error
    assert "rank 1 of 3:\nTraceback" in cell.error
    assert "    raise LookupError('no luck')\n" in cell.error and "_cell_ranks" not in cell.error
    assert kernel.no_children()


def test_a_failure_of_all_is_shown_once(kernel: Kernel) -> None:
    cell = kernel.run("%%pyfab -n 2\n1 +")
    assert cell.error is not None
    assert cell.error.count("SyntaxError") == 1 and "ranks 0, 1 of 2" in cell.error


@pytest.mark.slow
def test_ranks_out_of_time(kernel: Kernel) -> None:
    cell = kernel.run("%%pyfab -n 2 --timeout 1.5\nprint('waiting')\nimport time\ntime.sleep(1000)")
    assert cell.text() == "[0] waiting\n[1] waiting\n"
    assert cell.error is not None
    assert "ranks 0, 1 of 2:\ninterrupted after 1.5 s" in cell.error and "time.sleep(1000)" in cell.error


@pytest.mark.slow
def test_ranks_that_ignore_interrupts_are_killed(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%pyfab -n 2 --timeout 1.5\n"
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "time.sleep(1000)"
    )
    assert cell.error is not None and "did not react to an interrupt and was killed" in cell.error
    assert kernel.no_children()


CONNECTIONS = (
    "import gc, os, time\n"
    "from multiprocessing.connection import Connection\n"
    "if group.rank == 1:\n"
    "    for each in gc.get_objects():\n"
    "        if isinstance(each, Connection) and not each.closed:\n"
    "            {}\n"
    "time.sleep(1000)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "does,message",
    [
        (
            "os.write(each.fileno(), bytes([0, 0, 0, 4]) + b'junk')",
            "is no message of a rank .*; it was killed",
        ),
        ("os.close(each.fileno())", "has closed its stream; it was killed"),
    ],
)
def test_a_rank_that_spoils_its_stream_is_killed(kernel: Kernel, does: str, message: str) -> None:
    cell = kernel.run("%%pyfab -n 2\n" + CONNECTIONS.format(does))
    assert cell.error is not None and re.search(message, cell.error)
    assert kernel.no_children()


def test_an_interrupt_waits_for_the_end_of_a_message() -> None:
    mine, theirs = Pipe()
    rank = object.__new__(_Rank)
    rank._pipe, rank._sending = theirs, threading.Lock()
    content, came = bytes(10_000_000), []

    def interrupt_and_receive() -> None:
        mine.poll(TIMEOUT)
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            try:
                came.append(mine.recv())
            except EOFError:
                break

    reader = threading.Thread(target=interrupt_and_receive)
    reader.start()
    with pytest.raises(KeyboardInterrupt):
        rank._tell("stdout", content)
    theirs.close()
    reader.join()
    assert came == [("stdout", content)]


@pytest.mark.parametrize("waiting", ["group.barrier()", "time.sleep(1000)"])
def test_interrupting_the_kernel(kernel: Kernel, tmp_path: Path, waiting: str) -> None:
    request = kernel.start(
        "%%pyfab -n 2\n"
        "import pathlib, time\n"
        "if group.rank:\n"
        f"    pathlib.Path({str(tmp_path / 'there')!r}).touch()\n"
        f"    {waiting}\n"
        "time.sleep(1000)"
    )
    limit = time.monotonic() + TIMEOUT
    while not (tmp_path / "there").exists() and time.monotonic() < limit:
        time.sleep(0.01)
    kernel.interrupt()
    cell = kernel.finish(request)
    assert cell.error is not None
    assert "interrupted by Ctrl-C" in cell.error
    assert kernel.no_children()


@pytest.mark.slow
def test_ranks_that_stay_keep_their_variables(kernel: Kernel) -> None:
    assert "2 ranks over tcp" in kernel.run("%pyfab start -n 2 --links tcp").text()
    kernel.run("%%pyfab\nmine = np.arange(3) + group.rank")
    assert len(kernel.children()) == 2
    cell = kernel.run("%%pyfab\nif group.rank: mine / nothing\ngroup.barrier()")
    assert cell.error is not None and "NameError" in cell.error
    cell = kernel.run("%%pyfab\nlist(mine), group.allgather(group.rank)")
    assert cell.error is None
    assert "[1]" in cell.text() and "[0, 1]" in cell.text()
    assert "no ranks" in kernel.run("%pyfab stop").text()
    assert kernel.no_children()


def test_the_end_of_a_rank_is_told(kernel: Kernel) -> None:
    kernel.run("%pyfab start -n 2")
    children: list[psutil.Process] = kernel.children()
    children[1].kill()
    cell = kernel.run("%%pyfab\ngroup.barrier()")
    assert cell.error is not None and "the process ended: killed by SIGKILL" in cell.error
    assert "the ranks have ended" in cell.text("stderr")
    assert "no ranks are running" in kernel.run("%pyfab").text()


@pytest.mark.parametrize(
    "source,message",
    [
        ("%pyfab start -n 0", "at least one rank"),
        ("%pyfab start -n x", "invalid int value"),
        ("%pyfab begin", "invalid choice"),
        ("%%pyfab --ranks 3\n1", "unrecognized arguments"),
        ("%%pyfab -n 3\n1", "2 ranks over shm+tcp are running"),
        ("%pyfab start", "2 ranks are running"),
    ],
)
def test_wrong_usage(kernel: Kernel, source: str, message: str) -> None:
    if "running" in message:
        kernel.run("%pyfab start -n 2")
    cell = kernel.run(source)
    assert message in cell.text("stderr") + str(cell.error)


def test_links_that_cannot_be_opened(kernel: Kernel) -> None:
    cell = kernel.run("%%pyfab --links nowhere\n1")
    assert cell.error is not None and 'unknown provider "nowhere"' in cell.error


def test_live_counters(kernel: Kernel) -> None:
    cell = kernel.run(
        "import numpy as np, pyfab\n"
        "domain = pyfab.Domain('shm'); endpoint = domain.endpoint()\n"
        "region = domain.register(np.zeros(1000), pyfab.Access.REMOTE)\n"
        "me = endpoint.av.insert(endpoint.address)\n"
        "counters = pyfab.live(domain, interval=0.05)\n"
        "counters"
    )
    assert cell.error is None
    [shown] = [message["content"] for message in cell.messages if message["msg_type"] == "display_data"]
    assert "shm, regions: 1" in shown["data"]["text/html"]
    kernel.start("endpoint.put(np.ones(1000), me, region.remote)")
    for message in kernel.messages():
        if message["msg_type"] == "update_display_data":
            assert message["content"]["transient"] == shown["transient"]
            if "7.81 KiB" in message["content"]["data"]["text/html"]:
                break
    cell = kernel.run("endpoint.close(); region.close(); domain.close(); counters.close(); counters")
    assert cell.error is None
    assert "shm, closed" in cell.data()[0]["text/html"]
