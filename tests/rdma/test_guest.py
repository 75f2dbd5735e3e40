"""The guest of guest.py: its devices, what it passes on, and transfers between two of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import guest
import guest_kernel
import pytest


def _reason() -> str:
    if not os.environ.get("PYFAB_GUEST"):
        return "guests take minutes: asked for by PYFAB_GUEST=1"
    if "PYFAB_GUEST_RANK" in os.environ:
        return "this is a guest"
    return guest_kernel.missing()


SKIPPED = _reason()
pytestmark = [pytest.mark.skipif(bool(SKIPPED), reason=SKIPPED), pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT = 100  # seconds that a guest may take, of which some 5 are its start

DEVICES = """
import ctypes, ctypes.util, json
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_open_device.restype = ctypes.c_void_p
verbs.ibv_open_device.argtypes = verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
count = ctypes.c_int()
devices = verbs.ibv_get_device_list(ctypes.byref(count))
found = [devices[number] for number in range(count.value)]
print(json.dumps({verbs.ibv_get_device_name(device).decode(): bool(verbs.ibv_open_device(device)) for device in found}))
"""


@pytest.fixture(scope="module", autouse=True)
def kernel() -> Path:
    try:
        return guest_kernel.prepare()
    except guest_kernel.NoGuest as error:
        pytest.skip(str(error))


def run(
    *command: str, options: tuple[str, ...] = (), limit: int = LIMIT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What guest.py does with a command, as users call it."""
    return subprocess.run(
        [sys.executable, guest.__file__, "--timeout", str(limit), *options, "--", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit + 180,
        env={**os.environ, **environment},
    )


def needs(program: str, package: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"needs {program} (Debian package {package})")


def test_both_devices_are_there_and_can_be_opened(kernel: Path):
    done = run(sys.executable, "-c", DEVICES)
    if "libibverbs.so.1" in done.stderr:
        pytest.skip("needs libibverbs1 and ibverbs-providers")
    assert done.returncode == 0, done.stderr
    siw = {} if (kernel / "no-siw").exists() else {"siw0": True}
    assert json.loads(done.stdout) == {"rxe0": True, **siw}


def test_status_output_environment_and_shared_files_pass(tmp_path: Path):
    kept, lost = tmp_path / "kept, here", tmp_path / "lost"
    kept.mkdir()
    lost.mkdir()
    words = 'echo "$SAID"; pwd >&2; id -u; echo 1 >"$1/file"; echo 1 >"$2/file"; cat "$2/file"; exit 7'
    done = run(
        *("sh", "-c", words, "sh", str(kept), str(lost)),
        options=("--share", str(kept)),
        SAID="two\nlines, 'quoted'",
    )
    assert (done.returncode, done.stdout) == (7, "two\nlines, 'quoted'\n0\n1\n"), done.stderr
    assert str(Path.cwd()) in done.stderr
    assert (kept / "file").read_text() == "1\n"
    assert not (lost / "file").exists()


def test_a_command_that_takes_too_long_is_ended():
    done = run("sh", "-c", "echo started; exec sleep 1000", options=("--timeout", "15"))
    assert done.returncode == guest.TIMED_OUT
    assert done.stdout == "started\n"
    assert "ended after 15 s" in done.stderr


def test_what_a_command_leaves_behind_does_not_hold_it_up():
    done = run("sh", "-c", "sleep 1000 & exit 3")
    assert done.returncode == 3, done.stderr


def test_a_guest_that_dies_has_a_status_of_its_own():
    done = run("sh", "-c", "echo c >/proc/sysrq-trigger")
    assert done.returncode == guest.NO_GUEST
    assert "guest 0 died" in done.stderr and "sysrq" in done.stderr


def test_the_status_of_the_peer_counts_where_the_command_succeeds():
    done = run("true", options=("--peer", "echo first; exit 5"))
    assert done.returncode == 5
    assert done.stdout == "[peer] first\n"


def test_two_guests_write_into_each_others_memory_over_rxe0():
    needs("ib_write_bw", "perftest")
    transfer = "ib_write_bw -d rxe0 -F -s 65536 -n 20"
    done = run("sh", "-c", f"{transfer} $PYFAB_GUEST_PEER", options=("--peer", transfer))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ 65536 +20 +\d", done.stdout, re.MULTILINE), done.stdout


def test_two_guests_write_into_each_others_memory_over_siw0(kernel: Path):
    needs("rping", "rdmacm-utils")
    if (kernel / "no-siw").exists():
        pytest.skip((kernel / "no-siw").read_text())
    # The first message of a connection over soft-iWARP stays in its queue for ever once in a hundred times.
    target = "while ! timeout 40 rping -s -a $PYFAB_GUEST_SIW_ADDR -C 5 -V -v; do :; done"
    pings = "timeout 25 rping -c -a $PYFAB_GUEST_SIW_PEER -C 5 -V -v"
    done = run("sh", "-c", " || ".join([pings] * 3), options=("--peer", target))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^ping data: rdma-ping-\d", done.stdout, re.MULTILINE)) >= 5, done.stdout


def test_a_guest_that_does_not_come_up_is_started_anew(monkeypatch, capfd):
    monkeypatch.setattr(guest, "BOOT", 0.2)  # too short for all but the last, which has all the time
    assert guest.run(["true"], timeout=LIMIT) == 0
    assert capfd.readouterr().err.count("started anew") == guest.BOOTS - 1


def _dying(monkeypatch, times: int) -> None:
    """Guests whose kernel ends on the way up, so many times, after which they come up."""
    deaths = iter(range(times))
    start = guest.Guest.__init__

    def dies(self: guest.Guest, rank: int, control: Path, arguments: list[str], cables: list[object]) -> None:
        if rank == 0 and next(deaths, None) is not None:
            arguments = [*arguments[:-1], arguments[-1] + " rdinit=/missing init=/missing root=/dev/missing"]
        start(self, rank, control, arguments, cables)

    monkeypatch.setattr(guest.Guest, "__init__", dies)


def test_a_guest_that_dies_before_it_is_up_is_started_anew(monkeypatch, capfd):
    _dying(monkeypatch, 1)
    assert guest.run(["true"], "echo first", timeout=LIMIT) == 0
    told = capfd.readouterr()
    assert told.err.count("started anew") == 1 and "Kernel panic" in told.err
    assert told.out == "[peer] first\n"


def test_a_guest_that_never_comes_up_has_a_status_of_its_own(monkeypatch, capfd):
    monkeypatch.setattr(guest, "BOOTS", 1)
    _dying(monkeypatch, 1)
    assert guest.run(["true"], "true", timeout=LIMIT) == guest.NO_GUEST
    assert "guest 0 died" in capfd.readouterr().err


@pytest.mark.timeout(800)
@pytest.mark.parametrize("device", ["rxe0", "siw0"])
def test_the_conformance_subset_passes_between_two_guests(kernel: Path, device: str):
    if device == "siw0" and (kernel / "no-siw").exists():
        pytest.skip((kernel / "no-siw").read_text())
    pyfab = f"{shlex.quote(sys.executable)} -m pyfab"
    pick = "write_read and (range or typed or both_directions)"
    done = run(
        *(
            "sh",
            "-c",
            f"{pyfab} validate --links verbs:{device} --peer $PYFAB_GUEST_PEER --pytest=\"-k '{pick}'\"",
        ),
        options=("--memory", "1500", "--peer", f"{pyfab} agent --listen 0.0.0.0:29480"),
        limit=600,
        PYFAB_TOKEN="between guests",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* passed", done.stdout), done.stdout
