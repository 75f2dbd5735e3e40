"""The validation suite's tests of remote data, over every combination."""

from pyfab.testing.suite.test_remote_data import *  # noqa: F403
