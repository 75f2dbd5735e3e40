"""Measures what `draw.py` shows of fail-over: puts over two rails, one of which is unplugged and plugged in again.

python docs/figures/measure_failover.py   # ten seconds; needs what tests/netns.py needs (root, iproute2, nftables)

Two machines made of name spaces, joined by two rails of 1 Gbit/s. The initiator keeps two puts of 16 MiB under way, and adds one
to a counter at the target after each; the counter and the bytes are compared in the end.
What arrives at the target's network cards is read every 20 ms. Writes failover.json.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyfab.bench import machine_facts

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from netns import Bench, finish, unavailable

RECORDED = Path(__file__).with_name("failover.json")
RATE = "1gbit"
SIZE, SECONDS = 16 << 20, 10.0
UNPLUGGED, PLUGGED = 2.5, 5.0  # seconds after the first put

TARGET = """
import json, threading, time
import numpy as np, pyfab

domain = pyfab.Domain("tcp:r0,r1")
endpoint = domain.endpoint()
arrays = np.zeros(int(sys.argv[1]), np.uint8), np.zeros(1, np.int64)
regions = [domain.register(array, pyfab.Access.REMOTE) for array in arrays]
told = [endpoint.address, *(region.remote.to_bytes() for region in regions)]
print(json.dumps([part.hex() for part in told]), flush=True)
samples, over = [], threading.Event()

def sample():
    counters = [open(f"/sys/class/net/r{rail}/statistics/rx_bytes") for rail in (0, 1)]
    while not over.wait(0.02):
        arrived = []
        for counter in counters:
            counter.seek(0)
            arrived.append(int(counter.read()))
        samples.append([time.monotonic(), *arrived])

thread = threading.Thread(target=sample)
thread.start()
expected = int(sys.stdin.read())
over.set()
thread.join()
digest = int(arrays[0].astype(np.int64) @ np.arange(arrays[0].size))
print(json.dumps({"samples": samples, "counted": int(arrays[1][0]), "intact": digest == expected}))
"""
INITIATOR = """
import collections, json, time
import numpy as np, pyfab

endpoint = pyfab.Domain("tcp:r0,r1").endpoint()
address, *remotes = (bytes.fromhex(part) for part in json.loads(sys.argv[1]))
peer = endpoint.av.insert(address)
memory, counter = (pyfab.RemoteRegion.from_bytes(remote) for remote in remotes)
content = np.random.default_rng(1).integers(0, 256, memory.nbytes, np.uint8)
endpoint.put(np.zeros_like(content), peer, memory)  # connects
one, start, puts, under_way = np.ones(1, np.int64), time.monotonic(), 0, collections.deque()
print(start, flush=True)
while time.monotonic() - start < float(sys.argv[2]):
    put = endpoint.write(content, peer, memory)
    under_way.append((put, endpoint.atomic(pyfab.AtomicOp.SUM, one, peer, counter)))
    puts += 1
    if len(under_way) == 2:
        for operation in under_way.popleft():
            operation.result(60)
for operation in (operation for pair in under_way for operation in pair):
    operation.result(60)
print(json.dumps({"puts": puts, "digest": int(content.astype(np.int64) @ np.arange(content.size))}))
"""


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def measured() -> dict[str, Any]:
    """What moved, in seconds from the first put and bytes since then, and what became of it."""
    with Bench(nodes=2, rails=2, rates=[RATE] * 2) as bench:
        target = bench.node(1).popen(TARGET, str(SIZE))
        initiator = bench.node(0).popen(INITIATOR, told(target), str(SECONDS))
        start = float(told(initiator))
        wait_until(start + UNPLUGGED)
        bench.node(1).unplug(0)
        unplugged = time.monotonic()
        wait_until(start + PLUGGED)
        bench.node(1).plug(0)
        plugged = time.monotonic()
        done = json.loads(finish(initiator))
        assert target.stdin
        target.stdin.write(str(done["digest"]))
        arrived = json.loads(finish(target))
    assert arrived["intact"] and arrived["counted"] == done["puts"], (done, arrived["counted"])
    machine = machine_facts(0)
    samples = [sample for sample in arrived["samples"] if sample[0] >= start]
    first = samples[0]
    return {
        "what": f"puts of {SIZE >> 20} MiB, two under way, over two rails of {RATE}; bytes that arrived at each network card",
        "machine": {name: machine[name] for name in ("cpu", "cores", "virtual", "kernel", "load", "date")},
        "puts": done["puts"],
        "unplugged": round(unplugged - start, 3),
        "plugged": round(plugged - start, 3),
        "samples": [[round(at - start, 3), one - first[1], two - first[2]] for at, one, two in samples],
    }


def main() -> None:
    if reason := unavailable():
        sys.exit(f"no machines of name spaces: {reason}")
    RECORDED.write_text(json.dumps(measured()).replace("], [", "],\n[") + "\n")


if __name__ == "__main__":
    main()
