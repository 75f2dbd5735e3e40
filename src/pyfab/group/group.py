"""Processes that work together: who they are, how they meet, and what they do together."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
from collections.abc import Mapping
from html import escape
from types import TracebackType
from typing import Any

from numpy.typing import DTypeLike, NDArray
from pyfab import _core
from pyfab.core.deadline import Deadline
from pyfab.core.domain import Domain
from pyfab.core.enums import Access
from pyfab.core.errors import (
    BusyError,
    InvalidArgumentError,
    OperationTimeout,
    words_of,
)
from pyfab.core.region import RemoteRegion
from pyfab.group import path_choice
from pyfab.group.admission import agree_on_key, cards_of, given_key, members_of, places_of
from pyfab.group.control import Control
from pyfab.group.key_replacement import replace_key
from pyfab.group.keys import Keys
from pyfab.group.links import LinkReports
from pyfab.group.membership import CAPACITY, GRACE, Members, Shared, settle
from pyfab.group.messages import Messages
from pyfab.group.window import Wanted, Window
from pyfab.meeting import launchers
from pyfab.meeting.rendezvous import meeting
from pyfab.meeting.rendezvous_ray import KeyValueStore, links_of_this_node
from pyfab.meeting.rendezvous_torch import ProcessGroup


class Group(Members, Messages, LinkReports):
    """Processes that work together. Each can reach the memory that the others put into windows.

    `rank` and `size` say who this process is; an mpi4py communicator alone, ``Group(MPI.COMM_WORLD)``, tells both. All meet at
    `rendezvous` within `timeout` seconds, which is also the default of later calls. It is ``tcp://host:port``, where rank 0
    listens; ``file:///folder``; ``torch``; a store with set, get and wait, such as torch's; or an mpi4py communicator.

    Only processes of this user on this host can join, unless all have the same PYFAB_TOKEN, or they meet in a folder or through a
    communicator. At the meeting they get a random authorization key, so that no other process reaches their endpoints. A domain
    that was opened with an `auth_key` keeps its own key.

    `domain` is a Domain, which the caller closes; or the spec of a domain to open; or all its arguments, as in ``{"spec": "shm",
    "coherent": False}``. Between machines, name the interface in the spec, as in ``"shm+tcp:eth0"``: tcp without a name listens
    only on loopback. `contexts` is the number of contexts of the endpoint.

    The members of a group never change; `split`, `shrink` and `admit` make new groups. The `epoch` of the new group is one
    higher.

    All ranks call *collective* methods in the same order, from one thread at a time. If the ranks call different ones, each gets
    InvalidArgumentError, which says who called what. These methods use the group's own endpoint.
    """

    def __init__(
        self,
        rank: Any,
        size: int | None = None,
        rendezvous: Any = "tcp://127.0.0.1:29400",
        domain: str | Domain | Mapping[str, Any] | None = "shm+tcp",
        contexts: int = 1,
        timeout: float | None = 60,
    ) -> None:
        if hasattr(rank, "allgather") and size is None:
            rank, size, rendezvous = rank.Get_rank(), rank.Get_size(), rank
        if size is None:
            raise InvalidArgumentError(
                f"Group({rank!r}): give rank and size, or a communicator of mpi4py alone"
            )
        if size < 1 or not 0 <= rank < size:
            raise InvalidArgumentError(f"rank={rank}, size={size}: ranks are 0 to size - 1")
        self._begin(rank, size, timeout)
        with contextlib.ExitStack() as undo:
            with meeting(rendezvous, rank, size, timeout) as exchange:
                self._open(domain, contexts, agree_on_key(exchange, rank, given_key(domain)), undo)
                cards = cards_of(exchange(self._card()))
            self._settle(cards, Deadline(timeout), undo)

    def _open(
        self,
        domain: str | Domain | Mapping[str, Any] | None,
        contexts: int,
        secret: bytes,
        undo: contextlib.ExitStack,
    ) -> None:
        """Opens the domain and the endpoint with the group's key; a domain that has a key keeps its own."""
        if isinstance(domain, Domain):
            self.domain = domain
        else:
            options = dict(domain) if isinstance(domain, Mapping) else {"spec": domain}
            self.domain = undo.enter_context(Domain(**{"auth_key": secret} | options))
        self._keys = Keys(secret, bool(self.domain._core.auth_key), self.size)
        opened = self.domain._open_endpoint(contexts=contexts, auth_key=self._keys.regions, exempt=True)
        self.endpoint = undo.enter_context(opened)
        self._control = self._new_control(max(CAPACITY, self.size))
        undo.callback(lambda: self._control.close())

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
        """Makes a group from what torchrun, mpirun, srun or PYFAB_RANK, PYFAB_SIZE and PYFAB_RENDEZVOUS tell in the environment.

        The meeting place is the first of these that exists: `rendezvous`; $PYFAB_RENDEZVOUS; the store of torchrun's agent; if
        MASTER_ADDR and MASTER_PORT are set, the port after MASTER_PORT (torch needs MASTER_PORT for itself); on one node, a
        folder that is named after the job.
        """
        launch = launchers.from_environment(environment, rendezvous)
        return cls(launch.rank, launch.size, launch.rendezvous, domain, contexts, timeout)

    @classmethod
    def from_torch(
        cls,
        process_group: Any = None,
        domain: str | Domain | Mapping[str, Any] | None = "shm+tcp",
        contexts: int = 1,
        timeout: float | None = 60,
    ) -> Group:
        """Makes a group of the processes of `process_group`, by default of the default process group of torch.distributed.

        All members of the process group call it. They meet through it, with its backend and its timeout; afterwards nothing uses
        it. InvalidArgumentError if `init_process_group` was not called, or if this process is no member.
        """
        return cls(ProcessGroup(process_group), domain=domain, contexts=contexts, timeout=timeout)

    @classmethod
    def from_ray(
        cls,
        name: str,
        rank: int,
        size: int,
        domain: str | Domain | Mapping[str, Any] | None = None,
        contexts: int = 1,
        timeout: float | None = 60,
    ) -> Group:
        """Makes a group of actors or tasks of Ray: each calls this with the same name and its own rank, 0 to size - 1.

        They meet in the key-value store of the cluster. Use a name for one meeting only. On several nodes, all need the same
        PYFAB_TOKEN. domain: by default shared memory, and tcp at the address that Ray uses.
        """
        return cls(rank, size, KeyValueStore(name), domain or links_of_this_node(), contexts, timeout)

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

        The memory is `array`, which is used where it is and kept alive; or a zeroed array of `shape` and `dtype`, which is the
        fastest, because peers on the node can map it; or, with `dynamic`, arrays that each rank attaches and detaches later, at
        most `max_parts` at a time. Shapes and dtypes may differ between ranks. `access` is what the others may do. counters: how
        many counters of notified puts each rank has (`Window.counters`). epochs: whether operations outside of an epoch are
        refused (EpochError). If one rank fails, all raise: that rank its own error, the others an error that names it.
        """
        self._check()
        if counters < 0 or (dynamic and max_parts < 1):
            raise InvalidArgumentError(f"counters={counters}, max_parts={max_parts}: neither is negative")
        parts = max_parts if dynamic else 0
        wanted = Wanted(array, shape, dtype, access, counters, parts)
        return Window(self, wanted, self._timeout(timeout), epochs=epochs)

    # --- membership

    def split(self, color: Any, key: int = 0, timeout: float | None = -1) -> Group | None:
        """Makes a group of the ranks that give the same `color`. Returns None to ranks whose `color` is None. Collective.

        Its ranks are in the order of `key`; ranks with the same `key` keep their order. The new group uses the endpoint of this
        group, and can still be used after this one is closed.
        """
        self._check()
        deadline = Deadline(self._timeout(timeout))
        control = self._new_control()
        with contextlib.ExitStack() as undo:
            undo.callback(control.close)
            cards = self._allgather((color, key, control.remote), deadline.remaining(), "split()")
            members = [r for r in range(self.size) if color is not None and cards[r][0] == color]
            ranks = sorted(members, key=lambda r: (cards[r][1], r))
            if not ranks:
                return None
            group = self._descend(control, ranks.index(self.rank), ranks, [cards[r][2] for r in ranks])
            undo.callback(group.leave)
            settle(group._control, deadline)
            undo.pop_all()
        return group

    def replace_auth_key(self, key: bytes, timeout: float | None = -1, *, end_streams: bool = False) -> None:
        """Replaces the key of the group by `key`, which all ranks give. Collective.

        Call it in the largest group that shares the key: the first group or, after `admit`, the one that `admit` made. If
        `domain` was a Domain with a key, that domain gets the new key, for everything that uses it. Operations that are under way
        go on; windows, regions and grants stay. Afterwards nobody can connect with the former key. end_streams: as in
        `KeyRing.remove`; then no operation may be under way.

        InvalidArgumentError, at all ranks, if they give different keys; then the former key stays. After any other error both
        keys are valid. If a rank was late, repeat the call; if a rank died, call `shrink` and repeat it in the new group.
        """
        self._check()
        replace_key(self, self._keys, key, end_streams, Deadline(self._timeout(timeout)))

    def admit(self, rendezvous: Any, count: int, timeout: float | None = -1) -> Group:
        """Makes a group of these ranks and `count` more processes, which call `Group.join` with the same rendezvous. Collective.

        The processes that join get the key of this group at the meeting. The ranks of this group keep their numbers; the new ones
        follow. This group can still be used. If a process dies meanwhile, either all that live get the new group, or all get
        PeerLostError; then call `shrink` if it was a rank of this group, and `admit` again. OperationTimeout names who did not
        come; if that is a rank of this group, call `shrink` before `admit` again.
        """
        self._check()
        deadline = Deadline(self._timeout(timeout))
        control = self._new_control()
        try:
            cards = [
                json.loads(card)
                for card in self._allgather(self._card(control), deadline.remaining(), "admit()")
            ]
            told: list[Any] = []  # the cards of those who came, or why they could not come
            if self.rank == 0:
                value = json.dumps({"cards": cards, "epoch": self.epoch + 1}).encode()
                try:
                    with meeting(rendezvous, 0, 1 + count, deadline.remaining()) as exchange:
                        agree_on_key(exchange, 0, self._keys.secret(self.domain))
                        told = cards_of(exchange(value))[1:]
                except OperationTimeout as error:
                    told = [
                        OperationTimeout(f"admit(): {words_of(error)}; rank 1 + n there joins as number n")
                    ]
                except Exception as error:
                    told = [error.with_traceback(None)]
            # Rank 0 may learn only at the end of the time that somebody does not come. It tells the others after that.
            left = deadline.remaining()
            told = self.broadcast(told, 0, None if left is None else left + GRACE)
            if told and isinstance(told[0], Exception):
                raise told.pop()  # a frame that kept its own error would live until the cycle is collected
            group = Group._unmet(self.rank, self.size + count, self.timeout)
            group._inherit(self, control)
            group._meet(cards + told, deadline, self._handles)
        except BaseException:
            control.close()
            raise
        group._resources = self._resources.share(group._handles)
        self._keys.members = group.size
        return group

    @classmethod
    def join(
        cls,
        rendezvous: Any,
        number: int,
        count: int,
        domain: str | Domain | Mapping[str, Any] | None = "shm+tcp",
        contexts: int = 1,
        timeout: float | None = 60,
    ) -> Group:
        """Joins a group whose ranks call `admit`. `number` is that of this process among the joining ones: 0 to `count` - 1."""
        if not 0 <= number < count:
            raise InvalidArgumentError(f"number={number}, count={count}: numbers are 0 to count - 1")
        deadline = Deadline(timeout)
        group = cls._unmet(0, 1, timeout)
        with contextlib.ExitStack() as undo:
            with meeting(rendezvous, 1 + number, 1 + count, timeout) as exchange:
                group._open(domain, contexts, agree_on_key(exchange, 1 + number, b""), undo)
                values: list[Any] = cards_of(exchange(group._card()))
            members, epoch = members_of(values[0])
            cards = members + values[1:]
            group._begin(len(members) + number, len(cards), timeout)
            group._keys.members = group.size
            group.epoch = epoch
            group._settle(cards, deadline, undo)
        return group

    def close(self) -> None:
        """Waits for all ranks, because they may still use memory of this one, then closes. Collective. Closing twice is harmless.

        BusyError while windows are open. If peers have died, it waits only until this is noticed. A RuntimeWarning names
        those that did not come within the group's timeout.
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
        """Closes the windows, then the group. After an exception it does not wait for the others."""
        self._end(wait=kind is None)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"domain={self.domain!r}"
        return f"Group(rank={self.rank}, size={self.size}, {state})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>" + ("" if self._closed else self.links()._repr_html_())

    def _card(self, control: Control | None = None) -> bytes:
        """What the others need to know about this rank."""
        card = {
            "host": socket.gethostname(),
            "address": base64.b64encode(self.endpoint.address).decode(),
            "control": base64.b64encode((control or self._control).remote).decode(),
        }
        return json.dumps(card).encode()

    def _meet(self, cards: list[Any], deadline: Deadline, known: tuple[int, ...] = ()) -> None:
        """Inserts the addresses of `cards`, except for the first ones, whose handles are `known`, and waits for all ranks."""
        places = places_of(cards)
        with contextlib.ExitStack() as undo:
            added = []
            for place in places[len(known) :]:
                added.append(self.endpoint.av.insert(place.address))
                undo.callback(self.endpoint.av.remove, added[-1])
            self._handles = known + tuple(added)
            remotes = [place.control for place in places]
            self._control.connect(self.rank, remotes, self._handles)
            self._hosts = [place.host for place in places]
            addresses = [place.address for place in places]
            # All see the same addresses, so all or none of them ask each other.
            if any(map(path_choice.mixed, addresses)):
                self._control.barrier(deadline.remaining())
                self._leave_links_out(addresses, remotes, deadline, undo)
            settle(self._control, deadline)
            undo.pop_all()
        self.endpoint.av.remove([handle for handle in added if handle not in self._handles])

    def _settle(self, cards: list[Any], deadline: Deadline, undo: contextlib.ExitStack) -> None:
        """Waits for all ranks of `cards`, and takes what `undo` holds."""
        self._meet(cards, deadline)
        self._resources = Shared(undo.pop_all(), self.endpoint.av).share(self._handles)

    def _leave_links_out(
        self,
        addresses: list[bytes],
        remotes: list[RemoteRegion],
        deadline: Deadline,
        undo: contextlib.ExitStack,
    ) -> None:
        """Uses a link whose device moves bytes itself for all peers or for none, so that all ranks see windows that work alike.

        If such a link does not lead to all peers, all are reached by the messages of the other links.
        """
        av, own = self.endpoint.av, addresses[self.rank]
        found = path_choice.not_to_all(av, self.endpoint.context(0), addresses, own)
        left_out = path_choice.left_out(self.allgather(found, deadline.remaining()), addresses)
        if not left_out:
            return
        handles = []
        for address in addresses:
            links = _core.address_links(address)
            kept = [link for link in links if link not in left_out]
            handles.append(av.insert(_core.restrict_address(address, kept or links)))
            undo.callback(av.remove, handles[-1])
        self._control.connect(self.rank, remotes, tuple(handles))
        self._handles = tuple(handles)
