"""The validation suite's tests of many ranges in one operation, over every combination."""

from pyfab.testing.suite.test_many import *  # noqa: F403
