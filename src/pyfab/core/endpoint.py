"""Endpoints: where operations start."""

from __future__ import annotations

import contextlib
import dataclasses
import html
from types import TracebackType
from typing import Any

from pyfab import _core
from pyfab._core import Context, Operation, Prepared
from pyfab.core.address_vector import AddressVector
from pyfab.core.domain_base import DomainBase
from pyfab.core.enums import Caps
from pyfab.core.errors import BusyError, ClosedError, InvalidArgumentError, TooSmallError
from pyfab.core.owned import Owned
from pyfab.core.posting import operations
from pyfab.core.posting.operations import Operations
from pyfab.core.queues import CompletionQueue, EventQueue
from pyfab.core.stats import LinkStats
from pyfab.display.tables import Table

__all__ = ["Context", "Endpoint", "EndpointOptions", "Operation", "Prepared"]


@dataclasses.dataclass(frozen=True)
class EndpointOptions:
    """How an endpoint is opened."""

    contexts: int
    auth_keys: list[tuple[bytes, int]]
    """The keys that peers may have, each with its number in the address vector, or 0. Empty: the key of the domain."""
    caps: Caps
    exempt: bool = False
    """Whether the requirements of the domain's mr_mode are not checked for this endpoint: groups meet them by other means."""
    owns: tuple[Owned, ...] = ()
    """Queue and address vector, where the program passed none: they were made for the endpoint and end with it."""


class Endpoint(Operations):
    """An object that has an address and starts operations. Made by `Domain.endpoint`.

    It has one or more contexts, an address vector (its peers) and a completion queue. Its methods use context 0; `context(i)` has
    the same methods for context i. Safe from any thread. Threads that use different contexts do not wait for each other.
    """

    def __init__(
        self, domain: DomainBase, av: AddressVector, cq: CompletionQueue, options: EndpointOptions
    ) -> None:
        self._check(domain, av, options.contexts)
        for bound in (av, cq):
            bound._check_open()
            if bound._domain is not domain:
                raise InvalidArgumentError(
                    f"the {type(bound).__name__} belongs to another domain than the endpoint"
                )
        self._domain = domain
        self._av, self._cq = av, cq
        self._owns = options.owns
        # These keys of the address vector cannot be removed while the endpoint is open.
        self._auth_handles = frozenset(number - 1 for _, number in options.auth_keys if number)
        self._contexts: list[Context] = []
        self._events: EventQueue | None = None
        self._number = domain._core.next_endpoint_number()
        try:
            for index in range(options.contexts):
                self._contexts.append(self._open_context(index, options))
            self._address = self._make_address()
            with domain._binding:
                for bound in (av, cq):
                    bound._check_open()
                    bound._users.add(self)
        except BaseException:
            Context._close_all(self._contexts)
            raise
        # Bound once, so that a call goes straight to the core.
        for name in operations.NAMES:
            setattr(self, name, getattr(self._contexts[0], name))
        domain._owned.add(self)

    @staticmethod
    def _check(domain: DomainBase, av: AddressVector, contexts: int) -> None:
        limit = domain.info.max_contexts
        if not 1 <= contexts <= limit:
            raise InvalidArgumentError(f"contexts={contexts}: this domain gives 1 to {limit} to an endpoint")
        bits = av.rx_ctx_bits
        if bits and contexts > 1 << bits:
            raise InvalidArgumentError(
                f"contexts={contexts}: the address vector has rx_ctx_bits={bits}, enough for {1 << bits}"
            )

    def _open_context(self, index: int, options: EndpointOptions) -> Context:
        return Context(
            domain=self._domain._core,
            index=index,
            number=self._number,
            keys=options.auth_keys,
            counts=bool(options.caps & Caps.RMA_EVENT),
            peers=self._av._core,
            queue=self._cq._core,
            objects=self._cq._objects,
            rx_bits=self._av.rx_ctx_bits,
            max_group_id=self._domain.info.max_group_id,
            directed=bool(options.caps & Caps.DIRECTED_RECV),
            exempt=options.exempt,
            kept=self._domain._options.rail_policy,
        )

    def _make_address(self) -> bytes:
        format = self._domain.info.addr_format
        if format == "bundle":
            return _core.encode_name([part for context in self._contexts for part in context.parts()])
        address = self._contexts[0].socket_names()[0]
        return _core.print_address(address) if format == "str" else address  # type: ignore[return-value]

    @property
    def address(self) -> bytes:
        """What a peer inserts into its address vector to reach this endpoint. With addr_format="str" it is text, else bytes."""
        if self.closed:
            raise ClosedError("the endpoint is closed")
        return self._address

    def getname(self, size: int | None = None) -> bytes:
        """The address, as fi_getname(3) gives it. TooSmallError, with `needed`, if `size` is less than its length."""
        needed = len(self.address)
        if size is not None and size < needed:
            raise TooSmallError(f"the address has {needed} bytes, and size={size} was offered", needed=needed)
        return self.address

    @property
    def av(self) -> AddressVector:
        """The address vector: the peers of this endpoint, by handle."""
        return self._av

    @property
    def cq(self) -> CompletionQueue:
        """The completion queue of all contexts."""
        return self._cq

    @property
    def contexts(self) -> int:
        """Number of contexts."""
        return len(self._contexts)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._contexts[0].closed

    def bind(self, event_queue: EventQueue | None) -> None:
        """From now on `event_queue` gets the events of this endpoint: lost peers and links, and changes of RDMA ports.

        None: from now on the events are dropped. Several endpoints may share a queue. When a queue closes, it is no longer bound
        to any endpoint.
        """
        with self._domain._binding:
            if self.closed:
                raise ClosedError("the endpoint is closed")
            if event_queue is not None:
                event_queue._check_open()
                if event_queue._domain is not self._domain:
                    raise InvalidArgumentError("the event queue belongs to another domain than the endpoint")
            self._report_to(event_queue)

    def _report_to(self, event_queue: EventQueue | None) -> None:
        # The caller holds the domain's `_binding`.
        if self._events is not None:
            self._events._reporters.discard(self)
        if event_queue is not None:
            event_queue._reporters.add(self)
        self._events = event_queue
        with contextlib.suppress(ClosedError):  # another thread closes the endpoint: then no loss is reported
            for context in self._contexts:
                context._bind_events(None if event_queue is None else event_queue._core)

    def context(self, index: int) -> Context:
        """The context with this index: the same operations, with a lock of its own."""
        if self.closed:
            raise ClosedError("the endpoint is closed")
        if not 0 <= index < len(self._contexts):
            raise InvalidArgumentError(
                f"context {index}: the endpoint has contexts 0 to {len(self._contexts) - 1}"
            )
        return self._contexts[index]

    def report(self, peer: int) -> tuple[str, str, str]:
        """Returns (link, how, why): the link to the peer, how the bytes go there, and why this link was chosen."""
        return self.context(0).report(peer)

    def counts(self, peer: int) -> dict[str, int]:
        """Counts for one peer, as sums over the contexts: transfers posted and settled, bytes out and in, errors."""
        total: dict[str, int] = {}
        for context in self._contexts:
            for name, value in context.counts(peer).items():
                total[name] = total.get(name, 0) + value
        return total

    def link_stats(self) -> Table[LinkStats]:
        """Statistics of the messages over each link, as sums over the contexts. Links that carried no message are not shown."""
        total: dict[str, LinkStats] = {}
        for context in self._contexts:
            for name, counts in context._link_stats().items():
                total[name] = LinkStats.of(name, counts).plus(total.get(name))
        return Table(LinkStats, (total[name] for name in sorted(total)), title="messages of each link")

    def progress(self) -> bool:
        """Makes progress without waiting (for progress="manual"). Returns whether anything moved."""
        moved = [context.progress() for context in self._contexts]
        return any(moved)

    def close(self) -> None:
        """Gives messages that were sent up to 200 ms to reach their peers. Then ends the endpoint. Closing twice is harmless.

        Operations that are still outstanding fail with CanceledError.
        """
        if self.closed:
            return
        Context._close_all(self._contexts)
        for bound in self._owns:
            with contextlib.suppress(BusyError):  # another endpoint uses it too
                bound.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<Endpoint closed>"
        return f"<Endpoint {self._domain.info.spec} contexts={len(self._contexts)} peers={len(self._av)}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[Any, ...]] = []
        for peer, _ in [] if self.closed else self._av:
            try:
                rows.append((peer, *self.report(peer)))
            except OSError as error:
                rows.append((peer, "-", "-", str(error)))
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        head = "".join(f"<th>{name}</th>" for name in ("peer", "link", "how", "why"))
        return f"<table><caption>{html.escape(repr(self))}</caption><tr>{head}</tr>{body}</table>"
