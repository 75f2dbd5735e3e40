"""A target: its memory is put to, got from and updated by all clients, and it takes their messages."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import shared

sys.path.insert(0, str(Path(__file__).parent.parent))
import rails

RECEIVES = 4  # of each tag


class Target:
    def __init__(self, control: Connection, settings: dict[str, Any]) -> None:
        self.control, self.journal = control, shared.Journal(settings["journal"])
        self.chance = random.Random(settings["seed"])
        self.domain = pyfab.Domain(settings["links"], **settings["domain"])
        self.queue = self.domain.completion_queue(1 << 15)
        self.endpoint = self.domain.endpoint(cq=self.queue)
        self.memory: dict[str, np.ndarray] = {}
        self.regions: list[pyfab.MemoryRegion] = []
        self.remotes: dict[str, bytes] = {}
        for name in shared.MEMORIES:
            self._open(f"{name}.words", name, 8 * (shared.ATOMICS + shared.CELLS))
            for size in shared.BLOCKS:
                shared.fill(self._open(f"{name}.block{size}", name, size), 0)
        self.matches = [0] * shared.TAGS
        self.stopping = False

    def _open(self, name: str, kind: str, size: int) -> np.ndarray:
        memory = self.domain.alloc(size // 8, np.int64) if kind == "mapped" else np.zeros(size // 8, np.int64)
        region = self.domain.register(memory, pyfab.Access.REMOTE)
        self.regions.append(region)
        self.remotes[name], self.memory[name] = region.remote.to_bytes(), memory
        return memory

    def post(self, tag: int) -> None:
        landing = np.empty(shared.LARGEST_MESSAGE, np.uint8)
        self.matches[tag] += 1
        self.endpoint.trecv(landing, tag, context=(tag, self.matches[tag], landing))

    def receive(self) -> None:
        for tag in range(shared.TAGS):
            for _ in range(RECEIVES):
                self.post(tag)
        later: list[int] = []
        while not self.stopping:
            if not later or self.chance.random() < 0.9:
                with contextlib.suppress(pyfab.OperationTimeout):
                    self.queue.wait(0.02)
            for entry in self.queue.read(256):
                if entry.context is not None:
                    self.received(entry)
                    later.append(entry.context[0])
            if later and self.chance.random() < 0.5:  # so that messages come unexpected as well
                for tag in later:
                    self.post(tag)
                later = []

    def received(self, entry: Any) -> None:
        tag, match, landing = entry.context
        if entry.error is not None:
            self.journal.write("no message", tag, match, str(entry.error))
            return
        sender, number, block, put = shared.HEADER.unpack(landing[: shared.HEADER.size].tobytes())
        body = landing[shared.HEADER.size : entry.nbytes]
        whole = shared.values(body) == [shared.stamp(sender, number)] or not len(body)
        when = self.journal.write("got", tag, match, sender, number, put, whole)
        if put:
            name = shared.elements()[block]
            self.look(name, when)

    def look(self, name: str, call: int) -> None:
        """At the block, as a program that has learned of the put."""
        self.journal.write("seen", name, call, shared.values(self.memory[name].copy()))

    def final(self) -> None:
        """What is there when all that others did has completed."""
        for name in shared.elements():
            memory, kind = name.split(".")
            if kind.startswith("block"):
                self.look(name, self.journal.write("look"))
            else:
                index = int(kind[6:]) if kind.startswith("atomic") else shared.ATOMICS + int(kind[4:])
                self.journal.write("word", name, int(self.memory[f"{memory}.words"][index]))

    def run(self) -> None:
        self.control.send(("hello", self.endpoint.address, self.remotes))
        receiver = threading.Thread(target=self.receive, daemon=True)
        receiver.start()
        while True:
            name, *rest = self.control.recv()
            if name == "cut":
                self.journal.write("cut", rails.cut(*rest))
            elif name == "final":
                self.final()
                self.control.send(("final",))
            elif name == "end":
                break
        self.stopping = True
        receiver.join()
        self.domain.__exit__(None, None, None)


if __name__ == "__main__":
    shared.serve(Target)
