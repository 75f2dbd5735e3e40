"""How the members of a group find each other: one exchange of a few bytes per rank, before any fabric exists.

``tcp://host:port``  Rank 0 listens there until every rank has its answer; the others connect and retry until their timeout.
``file:///folder``   Files in a folder that all ranks see, made if it is missing and removed by the last rank.
``torch``            The TCPStore of torch.distributed at MASTER_ADDR:MASTER_PORT, or that of its default process group.
A communicator       Anything with mpi4py's ``allgather``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyfab._deadline import Deadline
from pyfab._errors import AccessDeniedError, InvalidArgumentError, OperationTimeout
from pyfab._frames import Channel, WrongToken, join_address, split_address, token_from_environment

_MAX_VALUE = 1 << 20  # bytes per rank
_RETRY = 0.05  # seconds between attempts to connect
_POLL = 0.005, 0.05  # seconds between looks into a folder: at first, at most


def exchange(rendezvous: Any, rank: int, size: int, value: bytes, timeout: float | None) -> list[bytes]:
    """Gives `value` to all ranks and returns everyone's, by rank.

    Raises OperationTimeout naming the ranks that did not come, InvalidArgumentError for a rendezvous that is none or for two
    ranks with one number, AccessDeniedError if PYFAB_TOKEN differs between the ranks or the folder is someone else's.
    """
    deadline = Deadline(timeout)
    if hasattr(rendezvous, "allgather"):
        return _through_communicator(rendezvous, rank, size, value)
    if not isinstance(rendezvous, str):
        raise InvalidArgumentError(f"rendezvous={rendezvous!r}: give a string or an mpi4py communicator")
    if rendezvous == "torch":
        return _through_torch(rank, size, value, deadline)
    url = urlsplit(rendezvous)
    if url.scheme == "tcp":
        try:
            host, port = split_address(url.netloc)
        except ValueError as error:
            raise InvalidArgumentError(f"rendezvous={rendezvous!r}: {error}") from None
        if size == 1:
            return [value]
        meet = _serve if rank == 0 else _call
        return meet(host, port, rank, size, value, deadline)
    if url.scheme == "file" and not url.netloc and url.path.startswith("/"):
        return _through_folder(Path(unquote(url.path)), rank, size, value, deadline)
    raise InvalidArgumentError(
        f"rendezvous={rendezvous!r}: write tcp://host:port, file:///folder or torch, or give an mpi4py communicator"
    )


def ranks_text(ranks: Iterable[int], size: int) -> str:
    """``rank 2 of 4``, ``ranks 1, 3 of 4``."""
    listed = sorted(ranks)
    shown = ", ".join(map(str, listed[:20])) + (", ..." if len(listed) > 20 else "")
    return f"{'rank' if len(listed) == 1 else 'ranks'} {shown} of {size}"


def _incomplete(arrived: Iterable[int], size: int, deadline: Deadline, where: str) -> OperationTimeout:
    arrived = sorted(arrived)
    missing = set(range(size)) - set(arrived)
    came = ", ".join(map(str, arrived)) or "none"
    return OperationTimeout(
        f"{ranks_text(missing, size)} did not arrive at {where} within {deadline}; arrived: {came}"
    )


# ---- tcp -----------------------------------------------------------------------------------------------------


class _Meeting:
    """What rank 0 knows: who came, with what. Every method may be called from any thread."""

    def __init__(self, size: int, where: str) -> None:
        self.size, self.where = size, where
        self.values: dict[int, bytes] = {}
        self.over = False
        self._talking = 0
        self._changed = threading.Condition()

    def arrive(self, rank: Any, size: Any, value: bytes) -> str | None:
        """Why this rank cannot come in, or None. ``again``: the meeting is over, its port will be free in a moment."""
        with self._changed:
            if self.over or self.complete:
                return "again"
            if size != self.size:
                return f"rank {rank} counts {size} ranks, rank 0 counts {self.size}"
            if not isinstance(rank, int) or not 0 <= rank < self.size:
                return f"rank {rank!r} is none of 0 to {self.size - 1}"
            if rank in self.values:
                return f"two processes call themselves rank {rank}"
            self.values[rank] = value
            self._changed.notify_all()
            return None

    @property
    def complete(self) -> bool:
        return len(self.values) == self.size

    def wait(self, timeout: float | None) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self.complete or self.over, timeout)
            return self.complete

    def talk(self, change: int) -> None:
        with self._changed:
            self._talking += change
            self._changed.notify_all()

    def end(self) -> None:
        """Lets all who wait go, and waits a moment until they have been answered."""
        with self._changed:
            self.over = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._talking == 0, 2.0)


def _serve(host: str, port: int, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    where = f"tcp://{join_address(host, port)}"
    meeting = _Meeting(size, where)
    meeting.arrive(rank, size, value)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=min(size, 1024))
    except OSError as error:
        raise InvalidArgumentError(
            f"rank 0 cannot listen on {where}: {error.strerror or error}. Choose a free port and an address of the machine"
            " that runs rank 0, with rendezvous= or PYFAB_RENDEZVOUS"
        ) from error
    token = token_from_environment()
    threading.Thread(
        target=_accept, args=(listener, meeting, token), name="pyfab-rendezvous", daemon=True
    ).start()
    try:
        meeting.wait(deadline.remaining())
    finally:
        meeting.end()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        listener.close()
    if not meeting.complete:
        raise _incomplete(meeting.values, size, deadline, where)
    return [meeting.values[r] for r in range(size)]


def _accept(listener: socket.socket, meeting: _Meeting, token: str) -> None:
    while not meeting.over:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection, meeting, token), daemon=True).start()


def _answer(connection: socket.socket, meeting: _Meeting, token: str) -> None:
    """Rank 0's side of one connection; whatever goes wrong is that connection's alone."""
    with connection, contextlib.suppress(OSError):
        channel = Channel.accept(connection, token, Deadline(10))
        header, value = channel.receive(Deadline(10), _MAX_VALUE)
        meeting.talk(+1)
        try:
            refused = meeting.arrive(header.get("rank"), header.get("size"), value)
            if refused:
                channel.send({"refused": refused}, deadline=Deadline(10))
                return
            patience = header.get("timeout")
            bounded = isinstance(patience, (int, float)) and 0 <= patience < 1e9
            complete = meeting.wait(patience if bounded else None)
            values = [meeting.values[r] for r in range(meeting.size)] if complete else []
            answer = {"arrived": sorted(meeting.values), "sizes": [len(value) for value in values]}
            channel.send(answer, b"".join(values), deadline=Deadline(10))
        finally:
            meeting.talk(-1)


def _call(host: str, port: int, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    where = f"tcp://{join_address(host, port)}"
    token, problem = token_from_environment(), "no time to try"
    while not deadline.over:
        try:
            channel = Channel.connect(host, port, token, deadline)
            try:
                channel.send(
                    {"rank": rank, "size": size, "timeout": deadline.remaining()}, value, deadline=deadline
                )
                answer, values = channel.receive(_after(deadline), max_body=_MAX_VALUE * size)
            finally:
                channel.close()
            refused = answer.get("refused")
            if refused and refused != "again":
                raise InvalidArgumentError(f"{where}: {refused}")
            if not refused:
                return _unpack(answer, values, size, deadline, where)
            problem = "its former meeting goes on"
        except WrongToken as error:
            raise AccessDeniedError(str(error)) from None
        except (InvalidArgumentError, OperationTimeout):
            raise
        except OSError as error:
            problem = error.strerror or str(error)
        time.sleep(min(_RETRY, deadline.remaining(_RETRY) or 0))
    raise OperationTimeout(f"rank 0 of {size} did not answer at {where} within {deadline}: {problem}")


def _after(deadline: Deadline) -> Deadline:
    """A little later, so that rank 0's list of who arrived comes before this side gives up."""
    left = deadline.remaining()
    return Deadline(None if left is None else left + 2)


def _unpack(answer: dict[str, Any], body: bytes, size: int, deadline: Deadline, where: str) -> list[bytes]:
    sizes = answer.get("sizes")
    if sizes == []:
        raise _incomplete([r for r in answer.get("arrived", []) if isinstance(r, int)], size, deadline, where)
    if not isinstance(sizes, list) or len(sizes) != size or sum(sizes) != len(body) or min(sizes) < 0:
        raise ConnectionError("rank 0's answer does not hold one value for each rank")
    values, start = [], 0
    for length in sizes:
        values.append(body[start : start + length])
        start += length
    return values


# ---- folder --------------------------------------------------------------------------------------------------


def _through_folder(folder: Path, rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    """Each rank links its file ``<rank>-<size>`` in and, having read all, a file ``<rank>-done``.

    Who sees that all are done renames the folder, which one rank alone can do, and removes it.
    """
    where = f"file://{folder}"
    pause = _POLL[0]
    while not _enter(folder, rank, size, value):
        if deadline.over:
            raise OperationTimeout(
                f"{where}: a former meeting did not end within {deadline}; remove the folder"
            )
        time.sleep(pause)
    while True:
        names = {path.name for path in folder.iterdir()}
        others = sorted(n for n in names if n.partition("-")[2].isdigit() and not n.endswith(f"-{size}"))
        if others:
            raise InvalidArgumentError(
                f"{where}: rank {rank} counts {size} ranks, but {others[0]} (rank-size) is there"
            )
        arrived = [r for r in range(size) if f"{r}-{size}" in names]
        if len(arrived) == size:
            break
        if deadline.over:
            raise _incomplete(arrived, size, deadline, where)
        time.sleep(min(pause, deadline.remaining(pause) or 0))
        pause = min(pause * 1.5, _POLL[1])
    values = [(folder / f"{r}-{size}").read_bytes() for r in range(size)]
    (folder / f"{rank}-done").touch()
    if all((folder / f"{r}-done").exists() for r in range(size)):
        swept = folder.with_name(f".{folder.name}-{rank}-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):  # another rank sweeps
            folder.rename(swept)
            shutil.rmtree(swept)
    return values


def _enter(folder: Path, rank: int, size: int, value: bytes) -> bool:
    """Puts this rank's file into the folder; False if a former meeting there is about to end."""
    own, draft = folder / f"{rank}-{size}", folder / f"draft-{rank}-{os.getpid()}-{threading.get_ident()}x"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise AccessDeniedError(f"file://{folder} belongs to another user (uid {folder.stat().st_uid})")
        draft.write_bytes(value)
        try:
            own.hardlink_to(draft)
        finally:
            draft.unlink()
    except FileNotFoundError:  # swept between two of these lines
        return False
    except FileExistsError:
        if (folder / f"{rank}-done").exists() or not own.exists():
            return False
        raise InvalidArgumentError(
            f"file://{folder}: rank {rank} is there already. Either two processes call themselves rank {rank}, or a former job"
            " ended before all its ranks had met: then remove the folder"
        ) from None
    return True


# ---- other libraries -----------------------------------------------------------------------------------------


def _through_communicator(communicator: Any, rank: int, size: int, value: bytes) -> list[bytes]:
    if (communicator.Get_rank(), communicator.Get_size()) != (rank, size):
        raise InvalidArgumentError(
            f"rank {rank} of {size}, but the communicator says {communicator.Get_rank()} of {communicator.Get_size()}"
        )
    return [bytes(part) for part in communicator.allgather(value)]


def _through_torch(rank: int, size: int, value: bytes, deadline: Deadline) -> list[bytes]:
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise InvalidArgumentError(
            'rendezvous="torch" needs the package torch; install it, or use tcp://'
        ) from error
    store = _torch_store(dist, rank, size, deadline)
    turn = store.add(
        f"pyfab/{rank}/turn", 1
    )  # the n-th group of this rank meets the n-th group of the others
    store.set(f"pyfab/{turn}/{rank}", value)
    keys = [f"pyfab/{turn}/{r}" for r in range(size)]
    while not store.check(keys):
        if deadline.over:
            raise _incomplete(
                [r for r in range(size) if store.check([keys[r]])], size, deadline, "torch's store"
            )
        time.sleep(_POLL[1])
    return [bytes(store.get(key)) for key in keys]


_torch_stores: dict[
    tuple[str, int], Any
] = {}  # rank 0's serves the others, so it stays until the process ends


def _torch_store(dist: Any, rank: int, size: int, deadline: Deadline) -> Any:
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    from datetime import timedelta

    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as error:
        raise InvalidArgumentError(
            f'rendezvous="torch" needs the environment variable {error.args[0]}'
        ) from None
    # The same rule as torch's env://, so that both can share the port: torchrun's agent has the store, or else rank 0.
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if (host, port) not in _torch_stores:
        timeout = timedelta(seconds=deadline.remaining() or 3600)
        _torch_stores[host, port] = dist.TCPStore(
            host, port, size, serves, timeout, wait_for_workers=False, multi_tenant=True
        )
    return _torch_stores[host, port]
