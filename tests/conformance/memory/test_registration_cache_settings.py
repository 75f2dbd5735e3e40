"""Settings of the registration cache by keyword and environment, and the monitors that it can have."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pyfab
import pytest
from caching import registered
from pyfab import Access
from support import TIMEOUT, random_bytes

pytestmark = pytest.mark.usefixtures("default_cache")


@pytest.mark.req("MR-77")
@pytest.mark.parametrize("by", ["keyword", "environment"])
@pytest.mark.parametrize("asked", [None, True])
@pytest.mark.parametrize("monitor", ["userfaultfd", "memhooks", "kdreg2", "disabled"])
def test_each_monitor(links, monitor, asked, by, monkeypatch):
    settings = {**links.settings, "mr_cache": asked}
    if by == "keyword":
        settings["mr_cache_monitor"] = monitor
        monkeypatch.setenv("FI_MR_CACHE_MONITOR", "disabled")
    else:
        monkeypatch.setenv("FI_MR_CACHE_MONITOR", monitor)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        domain = pyfab.Domain(links.spec, **settings)
    with domain, domain.endpoint() as endpoint:
        endpoint.av.insert(endpoint.address)
        memory = random_bytes(1000)
        registered(domain, memory)
        with domain.register(memory, Access.REMOTE) as region:
            back = np.zeros_like(memory)
            endpoint.read(back, 0, region.remote).result(TIMEOUT)
            assert np.array_equal(back, memory)
        stats = domain.stats().cache
        assert stats.hits == (1 if monitor == "userfaultfd" else 0)
        assert stats.monitor == ("userfaultfd" if monitor == "userfaultfd" else "disabled")
    if monitor in ("memhooks", "kdreg2"):
        (warning,) = told
        assert warning.category is RuntimeWarning
        assert warning.filename == __file__
        assert f"the monitor {monitor} is not available here, because" in str(warning.message)
    else:
        assert told == []


@pytest.mark.req("MR-77")
def test_a_domain_has_no_cache_unless_asked(links, monkeypatch):
    memory = np.zeros(100, np.uint8)
    for asked, variable in ((None, None), (False, None), (False, "userfaultfd")):
        if variable:
            monkeypatch.setenv("FI_MR_CACHE_MONITOR", variable)
        with pyfab.Domain(links.spec, mr_cache=asked, **links.settings) as domain:
            for _ in range(2):
                registered(domain, memory)
            stats = domain.stats().cache
            assert (stats.monitor, stats.searches, stats.cached_count) == ("disabled", 0, 0)


FORBIDDEN = """
import ctypes, struct, sys, warnings
import numpy as np
import pyfab
libc = ctypes.CDLL(None, use_errno=True)
# A filter that answers userfaultfd with EPERM, as containers do.
SYS_userfaultfd = {"x86_64": 323, "aarch64": 282}[__import__("platform").machine()]
program = b"".join(struct.pack("HBBI", *line) for line in (
    (0x20, 0, 0, 0), (0x15, 0, 1, SYS_userfaultfd), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)))
buffer = ctypes.create_string_buffer(program)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(4, ctypes.addressof(buffer))), 0, 0) == 0
try:
    open("/dev/userfaultfd").close()
    device = True
except OSError:
    device = False
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with pyfab.Domain("shm", mr_cache=True) as domain:
        memory = np.zeros(100)
        for _ in range(2):
            domain.register(memory, pyfab.Access.REMOTE).close()
        stats = domain.stats().cache
    pyfab.Transport("shm").close()  # takes one where it can, and nobody asked for it
assert (stats.hits, len(told)) == ((1, 0) if device else (0, 1)), (stats, told)
assert device or "userfaultfd cannot be opened" in str(told[0].message)
"""


@pytest.mark.req("MR-77")
def test_userfaultfd_that_is_forbidden():
    run = subprocess.run(
        [sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.req("MR-71", "MR-72", "MR-77")
@pytest.mark.parametrize("by", ["keyword", "environment"])
@pytest.mark.parametrize(
    "setting, value",
    [(name, value) for name in ("max_size", "max_count") for value in ("-1", "many", "1.5", "1k", str(2**64))]
    + [("monitor", "uffd"), ("monitor", "Disabled")],
)
def test_bad_values_are_named(setting, value, by, monkeypatch):
    settings = {}
    if by == "keyword":
        settings[f"mr_cache_{setting}"] = value
    else:
        monkeypatch.setenv(f"FI_MR_CACHE_{setting.upper()}", value)
    name = f"mr_cache_{setting}" if by == "keyword" else f"FI_MR_CACHE_{setting.upper()}"
    with pytest.raises(pyfab.InvalidArgumentError, match=f'{name} is "{value}"; it is '):
        pyfab.Domain("shm", **settings)


@pytest.mark.parametrize("value", ["yes", 1, 0])
def test_whether_to_cache_is_a_truth_value(value):
    with pytest.raises(pyfab.InvalidArgumentError, match=f"mr_cache={value!r}"):
        pyfab.Domain("shm", mr_cache=value)
