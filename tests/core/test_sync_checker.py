"""What the checker says of programs: a report for each mistake, and none for those that are right."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab import Access, Group
from pyfab.testing import Peer, Target
from sync_memory import TIMEOUT, Memory


@pytest.fixture
def checked() -> Iterator[Memory]:
    with Memory(checker=True) as memory:
        yield memory


def line_of(function: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return (
        f"{inspect.getsourcefile(function)}:{first + next(i for i, line in enumerate(lines) if text in line)}"
    )


def late_read(memory: Memory) -> None:
    memory.array[8:12] = 1
    memory.get()
    with pytest.warns(pyfab.SyncWarning, match="sync_rdma_read came too late"):
        memory.domain.sync_rdma_read([memory.region])  # the call


def late_write(memory: Memory) -> None:
    memory.array[8:12] = 1
    memory.put(8, 12, 2)
    with pytest.warns(pyfab.SyncWarning, match="sync_rdma_write came too late"):
        memory.domain.sync_rdma_write([memory.region])  # the call


def late_write_after_a_store(memory: Memory) -> None:
    memory.put(8, 12, 2)
    memory.array[8:12] = 1
    with pytest.warns(pyfab.SyncWarning, match="sync_rdma_write came too late"):
        memory.domain.sync_rdma_write([memory.region])  # the call


def needless_read(memory: Memory) -> None:
    memory.array[8:12] = 1
    memory.domain.sync_rdma_read([memory.region[8:12]])
    with pytest.warns(pyfab.SyncWarning, match="sync_rdma_read was needless"):
        memory.domain.sync_rdma_read([memory.region[8:12]])  # the call


def needless_write(memory: Memory) -> None:
    memory.put(0, 4, 2)
    memory.domain.sync_rdma_write([memory.region[0:4]])
    with pytest.warns(pyfab.SyncWarning, match="sync_rdma_write was needless"):
        memory.domain.sync_rdma_write([memory.region[8:12]])  # the call


def missing_read(memory: Memory) -> None:
    memory.array[8:12] = 1
    memory.get()


def missing_write(memory: Memory) -> None:
    memory.put(8, 12, 2)
    memory.array.sum()


def missing_write_before(memory: Memory) -> None:
    memory.array[8:12] = 1
    memory.put(8, 12, 2)


def missing_write_between(memory: Memory) -> None:
    memory.put(8, 12, 2)
    memory.array[8:12] = 1
    with pytest.warns(pyfab.SyncWarning, match="sync_rdma_write is missing"):
        memory.domain.sync_rdma_read([memory.region])


MISTAKES = {
    late_read: ("late", "read", "get"),
    late_write: ("late", "write", "put"),
    late_write_after_a_store: ("late", "write", "put"),
    needless_read: ("needless", "read", "sync_rdma_read"),
    needless_write: ("needless", "write", "sync_rdma_write"),
    missing_read: ("missing", "read", "get"),
    missing_write: ("missing", "write", "put"),
    missing_write_before: ("missing", "write", "put"),
    missing_write_between: ("missing", "write", "put"),
}


@pytest.mark.req("SYNC-30")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_one_report(checked: Memory, mistake: Callable[[Memory], None]) -> None:
    mistake(checked)
    (report,) = checked.domain.sync_reports
    assert (report.kind, report.side, report.operation) == MISTAKES[mistake]
    assert (report.region, report.range) == (checked.region.lmr_context, range(8, 12))
    missing = report.kind == "missing"
    assert report.where == (line_of(Memory, "domain.register") if missing else line_of(mistake, "# the call"))
    assert report.where in str(report)
    assert checked.domain.sync_reports == [report]


def window_of_a_missing_sync(domain: pyfab.Domain, folder: Path) -> None:
    with Group(0, 1, rendezvous=f"file://{folder}", domain=domain) as group:
        window = group.window(shape=(64,), dtype=np.int64)  # the window
        window.local[:] = 1
        window[0].get(np.zeros(1, np.int64), np.s_[0:1]).result()


@pytest.mark.req("SYNC-30")
def test_a_report_names_the_programs_line_also_where_the_library_registered(tmp_path: Path) -> None:
    with pyfab.Domain("shm", coherent=False, checker=True) as domain:
        window_of_a_missing_sync(domain, tmp_path)
        places = {report.where for report in domain.sync_reports}
    assert places == {line_of(window_of_a_missing_sync, "# the window")}


@pytest.mark.req("SYNC-30")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
@pytest.mark.parametrize("alloc", [False, True])
def test_no_report_of_a_program_that_is_right(spec: str, alloc: bool) -> None:
    with pyfab.Domain(spec, checker=True) as domain, domain.endpoint() as endpoint:
        me = endpoint.av.insert(endpoint.address)
        array = domain.alloc(64, "i8") if alloc else np.zeros(64, "i8")
        with domain.register(array, Access.REMOTE) as region:
            remote, seen = region.remote, np.zeros(64, "i8")
            for turn in range(1, 20):
                array[:32] = turn
                domain.sync_rdma_read([array[:32]])
                endpoint.read(seen, me, remote).result(TIMEOUT)
                assert (seen[:32] == turn).all()
                array[32:48] = -turn
                domain.sync_rdma_write([array[32:]])  # before the put
                endpoint.write(np.full(16, turn), me, remote[48:]).result(TIMEOUT)
                endpoint.atomic(pyfab.AtomicOp.SUM, np.full(16, 1), me, remote[32:48]).result(TIMEOUT)
                domain.sync_rdma_write([region[256:300], region, region[300:]])
                assert (array[48:] == turn).all()
                assert (array[32:48] == 1 - turn).all()
            domain.sync_rdma_read([])
        assert domain.sync_reports == []


def store_carelessly(target: Target, name: int) -> None:
    target.kept[name].array[:4] = 1


def reports(target: Target) -> list[tuple[str, str, str]]:
    return [(report.kind, report.side, report.operation) for report in target.domain.sync_reports]


@pytest.mark.slow
@pytest.mark.req("SYNC-30")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
@pytest.mark.parametrize("alloc", [False, True])
def test_mistakes_that_show_in_another_process(spec: str, alloc: bool) -> None:
    with Peer(spec, checker=True) as peer, pyfab.Domain(spec) as domain, domain.endpoint() as endpoint:
        handle, seen = endpoint.av.insert(peer.address), np.zeros(64, np.uint8)
        exposed = peer.expose(np.zeros(64, np.uint8), alloc=alloc)
        endpoint.read(seen, handle, exposed.remote).result(TIMEOUT)
        peer.run(store_carelessly, exposed.name)
        endpoint.read(seen[4:], handle, exposed.remote[4:]).result(TIMEOUT)
        assert peer.run(reports) == []
        endpoint.read(seen, handle, exposed.remote).result(TIMEOUT)
        endpoint.write(np.ones(4, np.uint8), handle, exposed.remote[60:]).result(TIMEOUT)
        assert not seen.any()
        assert sorted(peer.run(reports)) == [("missing", "read", "get"), ("missing", "write", "put")]
        exposed.close()


@pytest.mark.req("SYNC-25", "SYNC-30")
def test_ends_tell_what_was_missing() -> None:
    """A load after the call cannot be seen; that the next put was not followed by a call can."""
    with Memory(checker=True) as memory:
        memory.put(0, 4, 1)
        memory.domain.sync_rdma_write([memory.region])
        memory.put(0, 4, 2)
        memory.array.sum()
        with pytest.warns(pyfab.SyncWarning, match=r"missing for bytes \[0, 4\)"):
            memory.region.close()
        assert [report.kind for report in memory.domain.sync_reports] == ["missing"]
    with pytest.warns(pyfab.SyncWarning, match=r"missing for bytes \[4, 8\)"), Memory(checker=True) as memory:
        memory.put(4, 8, 1)
    assert [report.range for report in memory.domain.sync_reports] == [range(4, 8)]


def test_domains_without_a_checker_report_nothing(memory: Memory) -> None:
    memory.put(0, 4, 1)
    memory.domain.sync_rdma_read([memory.region])
    assert memory.domain.sync_reports == []


def test_a_group_is_no_program_to_be_checked() -> None:
    with pyfab.Group(0, 1, domain={"spec": "shm", "checker": True}) as group:
        assert group.allgather("x" * 10_000) == ["x" * 10_000]
        group.barrier()
        with group.window(shape=4) as window:
            window.sync()
            window.fence()
        assert group.domain.sync_reports == []
