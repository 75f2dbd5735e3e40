"""Helpers for tests of programs that use pyfab: the other side of a test, in a thread, in a process, or on another host.

The pytest plugin `pytest_pyfab` makes fixtures of them; docs/validation.md is the guide.

with Peer("shm+tcp") as peer, pyfab.Domain("shm+tcp") as domain, domain.endpoint() as endpoint:
    handle = endpoint.av.insert(peer.address)
    exposed = peer.expose(np.zeros(100))
    endpoint.write(np.ones(10), handle, exposed.remote[20:30]).result(timeout=10)
    assert exposed.content()[20:30].all()
"""

from __future__ import annotations

from pyfab.testing._fabric import Fabric, PairedWindow
from pyfab.testing._peer import Exposed, Peer
from pyfab.testing._remote import RemoteAgent
from pyfab.testing._target import MARGIN, Exposure, Target

__all__ = ["MARGIN", "Exposed", "Exposure", "Fabric", "PairedWindow", "Peer", "RemoteAgent", "Target"]
