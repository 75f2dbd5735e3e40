"""One member: a process that puts, gets, adds and sends to all others at once and checks what it can check by itself.

Started by `supervisor.py`, with which it speaks over a pipe. What only a look from outside can tell, for instance whether each
message arrived once, it leaves to `judge.py` by means of its journal.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
from journal import Event, Journal, Kind, Status
from slots import Block, Slot, blocks, forget, sizes

_PR_SET_PDEATHSIG = 1
QUEUE = 1 << 15  # entries
TRIES = 5

STATUS = {
    pyfab.PeerLostError: Status.LOST,
    pyfab.UnreachableError: Status.UNREACHABLE,
    pyfab.KeyRejectedError: Status.REJECTED,
    pyfab.CanceledError: Status.CANCELED,
}


class Link:
    """Another member, as long as it is one process."""

    def __init__(
        self, rank: int, incarnation: int, address: bytes, handle: int, commons: list[bytes]
    ) -> None:
        self.rank, self.incarnation, self.address, self.handle = rank, incarnation, address, handle
        self.commons = [pyfab.RemoteRegion.from_bytes(each) for each in commons]
        self.gone = False
        self.blocks: list[Block] = []
        self.counters: list[pyfab.RemoteRegion] = []
        self.outstanding: dict[str, int] = {"memory": 0, "messages": 0}
        self.busy_words: set[tuple[int, int]] = set()
        self.words: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # least and greatest value that a counter may have

    def __str__(self) -> str:
        return f"{self.rank}/{self.incarnation}"


@dataclass(eq=False)
class Posted:
    """One operation until its outcome is known. It is the context of its entry in the completion queue."""

    link: Link
    kind: Kind
    sequence: int
    size: int
    level: int | None
    where: int
    certain: bool  # success says that the other side has it
    settle: Callable[[Status], None]
    posted: float  # when, by the member's clock
    operation: Any = None
    entries: int = 0
    calls: int = 0  # of its callback, if it has one
    error: Any = None
    over: bool = False

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.sequence} of {self.size} bytes to {self.link}, level {self.level}"


class Issuer:
    """Operations of one thread: posted, waited for and checked for having one outcome."""

    def __init__(self, member: Member, name: str) -> None:
        self.member, self.name = member, name
        self.chance = random.Random(f"{member.seed}/{member.rank}/{member.incarnation}/{name}")
        self.open: list[Posted] = []
        self.sequence = 0
        self.call: tuple[float, str] | None = None  # since when it is in which call
        self.successes = 0  # that the other side has
        self.not_called: list[Posted] = []  # whose callbacks are still to come

    def choose(self, limit: int) -> Link | None:
        """A link that has room for one more, and counts it."""
        with self.member.lock:
            ready = [
                link
                for link in self.member.links.values()
                if not link.gone and link.outstanding[self.name] < limit
            ]
            if not ready:
                return None
            link = self.chance.choice(sorted(ready, key=lambda link: link.rank))
            link.outstanding[self.name] += 1
            return link

    def take(self, link: Link) -> None:
        """Counts one more, whatever room there is."""
        with self.member.lock:
            link.outstanding[self.name] += 1

    def release(self, link: Link) -> None:
        with self.member.lock:
            link.outstanding[self.name] -= 1

    def level(self, strong: float) -> int | None:
        """With probability `strong` one that tells that the other side has it, else a weaker one."""
        if self.chance.random() < strong:
            return self.chance.choice([None, int(pyfab.Delivery.DELIVERY)])
        return int(self.chance.choice([pyfab.Delivery.INJECT, pyfab.Delivery.TRANSMIT]))

    def post(
        self,
        link: Link,
        kind: Kind,
        size: int,
        level: int | None,
        start: Callable[[Posted], Any],
        settle: Callable[[Status], None],
        where: int = 0,
        certain: bool | None = None,
    ) -> None:
        """Takes over what `choose` counted."""
        self.sequence += 1
        if certain is None:
            certain = level is None or level == pyfab.Delivery.DELIVERY
        posted = Posted(
            link, kind, self.sequence, size, level, where, certain, settle, posted=self.member.clock
        )
        self.member.journal.write(
            Event.BEGIN, kind, link.rank, link.incarnation, self.sequence, size, 0, where
        )
        self.member.without_entry[posted] = None
        self.call = (self.member.clock, str(posted))
        try:
            posted.operation = start(posted)
        except pyfab.FabricError as error:
            self.member.without_entry.pop(posted, None)
            self.call = None
            self.finish(posted, error)
            return
        self.call = None
        if self.chance.random() < 0.2:
            self.not_called.append(posted)
            posted.operation.add_done_callback(lambda _operation: self.called(posted))
        self.open.append(posted)

    def called(self, posted: Posted) -> None:
        posted.calls += 1
        if posted.calls > 1 or not posted.operation.done():
            self.member.fail(
                f"callback number {posted.calls} of {posted}, which is done: {posted.operation.done()}"
            )

    def finish(self, posted: Posted, error: Any) -> None:
        status = (
            (Status.DONE if posted.certain else Status.SENT)
            if error is None
            else STATUS.get(type(error), Status.OTHER)
        )
        posted.error, posted.over = error, True
        link = posted.link
        self.successes += status == Status.DONE
        self.member.weak += status == Status.SENT
        self.member.journal.write(
            Event.END,
            posted.kind,
            link.rank,
            link.incarnation,
            posted.sequence,
            posted.size,
            status,
            posted.where,
        )
        if status == Status.OTHER or status == Status.CANCELED:
            self.member.fail(f"{posted}: {error!r}")
        if status == Status.DONE and posted.kind in (Kind.ADD, Kind.NOTICE):
            for block in link.blocks:
                block.came_before(posted.sequence)
        posted.settle(status)
        self.release(link)

    def harvest(self) -> None:
        """Settles what is done."""
        still = []
        for posted in self.open:
            if posted.operation.done():
                self.finish(posted, posted.operation.exception(0))
            else:
                still.append(posted)
        self.open = still
        self.not_called = [posted for posted in self.not_called if not posted.calls]

    def wait(self, seconds: float) -> None:
        """For the oldest operation, in one of the ways that programs wait."""
        self.harvest()
        if not self.open:
            time.sleep(seconds)
            return
        operation = self.open[0].operation
        self.call = (self.member.clock, f"a wait for {self.open[0]}")
        try:
            if self.chance.random() < 0.5:
                operation.exception(seconds)
            else:
                operation.result(seconds)
        except pyfab.FabricError:
            pass
        self.call = None
        self.harvest()

    def settle_all(self) -> None:
        while self.open:
            self.wait(0.05)

    def overdue(self, bound: float) -> str:
        now = self.member.clock
        if self.call and now - self.call[0] > bound:
            return f"the {self.name} thread is for {now - self.call[0]:.1f} s in {self.call[1]}"
        for posted in list(self.open):
            if now - posted.posted > bound:
                return f"{posted} was posted {now - posted.posted:.1f} s ago and has no outcome"
        return ""


class Member:
    def __init__(self, control: Connection, settings: dict[str, Any]) -> None:
        from groups import Groups
        from messages import Messages
        from traffic import Traffic

        self.control = control
        self.control_lock = threading.Lock()
        self.rank, self.incarnation = settings["rank"], settings["incarnation"]
        self.members, self.seed = settings["members"], settings["seed"]
        self.bound = settings["bound"]
        self.clock = 0.0  # seconds that this process could run: time in which it was stopped does not count
        self.journal = Journal(Path(settings["journal"]))
        self.lock = threading.Lock()
        self.links: dict[int, Link] = {}
        self.old: list[Link] = []
        self.slots: dict[tuple[int, int], Slot] = {}
        self.handles = threading.Lock()
        self.ranks_of: dict[int, set[int]] = {}  # of the handles that were ever given
        self.without_entry: dict[Posted, None] = {}
        self.weak = 0  # operations that succeeded at a weak level
        self.late_errors = 0  # entries that tell that such a one was lost after that
        self.stopping = False
        self.draining = False
        self.closing = False
        self.failures = 0

        self.rails = "," in settings["links"]
        self.domain = pyfab.Domain(settings["links"], **settings["domain"])
        self.queue = self.domain.completion_queue(QUEUE)
        self.endpoint = self.domain.endpoint(cq=self.queue)
        self.commons = [self.domain.alloc(8, np.int64), np.zeros(8, np.int64)]
        self.common_regions = [self.domain.register(memory, pyfab.Access.REMOTE) for memory in self.commons]
        self.chance = random.Random(f"{self.seed}/{self.rank}/{self.incarnation}/control")
        self.traffic = Traffic(self)
        self.messages = Messages(self)
        self.groups = (
            Groups(self, Path(settings["groups"]), settings["group_domain"]) if settings["groups"] else None
        )
        self.threads: list[threading.Thread] = []

    # --- what is told to the supervisor

    def tell(self, *message: Any) -> None:
        with self.control_lock:
            self.control.send(message)

    def event(self, text: str) -> None:
        self.tell("event", time.monotonic(), text)

    def fail(self, text: str) -> None:
        self.failures += 1
        if self.failures <= 10:
            self.tell("failure", time.monotonic(), text)

    # --- threads

    def start(self, function: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                function()
            except Exception:
                self.fail(f"a thread ended: {traceback.format_exc()}")

        thread = threading.Thread(target=guarded, daemon=True, name=function.__qualname__)
        thread.start()
        self.threads.append(thread)
        return thread

    def watch(self) -> None:
        """Tells of operations and calls without an end. Where the interpreter itself hangs, faulthandler does."""
        last = time.monotonic()
        while not self.closing:
            time.sleep(0.1)
            now = time.monotonic()
            self.clock += min(now - last, 0.3)
            last = now
            faulthandler.dump_traceback_later(self.bound + 20, exit=True)
            for issuer in (self.traffic, self.messages):
                if text := issuer.overdue(self.bound):
                    faulthandler.dump_traceback(all_threads=True)
                    reports = [f"{link} {self.endpoint.report(link.handle)}" for link in self.links.values()]
                    self.fail(f"hang: {text}; links: {reports}")
                    self.tell("hang")
                    time.sleep(3600)
        faulthandler.cancel_dump_traceback_later()

    def read_queue(self) -> None:
        while not self.closing:
            with contextlib.suppress(pyfab.OperationTimeout):
                self.queue.wait(0.02)
            try:
                entries = self.queue.read(256)
            except pyfab.FabricError as error:
                if error.name != "FI_EOVERRUN":
                    raise
                self.fail("the completion queue overran")
                continue
            for entry in entries:
                self.take(entry)
            self.messages.repost()

    def take(self, entry: Any) -> None:
        context = entry.context
        if pyfab.CompletionFlag.LATE in entry.flags:
            # An operation at a weak level had its entry when its bytes had left; this one tells that they were lost after that.
            self.late_errors += 1
            if entry.error is None or context is not None or self.late_errors > self.weak:
                self.fail(f"an entry of an operation that had one already: {entry}")
        elif isinstance(context, Posted):
            context.entries += 1
            self.without_entry.pop(context, None)
            if context.over and type(entry.error) is not type(context.error):
                self.fail(f"{context} ended with {context.error!r}, and its entry tells {entry.error!r}")
        elif context is not None:
            self.messages.received(context, entry)
        elif pyfab.CompletionFlag.REMOTE_CQ_DATA in entry.flags:
            data = entry.data
            self.journal.write(
                Event.GOT, Kind.NOTICE, data >> 56, data >> 40 & 0xFFFF, data & (1 << 40) - 1, entry.nbytes
            )
            if entry.error is not None:
                self.fail(f"a notice with an error: {entry}")
        else:
            self.fail(f"an entry of nothing: {entry}")

    # --- peers

    def meet(self, rank: int, incarnation: int, address: bytes, commons: list[bytes]) -> None:
        handle = None
        with self.lock:
            for link in self.old:
                if link.address == address and self.chance.random() < 0.5:
                    handle = link.handle  # it came back under its address
                    self.old.remove(link)
                    break
        with self.handles:  # a message may name the handle as soon as it is there
            if handle is None:
                handle = self.endpoint.av.insert(address)
            self.ranks_of.setdefault(handle, set()).add(rank)
        link = Link(rank, incarnation, address, handle, commons)
        slot = self.slots[rank, incarnation] = Slot(self.domain, sizes(rank, self.rank, self.members))
        with self.lock:
            self.links[rank] = link
        self.tell("slot", rank, incarnation, slot.remotes)

    def take_slot(self, rank: int, incarnation: int, remotes: list[bytes]) -> None:
        link = self.links.get(rank)
        if link is None or link.incarnation != incarnation:
            return
        regions = [pyfab.RemoteRegion.from_bytes(each) for each in remotes]
        with self.lock:
            link.counters = regions
            link.blocks = blocks(regions, sizes(self.rank, rank, self.members), self.rails)

    def part(self, rank: int, incarnation: int) -> None:
        with self.lock:
            link = self.links.get(rank)
            if link and link.incarnation == incarnation:
                link.gone = True
                del self.links[rank]
                self.old.append(link)
        slot = self.slots.pop((rank, incarnation), None)
        if slot:
            slot.close()
            self.tell("counters", rank, incarnation, slot.counters())

    def forget_old(self) -> None:
        """Takes addresses of those who are gone out of the address vector, once nothing is outstanding to them."""
        with self.lock:
            idle = [link for link in self.old if not any(link.outstanding.values())]
            idle = [link for link in idle if self.chance.random() < 0.05]  # some time later
            self.old = [link for link in self.old if link not in idle]
        for link in idle:
            self.endpoint.av.remove(link.handle)

    # --- the course of things

    def run(self) -> None:
        self.tell(
            "hello", self.endpoint.address, [region.remote.to_bytes() for region in self.common_regions]
        )
        watch = self.start(self.watch)
        reader = self.start(self.read_queue)
        workers = [self.start(self.traffic.run), self.start(self.messages.run)]
        if self.groups:
            workers.append(self.start(self.groups.run))
        while True:
            if self.control.poll(0.05):
                name, *rest = self.control.recv()
                if name == "meet":
                    self.meet(*rest)
                elif name == "slot":
                    self.take_slot(*rest)
                elif name == "gone":
                    self.part(*rest)
                elif name == "leave":
                    break
                elif name == "drain":
                    self.draining = self.stopping = True
                    for worker in workers:
                        worker.join()
                    self.quiet()
                    forget(link.blocks for link in [*self.links.values(), *self.old])
                    self.tell("drained")
                elif name == "count":
                    for key, slot in self.slots.items():
                        self.tell("counters", *key, slot.counters())
                    self.tell("commons", [memory.tolist() for memory in self.commons])
            self.forget_old()
        self.stopping = True
        for worker in workers:
            worker.join()
        self.quiet()
        if self.groups:
            self.tell("groups", self.groups.told())
        self.tell("leaving")
        self.closing = True
        reader.join()
        watch.join()
        self.messages.close()
        self.domain.__exit__(None, None, None)  # ends what is left, as a `with` block does

    def quiet(self) -> None:
        """Nothing is outstanding any more, and everything has told so everywhere."""
        self.endpoint.flush(timeout=self.bound)
        until = self.clock + self.bound
        while self.without_entry and self.clock < until:
            time.sleep(0.02)
        if self.without_entry:
            left = [str(posted) for posted in self.without_entry]
            self.fail(f"{len(left)} operations have no entry in the completion queue: {left[:5]}")
        for issuer in (self.traffic, self.messages):
            while any(not posted.calls for posted in issuer.not_called) and self.clock < until:
                time.sleep(0.02)
            left = [str(posted) for posted in issuer.not_called if not posted.calls]
            if left:
                self.fail(f"{len(left)} callbacks were never called: {left[:5]}")


def main() -> None:
    fd, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != settings["supervisor"]:
        os._exit(1)
    faulthandler.enable()
    with Connection(fd) as control:
        try:
            Member(control, settings).run()
        except (EOFError, BrokenPipeError):
            os._exit(1)


if __name__ == "__main__":
    sys.modules["member"] = sys.modules["__main__"]
    main()
