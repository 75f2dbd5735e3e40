"""Runs test modules of mpi4py in this process, with its windows replaced by pyfab's: run.py FOLDER MODULE..."""

from __future__ import annotations

import importlib
import sys
import unittest
from pathlib import Path

sys.path[:0] = [sys.argv[1], str(Path(__file__).parent)]

from mpi4py import MPI  # noqa: E402

from windows import Win  # noqa: E402

MPI.Win = Win  # all that is adapted: how a window is made, and the names of its methods
suite = unittest.TestSuite(
    unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name)) for name in sys.argv[2:]
)
result = unittest.TextTestRunner(verbosity=1).run(suite)
sys.exit(not result.wasSuccessful())
