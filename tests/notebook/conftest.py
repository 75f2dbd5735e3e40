"""A kernel for cells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernels import Kernel


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """One Jupyter kernel for the cells of a module's tests."""
    for name in ("ipykernel", "jupyter_client"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    with Kernel() as running:
        yield running
