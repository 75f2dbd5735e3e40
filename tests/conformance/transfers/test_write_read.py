"""The validation suite's tests of puts and gets, over every combination; and that each is what it says."""

from __future__ import annotations

import numpy as np
from pyfab.testing.suite.test_write_read import *  # noqa: F403


def test_the_way_that_is_tested_is_the_one_used(pair):
    exposed = pair.expose(np.zeros(8))
    pair.put(np.ones(8), exposed.remote)
    link, how, why = pair.endpoint.report(pair.handle)
    assert link.startswith(pair.combination.link)
    assert how.startswith(pair.combination.how)
    assert why
