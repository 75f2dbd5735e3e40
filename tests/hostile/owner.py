"""A program that others scribble over: python owner.py VECTOR

It works with a domain of its own and a peer that reaches it, over and over, until its standard input ends. What it asks for may
fail, with an error of pyfab; nothing else may happen. Then it says what it did.
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections import Counter

import numpy as np
import pyfab
from pyfab import Access


def ended() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def work(done: Counter[str], vector: pyfab.AddressVector, address: bytes) -> None:
    with (
        pyfab.Domain("shm", peer_deadline=1) as domain,
        domain.endpoint() as endpoint,
        pyfab.Domain("shm", peer_deadline=1, shm_copy="ring") as other,
        other.endpoint() as peer,
    ):
        for _ in range(50):
            if ended():
                return
            try:
                step(domain, endpoint, peer)
                done["step"] += 1
            except pyfab.FabricError as error:
                done[type(error).__name__] += 1
            try:
                handle = vector.insert(address)
                vector.lookup(handle)
                len(vector)
                vector.remove(handle)
                done["vector"] += 1
            except pyfab.FabricError as error:
                done[f"vector {type(error).__name__}"] += 1


def step(domain: pyfab.Domain, endpoint: pyfab.Endpoint, peer: pyfab.Endpoint) -> None:
    there, back = peer.av.insert(endpoint.address), endpoint.av.insert(peer.address)
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(domain.register(np.zeros(64), Access.REMOTE))
        shared = stack.enter_context(domain.register(domain.alloc(64), Access.REMOTE))
        begun = []
        for region in (own.remote, shared.remote):
            begun.append(peer.write(np.ones(64), there, region))
            begun.append(peer.read(np.zeros(64), there, region))
        begun.append(endpoint.send(b"x" * 100, back))
        for operation in begun:
            operation.exception(timeout=5)
    endpoint.av.remove(back)
    peer.av.remove(there)


def main() -> None:
    done: Counter[str] = Counter()
    with (
        pyfab.Domain("shm") as domain,
        domain.endpoint() as endpoint,
        domain.address_vector(name=sys.argv[1]) as vector,
    ):
        print("ready", flush=True)
        while not ended():
            with contextlib.suppress(pyfab.FabricError):
                work(done, vector, endpoint.address)
                done["rounds"] += 1
    print(dict(done), flush=True)


if __name__ == "__main__":
    main()
