"""perftest as a contestant: ``perftest.py <capacity> <device>``. Each request is a run of one of its programs against itself.

Latencies are those of the single operations that perftest lists, averaged in batches as others are. Of a bandwidth it says only
the mean, which then stands for all samples.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from protocol import pin, reply

WINDOW = 64
"""Operations in flight of a bandwidth, as pyfab's rates have them."""

LATENCY = {
    "ping_pong": "ib_write_lat",
    "get": "ib_read_lat",
    "fetch_add": "ib_atomic_lat",
}
BANDWIDTH = {
    "put": ["ib_write_bw", "--tx-depth=1"],
    "put_rate": ["ib_write_bw", f"--tx-depth={WINDOW}"],
    "get_rate": ["ib_read_bw", f"--tx-depth={WINDOW}"],
}
TRIES = 3
LIMIT = 50
"""Seconds of a run; the harness waits a little longer."""


def free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    return re.search(rf":{port:04X} \S+ 0A ", lines) is not None


class Refused(RuntimeError):
    """The target was not ready."""


def run(device: str, *command: str) -> str:
    """The output of the initiator's side. Over rdma_cm it is now and then refused, though the target listens."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(Refused):
            return attempt(device, *command)
    return attempt(device, *command)


def attempt(device: str, *command: str) -> str:
    port = free_port()
    line = [*command, f"--ib-dev={device}", f"--port={port}", "-F"]
    address = "127.0.0.1"
    if device.startswith("siw"):  # iWARP connects by no other way
        line.append("--rdma_cm")
        address = os.environ["PYFAB_GUEST_SIW_ADDR"]
    with tempfile.TemporaryFile("w+") as said:
        pin(1)
        server = subprocess.Popen(line, stdout=said, stderr=said)
        pin(0)
        try:
            while not listens(port) and server.poll() is None:
                time.sleep(0.01)
            done = subprocess.run(
                [*line, address], capture_output=True, text=True, timeout=LIMIT, check=False
            )
        finally:
            server.kill()
            server.wait()
        if done.returncode:
            said.seek(0)
            words = [*done.stderr.splitlines(), *said.read().splitlines()][-3:]
            kind = Refused if "Connection refused" in done.stderr else RuntimeError
            raise kind(f"{command[0]} failed: {'; '.join(words)}")
    return done.stdout


def latencies(device: str, what: str, size: int, batch: int, samples: int) -> list[float]:
    count = max(5, batch * samples)
    sized = [] if what == "fetch_add" else [f"--size={size}"]
    output = run(device, LATENCY[what], *sized, f"--iters={count}", "--report-unsorted")
    unit = 2000 if what == "ping_pong" else 1000  # ib_write_lat says half of it
    each = [unit * float(us) for us in re.findall(r"^\d+, (\S+)$", output, re.MULTILINE)]
    return [statistics.fmean(each[start : start + batch]) for start in range(0, len(each), batch)]


def bandwidth(device: str, what: str, size: int, batch: int, samples: int) -> list[float]:
    count = max(5, batch * samples * operations(what))
    output = run(device, *BANDWIDTH[what], f"--size={size}", f"--iters={count}", "--perform_warm_up")
    row = re.search(rf"^ *{size} .*$", output, re.MULTILINE)
    assert row, output
    *_, mib_per_s, mops = row[0].split()
    # The column with more digits: both have a fixed number of them behind the point.
    ns = 1000 / float(mops) if size < 1 << 10 else size / float(mib_per_s) / (1 << 20) * 1e9
    return [ns] * samples


def operations(what: str) -> int:
    return WINDOW if what.endswith("_rate") else 1


def main() -> None:
    _, device = sys.argv[1:]
    reply({"ready": True})
    for line in sys.stdin:
        what, *numbers = line.split()
        size, batch, samples = map(int, numbers)
        measure = latencies if what in LATENCY else bandwidth
        try:
            taken = measure(device, what, size, batch, samples)
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"})
        else:
            reply({"what": what, "size": size, "operations": operations(what), "ns": taken})


if __name__ == "__main__":
    main()
