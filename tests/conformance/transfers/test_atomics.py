"""The validation suite's tests of atomic operations, over every combination."""

from pyfab.testing.suite.test_atomics import *  # noqa: F403
