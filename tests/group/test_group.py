"""Groups: collectives over the group's own endpoint, and what happens when a rank dies, stops or stays away."""

from __future__ import annotations

import functools
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyfab
import pytest

StartRanks = Callable[..., "list[subprocess.Popen[str]]"]


def collect(group: pyfab.Group) -> list[Any]:
    seen: list[Any] = []
    for turn in range(20):
        group.barrier()
        objects = (group.rank, {"turn": turn, 7: (1, 2)}, b"x" * (group.rank * 5000), np.arange(turn))
        seen.append([(r, d, len(b), a.sum()) for r, d, b, a in group.allgather(objects)])
        root = turn % group.size
        seen.append(group.broadcast(["from", group.rank, "ä" * 3000 * turn], root)[:2])
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_collectives_give_everyone_the_same(links: str, size: int) -> None:
    expected: list[Any] = []
    for turn in range(20):
        expected.append([(r, {"turn": turn, 7: (1, 2)}, r * 5000, sum(range(turn))) for r in range(size)])
        expected.append(["from", turn % size])
    assert pyfab.spawn(collect, size, links=links, timeout=60) == [expected] * size


def exchange_megabytes(group: pyfab.Group) -> bool:
    mine = np.full(3_000_000, group.rank, np.uint8)
    return all((theirs == rank).all() for _ in range(3) for rank, theirs in enumerate(group.allgather(mine)))


@pytest.mark.slow
def test_objects_of_any_size(links: str) -> None:
    assert pyfab.spawn(exchange_megabytes, 3, links=links, timeout=60) == [True] * 3


def no_one_leaves_early(group: pyfab.Group) -> bool:
    with group.window(shape=group.size, dtype=np.int64) as window:
        ok = True
        for turn in range(1, 200):
            for peer in range(group.size):
                window[peer][group.rank] = turn
            group.barrier()
            ok &= bool((window.local >= turn).all())
        return ok


@pytest.mark.slow
def test_a_barrier_separates_phases(links: str) -> None:
    assert pyfab.spawn(no_one_leaves_early, 4, links=links, timeout=100) == [True] * 4


def test_objects_keep_their_types() -> None:
    with pyfab.Group(0, 1, domain="shm") as group:
        for obj in (
            None,
            True,
            1.5,
            "ü",
            [1, [2]],
            {"a": [None]},
            (1, 2),
            {1: 2},
            b"\x00",
            float("inf"),
            2**80,
            {1, 2},
        ):
            (back,) = group.allgather(obj)
            assert back == obj
            assert type(back) is type(obj)


@pytest.mark.slow
def test_links_say_who_is_reached_how(links: str) -> None:
    tables = pyfab.spawn(pyfab.Group.links, 3, links=links, timeout=30)
    for rank, table in enumerate(tables):
        assert [row.peer for row in table] == [peer for peer in range(3) if peer != rank]
        assert all(row.link.split(".")[0] == links.split("+")[0] for row in table)
        assert all(row.how and row.why and row.host for row in table)
        assert repr(table).splitlines()[0].split() == ["peer", "host", "link", "path", "how", "why"]
        assert table._repr_html_().count("<tr>") == 3
        assert table.records()[0].keys() == {"peer", "host", "link", "path", "how", "why"}


DYING = """
import os, signal, sys, pyfab
with pyfab.Group.from_env(sys.argv[1], timeout=20) as group:
    group.barrier()
    if group.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.barrier()
    except pyfab.PeerLostError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_dead_rank_is_named_to_all_others(links: str, start_ranks: StartRanks) -> None:
    ranks = start_ranks(DYING, 4, links)
    for rank in (0, 1, 3):
        output, _ = ranks[rank].communicate(timeout=60)
        assert re.fullmatch(r"ranks? [\d, ]*2.* of 4 ended, left .*\n", output), output
        assert ranks[rank].returncode == 0


MANUAL = """
import sys, numpy as np, pyfab
with pyfab.Domain(sys.argv[1], progress="manual") as domain, pyfab.Group.from_env(domain, timeout=30) as group:
    with group.window(shape=group.size) as window:
        for peer in range(group.size):
            window[peer].put(group.rank, group.rank)
        window.fence()
        print(window.local.tolist(), group.allgather(group.rank))
"""


@pytest.mark.slow
def test_groups_progress_without_a_thread(links: str, start_ranks: StartRanks) -> None:
    for process in start_ranks(MANUAL, 3, links):
        assert process.communicate(timeout=60)[0] == "[0.0, 1.0, 2.0] [0, 1, 2]\n"


def look_often(group: pyfab.Group, looks: Any) -> tuple[int, int]:
    """Rank 0 comes to the barrier when each of the others has looked several times why it waits."""
    control = group._control
    asked: set[int] = set()
    look_at, last_in_line = control._look, control._last_in_line

    def noted(rank: int, *where: int) -> Any:
        if looks[group.rank] < LOOKS:
            asked.add(rank)
        return look_at(rank, *where)

    def counted(*line: int) -> int:
        found = last_in_line(*line)
        if looks[group.rank] < LOOKS:
            looks[group.rank] += 1
        return found

    control._look, control._last_in_line = noted, counted  # type: ignore[method-assign]
    while group.rank == 0 and min(looks[1:]) < LOOKS:
        time.sleep(0.01)
    group.barrier(60)
    return len(asked), looks[group.rank]


LOOKS = 3


@pytest.mark.slow
def test_ranks_that_wait_ask_few_of_the_others() -> None:
    """Whoever asks connects: if all asked all, waiting would cost a group the square of its size."""
    size = 24
    looks = mmap.mmap(-1, size)
    for asked, looked in pyfab.spawn(lambda group: look_often(group, looks), size, links="shm")[1:]:
        assert looked == LOOKS
        assert asked < size // 2


HIDDEN = """
import os, signal, sys, pyfab
with pyfab.Group.from_env(sys.argv[1], timeout=60) as group:
    group.barrier()
    if group.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if group.rank == 3:  # it stays away from the barrier, so the others wait for it, and knows of the death
            print(*group.shrink().lost)
        else:
            group.barrier()
    except pyfab.PeerLostError as error:
        print(error)
        print(*group.shrink().lost)
"""


@pytest.mark.slow
def test_ranks_that_wait_hear_of_a_death_from_those_that_stay_away(start_ranks: StartRanks) -> None:
    ranks = start_ranks(HIDDEN, 4, "shm")
    for rank in (0, 1, 3):
        output, _ = ranks[rank].communicate(timeout=60)
        assert output.splitlines()[-1] == "2", output


STOPPED = """
import os, signal, sys, pyfab
with pyfab.Group.from_env(sys.argv[1], timeout=20) as group:
    if group.rank == 1:
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        try:
            group.barrier(1.0)
        except (pyfab.OperationTimeout, pyfab.PeerLostError) as error:
            print(error, flush=True)
        group.barrier(20)  # carries on
    if group.rank == 1:
        group.barrier(20)
    print("met", flush=True)
"""


@pytest.mark.slow
def test_a_barrier_that_timed_out_names_who_did_not_come_and_can_be_repeated(start_ranks: StartRanks) -> None:
    ranks = start_ranks(STOPPED, 3, "shm")
    outputs = []
    for rank in (0, 2):
        stdout = ranks[rank].stdout
        assert stdout is not None
        outputs.append(stdout.readline())
    for line in outputs:  # on a busy machine the third may be late as well
        assert re.search(r"ranks? (0, )?1(, 2)? of 3 did not come within 1 s", line), line
    ranks[1].send_signal(signal.SIGCONT)
    for process in ranks:
        output, _ = process.communicate(timeout=60)
        assert output.splitlines()[-1] == "met"
        assert process.returncode == 0


CLOSES = """
import os, signal, warnings, pyfab
group = pyfab.Group.from_env("shm", timeout=5)
if group.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    group.close()
print([str(warning.message) for warning in seen])
"""


@pytest.mark.slow
def test_closing_beside_a_stopped_rank_names_it(start_ranks: StartRanks) -> None:
    ranks = start_ranks(CLOSES, 2)
    output, _ = ranks[0].communicate(timeout=60)
    ranks[1].send_signal(signal.SIGCONT)
    ranks[1].communicate(timeout=60)
    assert re.search("without waiting any longer: .*rank 1 of 2 did not", output), output


def repeat_an_allgather(group: pyfab.Group) -> list[str]:
    with group.window(shape=1) as window:
        if group.rank == 0:
            with pytest.raises(pyfab.OperationTimeout):
                group.allgather("first", timeout=0.1)
            with pytest.raises(pyfab.InvalidArgumentError, match="repeat it with the same data"):
                group.allgather("second")
            window[1][0] = 1
        else:
            while window.local[0] == 0:
                window.sync()
        return group.allgather("first" if group.rank == 0 else "late")


@pytest.mark.slow
def test_an_allgather_that_timed_out_cannot_be_repeated_with_other_data() -> None:
    assert pyfab.spawn(repeat_an_allgather, 2, links="shm", timeout=60) == [["first", "late"]] * 2


def read_too_late(control: Any, read: Any, *arguments: Any) -> None:
    """Stands in for `control._read` once: the first answer does not come in time."""

    def late(*_: object) -> None:
        raise pyfab.OperationTimeout("injected")

    with pytest.MonkeyPatch.context() as patch:
        control._read = read
        patch.setattr(control, "settle", late)
        read(*arguments)


def repeat_an_allgather_that_timed_out_while_it_read(group: pyfab.Group) -> list[list[str]]:
    found = []
    control = group._control
    for data in ("first", "second", "x" * 10_000):  # the last one is no part of the box
        own = f"{data} of {group.rank}"
        if group.rank == 0:
            control._read = functools.partial(read_too_late, control, control._read)  # type: ignore[method-assign]
            with pytest.raises(pyfab.OperationTimeout, match="injected"):
                group.allgather(own)
            with pytest.raises(pyfab.InvalidArgumentError, match="repeat it with the same data"):
                group.allgather("something else")
        if group.rank == 0 and data == "second":
            group.barrier()  # completes it
        else:
            found.append(group.allgather(own))
    return found


@pytest.mark.slow
def test_an_allgather_that_timed_out_while_it_read_is_completed() -> None:
    """Rank 0 was a call ahead after that, and got the second data for the first."""
    first, second, large = (
        [f"{data} of {rank}" for rank in range(2)] for data in ("first", "second", "x" * 10_000)
    )
    found = pyfab.spawn(repeat_an_allgather_that_timed_out_while_it_read, 2, links="shm", timeout=60)
    assert found == [[first, large], [first, second, large]]


def exchange_after_a_barrier_that_timed_out(group: pyfab.Group) -> list[list[str]]:
    with group.window(shape=1) as window:
        found = [group.allgather(f"old {number} of {group.rank}") for number in range(2)]  # in both boxes
        if group.rank == 0:
            with pytest.raises(pyfab.OperationTimeout):
                group.barrier(timeout=0.1)
            for exchange in (group.allgather, group.broadcast):
                with pytest.raises(pyfab.InvalidArgumentError, match="repeat it before anything else"):
                    exchange("new")
            window[1][0] = 1
        else:
            while window.local[0] == 0:
                window.sync()
        group.barrier()
        return [*found[2:], group.allgather(f"new of {group.rank}")]


@pytest.mark.slow
def test_after_a_barrier_that_timed_out_nothing_old_is_delivered() -> None:
    expected = [[f"new of {rank}" for rank in range(2)]]
    assert pyfab.spawn(exchange_after_a_barrier_that_timed_out, 2, links="shm", timeout=60) == [expected] * 2


def test_from_env_without_a_launcher() -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match="launcher"):
        pyfab.Group.from_env(environment={})


MPI = "import pyfab\nwith pyfab.Group.from_env('shm') as g: print(sorted(g.allgather(g.rank)), flush=True)"


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun is not installed (apt-get install openmpi-bin)"
)
def test_a_real_mpirun() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYFAB_")}
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ran = subprocess.run(
        ["mpirun", "--oversubscribe", "-np", "3", sys.executable, "-c", MPI],
        env=environment | allowed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout.count("[0, 1, 2]"), ran.returncode) == (3, 0), ran.stderr


@pytest.mark.parametrize("rank,size", [(-1, 2), (2, 2), (0, 0)])
def test_ranks_out_of_range(rank: int, size: int) -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match="ranks are 0 to size - 1"):
        pyfab.Group(rank, size)


def test_a_group_of_one_and_its_end() -> None:
    group = pyfab.Group(0, 1, domain="shm")
    assert (group.peers, len(group.links())) == ((), 0)
    window = group.window(shape=3)
    with pytest.raises(pyfab.BusyError, match="1 windows"):
        group.close()
    window.close()
    assert "rank=0, size=1" in group._repr_html_()
    group.close()
    group.close()
    assert "closed" in repr(group)
    assert "closed" in group._repr_html_()
    for call in (
        group.barrier,
        group.links,
        lambda: group.allgather(1),
        lambda: group.window(shape=1),
        group.__enter__,
    ):
        with pytest.raises(pyfab.ClosedError):
            call()


def test_a_domain_of_the_callers_stays_open() -> None:
    with pyfab.Domain("shm") as domain:
        with pyfab.Group(0, 1, domain=domain) as group:
            assert group.domain is domain
        assert not domain.closed


def test_failing_to_meet_leaves_nothing_open() -> None:
    with pyfab.Domain("shm") as domain:
        with pytest.raises(pyfab.OperationTimeout):
            pyfab.Group(1, 2, "tcp://127.0.0.1:9", domain=domain, timeout=0.1)
        assert domain.stats()["regions"] == 0


def test_bad_arguments() -> None:
    with pyfab.Group(0, 1, domain="shm") as group:
        with pytest.raises(pyfab.InvalidArgumentError, match="root=1"):
            group.broadcast(1, root=1)
        with pytest.raises(ValueError, match="timeout=-2"):
            group.barrier(-2)


class Communicator:
    """What a group meets through, with mpi4py's names."""

    def __init__(self, group: pyfab.Group) -> None:
        self._group, self.calls = group, 0

    def Get_rank(self) -> int:
        return self._group.size - 1 - self._group.rank

    def Get_size(self) -> int:
        return self._group.size

    def allgather(self, value: bytes) -> list[bytes]:
        self.calls += 1
        return self._group.allgather(value)[::-1]


def meet_through_a_communicator(group: pyfab.Group) -> list[int]:
    for arguments in ((0,), (Communicator(group), 2)):
        with pytest.raises((pyfab.InvalidArgumentError, TypeError)):
            pyfab.Group(*arguments)
    communicator = Communicator(group)
    with pyfab.Group(communicator, domain="shm") as other:
        assert communicator.calls == 2
        return other.allgather(group.rank)


@pytest.mark.slow
def test_a_communicator_tells_rank_and_size() -> None:
    assert pyfab.spawn(meet_through_a_communicator, 3, links="shm", timeout=60) == [[2, 1, 0]] * 3
