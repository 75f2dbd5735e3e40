"""The validation suite's tests of refused accesses, over every combination."""

from __future__ import annotations

from pyfab.testing.suite.test_errors import *  # noqa: F403
