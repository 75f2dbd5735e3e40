"""What a failed call of a group leaves behind: nothing that only the cycle collector would find."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyfab
import pytest

RANKS = 3


class Stage(NamedTuple):
    group: pyfab.Group
    folder: Path
    meet: Callable[[], Any]  # waits for the other ranks, which may leave afterwards


Scene = Callable[[Stage], None]


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def nobody_comes(stage: Stage) -> None:
    with pytest.raises(pyfab.OperationTimeout):
        stage.group.admit(f"file://{stage.folder}/nobody", 1, timeout=0.5)
    stage.meet()


def one_leaves(stage: Stage) -> None:
    if stage.group.rank:
        for data in ("shown", "not shown, as the call before did not end"):
            with pytest.raises(pyfab.PeerLostError, match="rank 0"):
                stage.group.allgather(data)
        stage.group.shrink().leave()


def one_leaves_a_split(stage: Stage) -> None:
    if stage.group.rank:
        with pytest.raises(pyfab.PeerLostError):
            stage.group.split(0)
    else:  # all of it but the end
        control = stage.group._new_control()
        stage.group._allgather((0, 0, control.remote), -1, "split()")
        control.close()


def one_cannot_open_a_window(stage: Stage) -> None:
    with pytest.raises(pyfab.InvalidArgumentError):
        stage.group.window(shape=3, dtype=object if stage.group.rank == 1 else np.int64)
    stage.meet()


def a_put_is_refused(stage: Stage) -> None:
    window = stage.group.window(shape=RANKS, access=pyfab.Access.REMOTE_READ)
    window.fence()
    window[(stage.group.rank + 1) % RANKS].put(np.ones(1), slice(0, 1))
    with pytest.raises(pyfab.AccessDeniedError):
        window.fence()
    stage.meet()


def a_window_of_one_who_left(stage: Stage) -> None:
    window = stage.group.window(shape=RANKS)
    stage.meet()
    if stage.group.rank:
        with pytest.raises(pyfab.PeerLostError), window.start([0], timeout=5):
            pass


def one_leaves_with_a_put_under_way(stage: Stage) -> None:
    window = stage.group.window(shape=RANKS)
    window.fence()
    if stage.group.rank == 0:
        stage.group.leave()
    stage.meet()
    if stage.group.rank:
        with contextlib.suppress(pyfab.FabricError):  # or it fails in the fence
            window[0].put(np.ones(1), slice(0, 1))
        window[3 - stage.group.rank].put(np.ones(RANKS + 1)[:1], slice(0, 1))
        with pytest.raises(pyfab.FabricError):
            window.fence()


def one_leaves_while_others_cannot_open_a_window(stage: Stage) -> None:
    if stage.group.rank:
        with pytest.raises(pyfab.PeerLostError):
            stage.group.window(shape=3, dtype=object)


SCENES: list[Scene] = [
    nobody_comes,
    one_leaves,
    one_leaves_a_split,
    one_cannot_open_a_window,
    a_put_is_refused,
    a_window_of_one_who_left,
    one_leaves_with_a_put_under_way,
    one_leaves_while_others_cannot_open_a_window,
]


@pytest.mark.slow
@pytest.mark.parametrize("links", ["shm", "tcp"])
@pytest.mark.parametrize("scene", SCENES)
def test_a_failed_call_keeps_nothing(scene: Scene, links: str, tmp_path: Path) -> None:
    domains: list[weakref.ref[pyfab.Domain]] = []
    wrong: list[Any] = []
    meeting = threading.Barrier(RANKS)

    def rank(number: int) -> None:
        group = pyfab.Group(number, RANKS, f"file://{tmp_path}/start", domain=links, timeout=20)
        domains.append(weakref.ref(group.domain))
        try:
            scene(Stage(group, tmp_path, lambda: meeting.wait(20)))
        except BaseException as error:  # told without its frames, which would keep the domain
            wrong.append(repr(error))
        finally:
            group.leave()

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(RANKS)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert not wrong
    assert [domain() for domain in domains] == [None] * RANKS
