"""Chosen faults: a peer is killed, or stopped for long or short; a link goes down. Others go on, and what returns works again."""

from __future__ import annotations

import shlex
import subprocess
import time
from contextlib import ExitStack

import numpy as np
import pyfab
import pytest
from pyfab.testing.suite.support import TIMEOUT
from pytest_pyfab import session_of

DEADLINE = 2.0  # seconds without a sign of life until a peer counts as lost
NOTICE = 8.0  # seconds that a busy machine may need in addition to notice the loss
pytestmark = pytest.mark.usefixtures("drill")
GONE = pyfab.PeerLostError
WORDS = 1000


@pytest.fixture
def drill(request):
    """Skips drills that were not chosen; the test's name ends with its drill."""
    name = request.function.__name__.rpartition("_")[2]
    if name not in session_of(request.config).drills:
        pytest.skip(f"not chosen: --drills {name}")


class Station:
    """A local endpoint with a short deadline, and peers that it knows, each with an array of its own."""

    def __init__(self, fabric, stack, deadline=DEADLINE):
        self._fabric, self._stack, self._deadline = fabric, stack, deadline
        self.domain = stack.enter_context(fabric.open_domain(peer_deadline=deadline))
        self.endpoint = stack.enter_context(self.domain.endpoint())

    def peer(self):
        peer = self._stack.enter_context(self._fabric.open_peer(peer_deadline=self._deadline))
        peer.meet(self.endpoint)
        return peer, peer.expose(np.zeros(WORDS, np.int64), alloc=self._fabric.alloc)

    def put(self, peer, exposed, value):
        return self.endpoint.write(np.full(WORDS, value), peer.handle, exposed.remote)

    def works(self, peer, exposed, value):
        """Makes a put and a get, and verifies them."""
        self.put(peer, exposed, value).result(TIMEOUT)
        back = np.zeros(WORDS, np.int64)
        self.endpoint.read(back, peer.handle, exposed.remote).result(TIMEOUT)
        assert (back == value).all()

    def error(self, peer, exposed, value):
        """The error of a put, whether its call raises it or its outcome has it; None for success."""
        try:
            return self.put(peer, exposed, value).exception(TIMEOUT)
        except pyfab.FabricError as error:
            return error

    def until_lost(self, peer, exposed, meanwhile):
        """Seconds until a put fails because the peer is gone. Puts before may have reached memory that is still mapped."""
        start = time.monotonic()
        while (error := self.error(peer, exposed, 2)) is None:
            meanwhile()
            assert time.monotonic() < start + DEADLINE + NOTICE, "the loss of the peer was not noticed"
        took = time.monotonic() - start
        assert isinstance(error, GONE), error
        assert took < DEADLINE + NOTICE
        return took


@pytest.fixture
def station(fabric):
    if fabric.where == "thread":
        pytest.skip("a thread can be neither stopped nor killed")
    with ExitStack() as stack:
        yield lambda **options: Station(fabric, stack, **options)


def test_kill(station, pyfab_record):
    here = station()
    (victim, lost), (survivor, kept) = here.peer(), here.peer()
    here.works(victim, lost, 1)
    ended = []
    flying = [here.put(victim, lost, 2) for _ in range(100)]
    for operation in flying:
        operation.add_done_callback(ended.append)
    victim.kill()
    took = here.until_lost(victim, lost, lambda: here.works(survivor, kept, 3))
    errors = [operation.exception(TIMEOUT) for operation in flying]
    assert all(error is None or isinstance(error, GONE) for error in errors)
    here.endpoint.flush(timeout=TIMEOUT)
    assert len(ended) == len(flying)
    here.works(survivor, kept, 4)
    here.works(*here.peer(), 5)
    pyfab_record("drill", drill="kill", noticed_after_s=round(took, 3), deadline_s=DEADLINE)


def test_stop(station, pyfab_record):
    """Puts into shared memory need nothing of a stopped peer; others are lost at the deadline. Then it can be used again."""
    here = station()
    (victim, silent), (survivor, kept) = here.peer(), here.peer()
    here.works(victim, silent, 1)
    victim.suspend()
    try:
        start = time.monotonic()
        waiting = here.put(victim, silent, 2)
        here.works(survivor, kept, 3)
        error = waiting.exception(TIMEOUT)
        took = time.monotonic() - start
        assert error is None or isinstance(error, pyfab.PeerLostError)
        assert took < DEADLINE + NOTICE
        here.works(survivor, kept, 4)
    finally:
        victim.resume()
    here.works(victim, silent, 5)
    assert (silent.content() == 5).all()
    pyfab_record(
        "drill", drill="stop", noticed_after_s=round(took, 3) if error else None, deadline_s=DEADLINE
    )


def test_resume(station, pyfab_record):
    """A peer that goes on before its deadline has lost nothing."""
    here = station(deadline=60.0)
    victim, exposed = here.peer()
    here.works(victim, exposed, 1)
    victim.suspend()
    try:
        flying = [here.put(victim, exposed, value) for value in range(2, 52)]
        try:
            flying[-1].result(DEADLINE / 2)
        except pyfab.OperationTimeout:
            waited = True
        else:
            waited = False
    finally:
        victim.resume()
    for operation in flying:
        assert operation.result(TIMEOUT).nbytes == 8 * WORDS
    assert (exposed.content() == 51).all()
    pyfab_record("drill", drill="resume", waited=waited, deadline_s=60.0)


def test_link(station, request, pyfab_record):
    """The user's commands take a link down and up: operations fail in time, or another link takes them; then it heals."""
    session = session_of(request.config)
    if not (session.link_down and session.link_up):
        pytest.skip("needs --link-down COMMAND and --link-up COMMAND")
    here = station()
    peer, exposed = here.peer()
    here.works(peer, exposed, 1)
    subprocess.run(shlex.split(session.link_down), check=True, timeout=TIMEOUT)
    try:
        start = time.monotonic()
        error = here.error(peer, exposed, 2)
        took = time.monotonic() - start
        assert error is None or isinstance(error, GONE)
        assert took < DEADLINE + NOTICE
    finally:
        subprocess.run(shlex.split(session.link_up), check=True, timeout=TIMEOUT)
    start = time.monotonic()
    while here.error(peer, exposed, 3) is not None:
        assert time.monotonic() < start + TIMEOUT, "the link is up, and the peer was not reached again"
    here.works(peer, exposed, 4)
    healed = time.monotonic() - start
    pyfab_record(
        "drill",
        drill="link",
        noticed_after_s=round(took, 3) if error else None,
        healed_after_s=round(healed, 3),
        deadline_s=DEADLINE,
    )
