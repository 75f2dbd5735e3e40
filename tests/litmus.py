"""How often tests that look for a race try.

A few thousand rounds are quick and find what is badly wrong; `FAB_ROUNDS=1000000 pytest --timeout=0 -m litmus`, with
the C++ tests' own `FAB_ROUNDS=1000000 build/release/tests/cpp/fabric_noncoherent_synchronisation_test`, is the full depth.
"""

from __future__ import annotations

from pyfab.testing.suite.support import litmus, rounds

__all__ = ["litmus", "rounds"]
