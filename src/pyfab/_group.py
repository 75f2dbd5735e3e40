"""Processes that work together: who they are, how they meet, what they do together."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from html import escape
from types import TracebackType
from typing import Any, NamedTuple

from numpy.typing import DTypeLike, NDArray
from pyfab import _launch, _objects
from pyfab._control import Control
from pyfab._deadline import Deadline
from pyfab._domain import Domain
from pyfab._enums import Access
from pyfab._errors import BusyError, ClosedError, FabricError, InvalidArgumentError
from pyfab._region import RemoteRegion
from pyfab._rendezvous import exchange
from pyfab._table import Table
from pyfab._window import Window


class Link(NamedTuple):
    """How the bytes to one peer go."""

    peer: int
    host: str
    link: str
    how: str
    why: str


class Group:
    """A fixed number of processes, each of which can reach the memory that the others put into windows.

    `rank` and `size` say who this process is; all meet at `rendezvous` (``tcp://host:port``, where rank 0 listens;
    ``file:///folder``; ``torch``; or an mpi4py communicator) within `timeout` seconds, which is also the default of later calls.
    PYFAB_TOKEN, if set, must be the same for all that meet over tcp. `domain` is a Domain, which stays the caller's, or the
    spec of one to open: between machines name the interface, as in ``"shm+tcp:eth0"``, because an unnamed tcp listens on
    loopback alone; or all its arguments, as in ``{"spec": "shm", "coherent": False}``. `contexts` is the number of contexts of
    the endpoint.

    Methods marked *collective* are to be called by all ranks in the same order, from one thread at a time. They run over the
    group's own endpoint; nothing but the start needs the rendezvous.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        rendezvous: Any = "tcp://127.0.0.1:29400",
        domain: str | Domain | Mapping[str, Any] | None = "shm+tcp",
        contexts: int = 1,
        timeout: float | None = 60,
    ) -> None:
        if size < 1 or not 0 <= rank < size:
            raise InvalidArgumentError(f"rank={rank}, size={size}: ranks are 0 to size - 1")
        self.rank, self.size, self.timeout = rank, size, timeout
        self.peers: tuple[int, ...] = tuple(r for r in range(size) if r != rank)
        self._handles = tuple(range(size))  # of the ranks, in the address vector
        self._barrier_lock = threading.Lock()
        self._windows: list[Window] = []
        self._closed = False
        with contextlib.ExitStack() as undo:
            if isinstance(domain, Domain):
                self.domain = domain
            else:
                options = domain if isinstance(domain, Mapping) else {"spec": domain}
                self.domain = undo.enter_context(Domain(**options))
            self.endpoint = undo.enter_context(self.domain.endpoint(contexts=contexts))
            self._control = Control(self.domain, self.endpoint, rank, size)
            undo.callback(self._control.close)
            self._hosts = self._meet(rendezvous, timeout)
            self._resources = undo.pop_all()

    @classmethod
    def from_env(
        cls,
        domain: str | Domain | Mapping[str, Any] | None = "shm+tcp",
        contexts: int = 1,
        timeout: float | None = 60,
        *,
        rendezvous: Any = None,
        environment: Mapping[str, str] | None = None,
    ) -> Group:
        """A group as torchrun, mpirun, srun or PYFAB_RANK, PYFAB_SIZE and PYFAB_RENDEZVOUS describe it.

        The meeting place is `rendezvous` if given, then $PYFAB_RENDEZVOUS; then, where MASTER_ADDR and MASTER_PORT are set, the
        port after MASTER_PORT (torch needs that one for itself); then, on one node, a folder named after the job.
        """
        launch = _launch.from_environment(environment, rendezvous)
        return cls(launch.rank, launch.size, launch.rendezvous, domain, contexts, timeout)

    def barrier(self, timeout: float | None = -1) -> None:
        """Returns when all ranks have called it. Collective.

        Raises PeerLostError naming a rank that has ended, OperationTimeout naming ranks that did not come; after that one the
        call may be repeated.
        """
        self._check()
        self._control.barrier(self._timeout(timeout))

    def allgather(self, obj: Any, timeout: float | None = -1) -> list[Any]:
        """Everyone's `obj`, by rank. Collective.

        Objects of any size travel as JSON where that keeps them, or else as pickles: members of a group are the same program of
        the same user, so they trust each other's pickles.
        """
        self._check()
        return [
            _objects.decode(data)
            for data in self._control.allgather(_objects.encode(obj), self._timeout(timeout))
        ]

    def broadcast(self, obj: Any = None, root: int = 0, timeout: float | None = -1) -> Any:
        """The `obj` of rank `root`; what the others give is ignored. Collective. As for how objects travel, see `allgather`."""
        self._check()
        if not 0 <= root < self.size:
            raise InvalidArgumentError(f"root={root}: ranks are 0 to {self.size - 1}")
        data = _objects.encode(obj) if root == self.rank else b""
        return _objects.decode(self._control.broadcast(data, root, self._timeout(timeout)))

    def window(
        self,
        array: NDArray[Any] | None = None,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike = float,
        access: Access = Access.REMOTE,
        counters: int = 0,
        epochs: bool = False,
        dynamic: bool = False,
        max_parts: int = 64,
        timeout: float | None = -1,
    ) -> Window:
        """Opens memory of every rank to the others. Collective.

        Either `array`, used where it is and kept alive; or `shape` and `dtype` of a zeroed one that peers on the node can map,
        which is the fastest; or, with `dynamic`, arrays that each rank attaches and detaches later, at most `max_parts` at a
        time. Shapes and dtypes may differ between ranks. `access` is what the others may do. counters: how many each rank has
        for notified puts, `Window.counters`. epochs: operations outside of an epoch are refused (EpochError). If one rank fails,
        all raise: that one its own error, the others one that names it.
        """
        self._check()
        if counters < 0 or (dynamic and max_parts < 1):
            raise InvalidArgumentError(f"counters={counters}, max_parts={max_parts}: neither is negative")
        parts = max_parts if dynamic else 0
        return Window(self, array, shape, dtype, access, self._timeout(timeout), counters, epochs, parts)

    def links(self) -> Table[Link]:
        """Which peer is reached over which link, and why. Local."""
        self._check()
        return Table(Link, map(self._link, self.peers), title=f"links of rank {self.rank}")

    def close(self) -> None:
        """Waits for the others, so that no one loses memory in use, and ends. Collective, and harmless if repeated.

        Raises BusyError while windows are open. If peers have died, it waits no longer than it takes to notice.
        """
        if self._windows and not self._closed:
            raise BusyError(f"{len(self._windows)} windows of the group are open; close them first")
        self._end(wait=True)

    def __enter__(self) -> Group:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the windows, then the group; after an exception without waiting for the others."""
        self._end(wait=kind is None)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"domain={self.domain!r}"
        return f"Group(rank={self.rank}, size={self.size}, {state})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>" + ("" if self._closed else self.links()._repr_html_())

    def _link(self, peer: int) -> Link:
        try:
            return Link(peer, self._hosts[peer], *self.endpoint.report(peer))
        except FabricError as error:
            return Link(peer, self._hosts[peer], "-", "-", str(error))

    def _meet(self, rendezvous: Any, timeout: float | None) -> list[str]:
        """Exchanges names, fills the address vector so that handles are ranks, and returns the hosts."""
        card = {
            "host": socket.gethostname(),
            "address": base64.b64encode(self.endpoint.address).decode(),
            "control": base64.b64encode(self._control.remote).decode(),
        }
        deadline = Deadline(timeout)
        values = exchange(rendezvous, self.rank, self.size, json.dumps(card).encode(), timeout)
        cards = [json.loads(value) for value in values]
        handles = [self.endpoint.av.insert(base64.b64decode(card["address"])) for card in cards]
        if handles != list(range(self.size)):
            raise InvalidArgumentError(f"the address vector gave handles {handles[:4]}... instead of ranks")
        self._control.connect([RemoteRegion.from_bytes(base64.b64decode(card["control"])) for card in cards])
        self._control.barrier(deadline.remaining())
        return [str(card["host"]) for card in cards]

    def _end(self, wait: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if wait:
                with contextlib.suppress(FabricError):  # who is gone cannot be waited for
                    self.endpoint.flush(None, self.timeout)
                    self._control.barrier(self.timeout)
            for window in reversed(self._windows):
                window._release()
        finally:
            self._windows.clear()
            self._resources.close()

    def _memory_barrier(self) -> None:
        with self._barrier_lock:  # an atomic exchange with acquire and release order
            pass

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the group is closed")

    def _timeout(self, timeout: float | None) -> float | None:
        """-1 stands for the group's own timeout."""
        return self.timeout if timeout == -1 else timeout
