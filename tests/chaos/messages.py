"""Messages of one member: sent to all others, small and announced, and received from anybody, each checked byte by byte."""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Any

import numpy as np
import pyfab
from content import HEADER, POISON, Header, read_message, write_message
from journal import Event, Kind, Status
from member import STATUS, TRIES, Issuer, Link, Member, Posted

WINDOW = 4  # sends to one peer
TAGGED, UNTAGGED = 1 << 20, 1 << 16  # largest messages
RECEIVES = {TAGGED: 10, UNTAGGED: 6}
EAGER = 16_384  # larger ones are announced whatever the link is, so that a send is complete when they were fetched


class Receive:
    def __init__(self, capacity: int) -> None:
        self.memory = np.empty(capacity + 64, np.uint8)
        self.capacity = capacity
        self.number = 0  # in the order of posting
        self.operation: Any = None


class Messages(Issuer):
    def __init__(self, member: Member) -> None:
        super().__init__(member, "messages")
        self.receives: list[Receive] = []
        self.later: list[
            tuple[float, Receive]
        ] = []  # to be posted then, so that messages come unexpected as well
        self.number = 0
        self.pauses = random.Random(f"{member.seed}/{member.rank}/{member.incarnation}/receives")
        # What came, in the order in which the receives were posted, and so in the order of matching.
        self.order: dict[int, deque[list[Any]]] = {TAGGED: deque(), UNTAGGED: deque()}
        self.by_number: dict[int, list[Any]] = {}
        self.latest: dict[tuple[int, int, int, int], int] = {}
        for capacity, count in RECEIVES.items():
            for _ in range(count):
                self.later.append((0, Receive(capacity)))

    # --- sending

    def run(self) -> None:
        while not self.member.stopping:
            if len(self.open) >= 24 or self.chance.random() < 0.4:
                self.wait(self.chance.choice([0, 0.001, 0.02]))
                continue
            self.harvest()
            link = self.choose(WINDOW)
            if link is None:
                self.wait(0.01)
                continue
            self.send(link)
        self.settle_all()
        if self.member.draining:
            self.probe()

    def send(self, link: Link, level: Any = -1) -> None:
        member, chance = self.member, self.chance
        tagged = chance.random() < 0.6
        size = int(HEADER * ((TAGGED if tagged else UNTAGGED) / HEADER) ** chance.random())
        if level == -1:
            level = self.level(0.6)
        tag = chance.getrandbits(64) if tagged else 0
        with_data = chance.random() < 0.3
        memory = np.empty(size, np.uint8)

        def start(posted: Posted) -> Any:
            header = Header(
                member.rank, member.incarnation, link.rank, link.incarnation, posted.sequence, size, tag
            )
            write_message(memory, header)
            data = posted.sequence if with_data else None
            if tagged:
                return member.endpoint.tsend(memory, link.handle, tag, data=data, context=posted, flags=level)
            return member.endpoint.send(memory, link.handle, data=data, context=posted, flags=level)

        weak = level in (None, int(pyfab.Delivery.TRANSMIT))
        certain = level == pyfab.Delivery.DELIVERY or (weak and size > EAGER)
        self.post(link, Kind.SEND, size, level, start, lambda _: memory.fill(POISON), certain=certain)

    def probe(self) -> None:
        """As `Traffic.probe`."""
        for link in list(self.member.links.values()):
            before = self.successes
            for _ in range(TRIES):
                self.take(link)
                self.send(link, int(pyfab.Delivery.DELIVERY))
                self.settle_all()
                if self.successes != before:
                    break
            else:
                self.member.fail(f"in the end, {link} cannot be reached by messages")

    # --- receiving, in the thread that reads the queue

    def repost(self) -> None:
        now = time.monotonic()
        due = [receive for when, receive in self.later if when <= now]
        self.later = [(when, receive) for when, receive in self.later if when > now]
        for receive in due:
            receive.memory.fill(POISON)
            self.number += 1
            receive.number = self.number
            place: list[Any] = [None]
            self.by_number[self.number] = place
            self.order[receive.capacity].append(place)
            self.receives.append(receive)
            landing = receive.memory[: receive.capacity]
            if receive.capacity == TAGGED:
                receive.operation = self.member.endpoint.trecv(landing, 0, ignore=2**64 - 1, context=receive)
            else:
                receive.operation = self.member.endpoint.recv(landing, context=receive)

    def received(self, receive: Receive, entry: Any) -> None:
        member = self.member
        if receive not in self.receives:
            member.fail(f"a second entry of a receive: {entry}")
            return
        self.receives.remove(receive)
        place = self.by_number.pop(receive.number)
        error = entry.error
        try:
            outcome = receive.operation.exception(5)  # another thread may be about to make it done
        except pyfab.OperationTimeout:
            member.fail(f"an entry of a receive that is not done: {entry}")
        else:
            if type(outcome) is not type(error):
                member.fail(f"a receive ended with {outcome!r}, and its entry tells {error!r}")
        status = Status.DONE if error is None else STATUS.get(type(error), Status.OTHER)
        member.journal.write(Event.END, Kind.RECEIVE, 0, 0, receive.number, entry.nbytes, status)
        if error is not None:
            if status not in (Status.LOST, Status.UNREACHABLE):
                member.fail(f"a receive of a message ended with {error!r}")
            place[0] = "lost"
        else:
            try:
                header = read_message(receive.memory, entry.nbytes)
            except ValueError as wrong:
                member.fail(
                    f"a receive succeeded with {wrong}; from {member.ranks_of.get(entry.source)}; entry {entry}"
                )
                place[0] = "wrong"
            else:
                self.check(header, entry, receive.capacity)
                place[0] = header
        self.check_order(receive.capacity)
        pause = self.pauses.choice([0, 0, 0, 0, 0, 0, 0, 0, 0.01, 0.3])
        self.later.append((time.monotonic() + pause, receive))

    def check(self, header: Header, entry: Any, capacity: int) -> None:
        member = self.member
        member.journal.write(
            Event.GOT, Kind.SEND, header.rank, header.incarnation, header.sequence, header.length
        )
        if header.to_rank != member.rank:
            member.fail(f"a message of somebody else came here: {header}")
        if capacity == TAGGED and entry.tag != header.tag:
            member.fail(f"tag {entry.tag:#x} of {header}")
        if pyfab.CompletionFlag.REMOTE_CQ_DATA in entry.flags and entry.data != header.sequence:
            member.fail(f"data {entry.data} of {header}")
        with member.handles:
            ranks = member.ranks_of.get(entry.source, {header.rank})
        if header.rank not in ranks:
            member.fail(f"source {entry.source} of {header}, a handle of {ranks}")

    def check_order(self, capacity: int) -> None:
        order = self.order[capacity]
        while order and order[0][0] is not None:
            (header,) = order.popleft()
            if isinstance(header, str):
                continue
            # A sender knows each incarnation of this rank under a name of its own. Those that listen at the same port
            # are the same for tcp, so a message to the one before may still come, in no order with those to this one.
            sender = header.rank, header.incarnation, header.to_incarnation, capacity
            if header.sequence <= self.latest.get(sender, 0):
                self.member.fail(f"a message out of order: after number {self.latest[sender]} came {header}")
            self.latest[sender] = header.sequence

    # --- the end

    def close(self) -> None:
        """Posted receives end with the endpoint, each as canceled."""
        operations = [receive.operation for receive in self.receives]
        self.member.endpoint.close()
        ends = (pyfab.CanceledError, pyfab.PeerLostError, type(None))
        for operation in operations:
            if not operation.done() or not isinstance(operation.exception(0), ends):
                self.member.fail("a receive had no outcome when its endpoint had closed")
