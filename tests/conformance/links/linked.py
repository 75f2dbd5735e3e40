"""Linked endpoints with peers on each link, for the tests of this folder."""

from __future__ import annotations

import numpy as np
import pyfab
from pyfab.testing import Peer
from support import insert

ONE = np.ones(1, np.int64)


def link_to(endpoint, peer):
    return endpoint.report(peer)[0].partition(".")[0]


class Linked:
    """A linked endpoint with a peer over shared memory, one over tcp, and both at once in `handles`."""

    def __init__(self, stack, **settings):
        self.peers = {spec: stack.enter_context(Peer(spec, **settings)) for spec in ("shm", "tcp")}
        self.domain = stack.enter_context(pyfab.Domain("shm+tcp", **settings))
        self.endpoint = stack.enter_context(self.domain.endpoint())
        self.handles = {spec: self.endpoint.av.insert(peer.address) for spec, peer in self.peers.items()}
        self.handles_there = {
            spec: peer.run(insert, self.endpoint.address) for spec, peer in self.peers.items()
        }

    def __iter__(self):
        for spec, peer in self.peers.items():
            yield spec, peer, self.handles[spec]
