"""Both sides do random things to each other's memory for a while; in the end every byte, sum and message is accounted for."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from pyfab import Access
from pyfab.testing.suite.soak import CELLS, SLOT, SLOTS, Soak, soak_there
from pyfab.testing.suite.support import TIMEOUT
from pytest_pyfab import session_of


def test_soak(request, pair, pyfab_record):
    seconds = session_of(request.config).soak
    if not seconds:
        pytest.skip("no soak was asked for: --soak SECONDS")
    memory, cells = pair.expose(np.zeros(SLOTS * SLOT, np.uint8)), pair.expose(np.zeros(CELLS, np.int64))
    memory_here, cells_here = np.zeros(SLOTS * SLOT, np.uint8), np.zeros(CELLS, np.int64)
    regions = [pair.register(array, Access.REMOTE) for array in (memory_here, cells_here)]
    pair.peer.start(soak_there, pair.handle_there, *(region.remote for region in regions), 2, seconds)
    ours = Soak(pair.endpoint, pair.handle, memory.remote, cells.remote, 1).run(seconds)
    theirs = pair.peer.finish(seconds + 2 * TIMEOUT)
    pair.domain.sync_rdma_write(regions)
    pyfab_record("soak", seconds=seconds, here=ours, there=theirs)
    for side in (ours, theirs):
        assert side["wrong"] == []
        assert (side["errors"], side["unsettled"]) == (0, 0)
        assert min(side["operations"][kind] for kind in ("put", "get", "write_many", "fetch_add")) > 0
    assert ours["operations"]["send"] == theirs["operations"]["recv"]
    assert theirs["operations"]["send"] == ours["operations"]["recv"]
    assert zlib.crc32(memory.content().tobytes()) == ours["memory"]
    assert zlib.crc32(memory_here.tobytes()) == theirs["memory"]
    assert cells.content().tolist() == ours["sums"]
    assert cells_here.tolist() == theirs["sums"]
