"""A client: atomics, puts, gets and messages, a few at a time, each noted before it is called and after it returned."""

from __future__ import annotations

import random
import sys
import threading
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyfab
import shared

sys.path.insert(0, str(Path(__file__).parent.parent))
import rails

HOT = 0.08  # seconds for which all clients like the same element, so that they meet there
BOUND = 60  # seconds after which an operation without an outcome is a failure
REFUSED = (pyfab.UnreachableError, pyfab.KeyRejectedError)  # nothing happened
KINDS = ("add", "fetch_add", "swap", "cswap", "read", "write")


class Peer(NamedTuple):
    name: str
    handle: int
    words: dict[str, pyfab.RemoteRegion]
    seen: dict[str, int]  # the value that this client found last


class Client:
    def __init__(self, control: Connection, settings: dict[str, Any]) -> None:
        self.control, self.journal = control, shared.Journal(settings["journal"])
        self.me, self.seed = settings["process"], settings["plan"]
        self.chance = random.Random(settings["seed"])
        self.domain = pyfab.Domain(settings["links"], **settings["domain"])
        self.queue = self.domain.completion_queue(1 << 15)
        self.endpoint = self.domain.endpoint(cq=self.queue)
        self.peers: dict[str, Peer] = {}
        self.stopping = False
        self.awake = threading.Event()  # there is a peer, or the end has come
        self.number = 0
        self.last: dict[tuple[str, str], int] = {}  # of the present batch: the last atomic on each element

    # --- what the supervisor says

    def listen(self) -> None:
        while True:
            name, *rest = self.control.recv()
            if name == "meet":
                target, address, remotes = rest
                words = {key: pyfab.RemoteRegion.from_bytes(each) for key, each in remotes.items()}
                peers = {**self.peers, target: Peer(target, self.endpoint.av.insert(address), words, {})}
                self.peers = peers
                self.awake.set()
            elif name == "gone":
                self.peers = {key: peer for key, peer in self.peers.items() if key != rest[0]}
                if not self.peers:
                    self.awake.clear()
            elif name == "cut":
                self.journal.write("cut", rails.cut(*rest))
            elif name == "end":
                self.stopping = True
                self.awake.set()
                return

    # --- operations

    def hot(self, what: str, choices: Any) -> Any:
        """Mostly the one that all like at this time."""
        if self.chance.random() < 0.7:
            return random.Random(f"{what}{self.seed}{int(time.monotonic() / HOT)}").choice(choices)
        return self.chance.choice(choices)

    def level(self) -> int | None:
        return int(self.chance.choice(list(pyfab.Delivery)[:2])) if self.chance.random() < 0.1 else None

    def fresh(self) -> int:
        return self.chance.randrange(1, 1 << 40)

    def atomic(self, peer: Peer) -> Any:
        name = self.hot("atomic", [each for each in shared.elements() if ".atomic" in each])
        memory, index = name.split(".atomic")
        remote = peer.words[f"{memory}.words"].bytes(8 * int(index), 8 * int(index) + 8).view(np.int64, [1])
        kind = self.chance.choice(KINDS)
        value = self.fresh()
        arguments = {"read": [], "cswap": [peer.seen.get(name, 0), value]}.get(kind, [value])
        found = np.full(1, -1, np.int64) if kind not in ("add", "write") else None
        level = None if found is not None else self.level()
        operand, endpoint, ops = np.array([value]), self.endpoint, pyfab.AtomicOp
        if kind in ("add", "write"):
            op = ops.SUM if kind == "add" else ops.ATOMIC_WRITE
            call = partial(endpoint.atomic, op, operand, peer.handle, remote, flags=level)
        elif kind == "cswap":
            compare = np.array([arguments[0]])
            call = partial(endpoint.compare_atomic, ops.CSWAP, operand, compare, found, peer.handle, remote)
        else:
            op = {"fetch_add": ops.SUM, "swap": ops.ATOMIC_WRITE, "read": ops.ATOMIC_READ}[kind]
            call = partial(endpoint.fetch_atomic, op, operand, found, peer.handle, remote)
        after = self.last.get((peer.name, name), 0)
        number = self.begin(kind, peer, name, arguments, level, after)
        self.last[peer.name, name] = number
        return number, call, lambda: self.found(peer, name, found)

    @staticmethod
    def found(peer: Peer, name: str, found: np.ndarray | None) -> int | None:
        if found is not None:
            peer.seen[name] = int(found[0])
        return None if found is None else int(found[0])

    def remote(self, peer: Peer, name: str) -> pyfab.RemoteRegion:
        memory, kind = name.split(".")
        if kind.startswith("block"):
            return peer.words[name]
        start = 8 * (shared.ATOMICS + int(kind[4:]))
        return peer.words[f"{memory}.words"].bytes(start, start + 8)

    def place(self) -> str:
        kind = self.chance.choice([".cell", ".cell", ".block"])
        return str(self.hot("place", [each for each in shared.elements() if kind in each]))

    def put(self, peer: Peer, name: str = "") -> Any:
        name = name or self.place()
        remote, level = self.remote(peer, name), self.level()
        number = self.begin("put", peer, name, [], level)
        if ".cell" in name:
            memory = np.array([shared.stamp(self.me, number)])
        else:
            memory = np.empty(int(name.split(".block")[1]) // 8, np.int64)
            shared.fill(memory, shared.stamp(self.me, number))
        call = partial(self.endpoint.write, memory.view(np.uint8), peer.handle, remote, flags=level)
        return number, call, lambda: None

    def get(self, peer: Peer) -> Any:
        name = self.place()
        remote = self.remote(peer, name)
        landing = np.full(1 if ".cell" in name else int(name.split(".block")[1]) // 8, -1, np.int64)
        number = self.begin("get", peer, name, [], None)
        call = partial(self.endpoint.read, landing.view(np.uint8), peer.handle, remote)
        return number, call, lambda: int(landing[0]) if ".cell" in name else shared.values(landing)

    def send(self, peer: Peer, block: int = 0, put: int = 0) -> Any:
        tag, level = self.chance.randrange(shared.TAGS), self.level()
        if self.chance.random() < 0.3:
            level = int(pyfab.Delivery.DELIVERY)
        unordered = not put and self.chance.random() < 0.1
        words = int(2 ** self.chance.uniform(0, 14.5)) - 1
        number = self.begin("send", peer, "", [tag, int(unordered), put], level)
        memory = np.empty(shared.HEADER.size + 8 * words, np.uint8)
        memory[: shared.HEADER.size] = np.frombuffer(
            shared.HEADER.pack(self.me, number, block, put), np.uint8
        )
        shared.fill(memory[shared.HEADER.size :], shared.stamp(self.me, number))
        flags = (
            (level or int(pyfab.Delivery.TRANSMIT)) | int(pyfab.SendFlag.UNORDERED) if unordered else level
        )
        return number, partial(self.endpoint.tsend, memory, peer.handle, tag, flags=flags), lambda: None

    def begin(
        self, kind: str, peer: Peer, name: str, arguments: list[int], level: int | None, after: int = 0
    ) -> int:
        self.number += 1
        self.journal.write("call", self.number, kind, peer.name, name, arguments, level, after)
        return self.number

    # --- a batch

    def batch(self, peer: Peer) -> None:
        self.last.clear()
        begun = []
        for _ in range(self.chance.choice([1, 1, 2, 4])):
            kind = self.chance.choices([self.atomic, self.put, self.get, self.send], [60, 15, 20, 5])[0]
            begun.append(self.start(*kind(peer)))
        if self.chance.random() < 0.05:
            names = shared.elements()
            name = self.chance.choice([each for each in names if ".block" in each])
            begun.append(self.start(*self.put(peer, name)))
            begun.append(self.start(*self.send(peer, names.index(name), begun[-1][0])))
        for number, operation, result in begun:
            if operation is not None:
                try:
                    error = operation.exception(BOUND)
                except pyfab.OperationTimeout:
                    self.journal.write("hang", number)
                    raise
                self.finish(number, error, result)
        for entry in self.queue.read(256):
            if pyfab.CompletionFlag.LATE in entry.flags:
                self.journal.write("late", str(entry.error))

    def start(self, number: int, call: Any, result: Any) -> Any:
        try:
            return number, call(), result
        except pyfab.FabricError as error:
            self.finish(number, error, result)
            return number, None, result

    def finish(self, number: int, error: Any, result: Any) -> None:
        if error is None:
            self.journal.write("back", number, "done", result())
        elif isinstance(error, REFUSED):
            self.journal.write("back", number, "refused", None)
        elif isinstance(error, pyfab.PeerLostError):
            self.journal.write("back", number, "unknown", None)
        else:
            raise error

    def run(self) -> None:
        self.control.send(("hello",))
        threading.Thread(target=self.listen, daemon=True).start()
        while not self.stopping:
            self.awake.wait()
            if peers := self.peers:
                self.batch(self.hot("target", sorted(peers.values(), key=lambda peer: peer.name)))
        self.endpoint.close()
        self.domain.__exit__(None, None, None)
        self.journal.write("left")


if __name__ == "__main__":
    shared.serve(Client)
