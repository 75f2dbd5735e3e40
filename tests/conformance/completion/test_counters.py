"""The validation suite's tests of counters, over every combination."""

from __future__ import annotations

from pyfab.testing.suite.test_counters import *  # noqa: F403
