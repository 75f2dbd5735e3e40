"""The key of a group is replaced while it works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.core.addressing.key_ring import KeyRing
from pyfab.group.keys import Keys

TIMEOUT = 30
NEW = b"the key of tomorrow"
DOMAINS = ("of the group", "with a key", "without a key")


@pytest.fixture(params=DOMAINS)
def groups(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[pyfab.Group]]:
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:

        def domain() -> Any:
            if request.param == "of the group":
                return "shm+tcp"
            key = {"auth_key": b"chosen"} if request.param == "with a key" else {}
            return stack.enter_context(pyfab.Domain("shm+tcp", **key))

        made = [
            pool.submit(pyfab.Group, rank, 2, f"file://{tmp_path}/meeting", domain(), timeout=TIMEOUT)
            for rank in range(2)
        ]
        found = [one.result() for one in made]
        yield found
        list(pool.map(pyfab.Group.close, found))


def in_all(work: Any, groups: list[pyfab.Group], *arguments: list[Any]) -> list[Any]:
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(work, groups, *arguments))


def test_all_goes_on_under_another_key(groups: list[pyfab.Group], tmp_path: Path) -> None:
    place = f"file://{tmp_path}/joining"
    former = groups[0]._keys.secret(groups[0].domain)

    def work(group: pyfab.Group) -> list[Any]:
        with group.window(shape=2, dtype=np.int64) as window:
            part = group.split(0)
            group.replace_auth_key(NEW)
            window[1 - group.rank][0] = group.rank + 1
            window.fence()
            told = [int(window.local[0]), group.allgather(group.rank), part.allgather(group.rank)]
            with part.window(shape=2, dtype=np.int64) as later:
                later[1 - part.rank][1] = part.rank + 5
                later.fence()
                told.append(int(later.local[1]))
            part.close()
        wider = group.admit(place, 1, TIMEOUT)
        told.append(wider.allgather(wider.rank))
        wider.close()
        return told

    def join() -> list[Any]:
        with pyfab.Group.join(place, 0, 1, timeout=TIMEOUT) as wider:
            return wider.allgather(wider.rank)

    with ThreadPoolExecutor(3) as pool:
        joined = pool.submit(join)
        told = [one.result() for one in [pool.submit(work, group) for group in groups]]
        assert joined.result() == [0, 1, 2]
    assert told == [[2, [0, 1], [0, 1], 6, [0, 1, 2]], [1, [0, 1], [0, 1], 5, [0, 1, 2]]]
    control = pyfab.RemoteRegion.from_bytes(groups[0]._control.remote)
    refused = pytest.raises((pyfab.KeyRejectedError, pyfab.UnreachableError))
    for key, expected in ((former, refused), (NEW, nullcontext())):
        with pyfab.Domain("shm+tcp", auth_key=key) as domain, domain.endpoint() as endpoint:
            peer = endpoint.av.insert(groups[0].endpoint.address)
            with expected:
                endpoint.read(np.zeros(8, np.uint8), peer, control.bytes(0, 8)).result(TIMEOUT)


def test_different_keys_change_nothing(groups: list[pyfab.Group]) -> None:
    def replace(group: pyfab.Group, key: bytes) -> str:
        with pytest.raises(pyfab.InvalidArgumentError) as refused:
            group.replace_auth_key(key)
        return str(refused.value)

    before = [group.domain._core.auth_key for group in groups]
    told = in_all(replace, groups, [b"one", b"another"])
    assert ["rank 1: it gave another key" in told[0], "rank 0: it gave another key" in told[1]] == [True] * 2
    assert [group.domain._core.auth_key for group in groups] == before
    assert all(len(group.domain.auth_keys) <= 1 for group in groups)
    assert in_all(lambda group: group.allgather(group.rank), groups) == [[0, 1]] * 2


def test_replacing_twice_and_by_the_same(groups: list[pyfab.Group]) -> None:
    def work(group: pyfab.Group) -> list[Any]:
        for key in (NEW, NEW, b"the key after that"):
            group.replace_auth_key(key)
        return group.allgather(group.rank)

    assert in_all(work, groups) == [[0, 1]] * 2


def test_only_the_group_of_all_who_have_the_key_replaces_it(groups: list[pyfab.Group]) -> None:
    def work(group: pyfab.Group) -> list[Any]:
        part = group.split(group.rank)
        with pytest.raises(pyfab.InvalidArgumentError, match="2 have its key"):
            part.replace_auth_key(NEW)
        part.close()
        return group.allgather(group.rank)

    assert in_all(work, groups) == [[0, 1]] * 2


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., threading.Event]:
    """held_up(class, method, of): from now on calls of that method of this object wait for the event that is returned."""

    def hold(owner: type, method: str, is_it: Callable[[Any], bool]) -> threading.Event:
        go_on, real = threading.Event(), getattr(owner, method)

        def wait_first(self: Any, *arguments: Any) -> Any:
            if is_it(self):
                assert go_on.wait(TIMEOUT)
            return real(self, *arguments)

        monkeypatch.setattr(owner, method, wait_first)
        return go_on

    return hold


@pytest.mark.parametrize("step", ["first barrier", "second barrier"])
def test_who_gave_up_repeats_the_call(
    groups: list[pyfab.Group], step: str, held_up: Callable[..., threading.Event]
) -> None:
    """Rank 1 is late at a barrier, and passes it when rank 0 has given up."""
    late = groups[1]
    if step == "first barrier":
        go_on = held_up(KeyRing, "use", lambda ring: ring._core is late.domain._core)
    else:
        go_on = held_up(Keys, "replace", lambda keys: keys is late._keys)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(late.replace_auth_key, NEW, TIMEOUT)
        with pytest.raises(pyfab.OperationTimeout):
            groups[0].replace_auth_key(NEW, 0.5)
        go_on.set()
        if step == "second barrier":
            other.result()  # it needs nobody any more
        groups[0].replace_auth_key(NEW, TIMEOUT)
        other.result()
    assert in_all(lambda group: group.allgather(group.rank), groups) == [[0, 1]] * 2
    assert all(len(group.domain.auth_keys) <= 1 for group in groups)


def test_who_is_left_replaces_it_without_the_dead(
    groups: list[pyfab.Group], held_up: Callable[..., threading.Event]
) -> None:
    going, dying = groups
    go_on = held_up(Keys, "replace", lambda keys: keys is dying._keys)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(dying.replace_auth_key, NEW, 1)
        with pytest.raises(pyfab.OperationTimeout):
            going.replace_auth_key(NEW, 0.5)
        dying._end(wait=False)
        go_on.set()
        assert isinstance(other.exception(), pyfab.FabricError)
    alone = going.shrink(TIMEOUT)
    alone.replace_auth_key(NEW, TIMEOUT)
    assert alone.allgather(1) == [1]
    assert len(alone.domain.auth_keys) <= 1
    alone.close()
