"""Windows of one process alone, in which all others' checks hold as well."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from crew import WAYS, Way
from support import TIMEOUT
from test_window_completion import awaiting, failures_are_raised
from test_window_epochs import fences
from test_window_transfers import outside, rows_by_number, strided_transfers


@pytest.mark.req("WIN-14")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_one_process_alone(way: Way) -> None:
    with pyfab.Group(0, 1, domain=way.links) as group:
        for check in (
            strided_transfers,
            rows_by_number,
            outside,
            fences,
            awaiting,
            failures_are_raised,
        ):
            check(group, way)
        with way.window(group, 8, epochs=True) as window:
            with window.post([0]), window.start([0]):
                window[0].put(np.arange(8))
            with window.lock(0):
                assert window[0].fetch_add(1, 7).result(TIMEOUT) == 7
                window.flush()
            assert window.local.tolist() == [*range(7), 8]
