"""The compiled extension as other libraries of its process see it."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from pyfab import _core


def test_it_shows_nothing_but_its_entry():
    """What else it shows would be shared with other libraries, whose C++ runtime may be of another version."""
    if not (tool := shutil.which("nm")):
        pytest.skip("nm is missing: apt-get install binutils")
    listed = subprocess.run(
        [tool, "--dynamic", "--defined-only", "--format=posix", _core.__file__],
        check=True,
        capture_output=True,
        text=True,
    )
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["PyInit__core"]
