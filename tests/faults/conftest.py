"""Faults are real: processes are stopped and killed, connections are broken, permissions are taken away."""

from __future__ import annotations

from contextlib import ExitStack

import pyfab
import pytest
from pyfab.testing import Peer

DEADLINE = 2  # seconds without a sign of life until a peer counts as lost


class Station:
    """A local endpoint and any number of peers, all with a short deadline."""

    def __init__(self, stack: ExitStack, spec: str, **settings) -> None:
        self._stack, self._spec, self.settings = stack, spec, {"peer_deadline": DEADLINE, **settings}
        self.domain = stack.enter_context(pyfab.Domain(spec, **self.settings))
        self.endpoint = stack.enter_context(self.domain.endpoint())

    def peer(self, **settings) -> tuple[Peer, int]:
        """A process, and its handle here."""
        peer = self._stack.enter_context(Peer(self._spec, **{**self.settings, **settings}))
        return peer, self.endpoint.av.insert(peer.address)


@pytest.fixture
def station():
    with ExitStack() as stack:
        yield lambda spec, **settings: Station(stack, spec, **settings)
