"""Rails between machines: unequal ones share a large transfer, and cables that are pulled in the middle lose nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from litmus import litmus, rounds
from netns import Bench, unavailable

SPEC = "tcp:r0,r1,r2"

INITIATOR = """
import json, time
import numpy as np, pyfab

rounds = int(sys.argv[2])
domain = pyfab.Domain(sys.argv[1], rail_deadline=0.3, peer_deadline=30)
endpoint = domain.endpoint()
told = json.loads(input())
peer = endpoint.av.insert(bytes.fromhex(told["address"]))
memory, sums = (pyfab.RemoteRegion.from_bytes(bytes.fromhex(told[name])) for name in ("memory", "sums"))
generator, completions, former = np.random.default_rng(1), 0, []
for turn in range(rounds):
    print("begin", flush=True)
    content = generator.integers(0, 256, memory.nbytes, np.uint8)
    put = endpoint.write(content, peer, memory)
    adds = []
    for _ in range(50):
        landing = np.zeros(1, np.int64)
        adds.append((landing, endpoint.fetch_atomic(pyfab.AtomicOp.SUM, np.ones(1, np.int64), landing, peer, sums)))
    put.result(60)
    for landing, add in adds:
        add.result(60)
        former.append(int(landing[0]))
    back = np.zeros_like(content)
    endpoint.read(back, peer, memory).result(60)
    assert (back == content).all()
    completions += len(endpoint.cq.read(1000))
assert completions == 52 * rounds, completions  # one for each operation
assert sorted(former) == list(range(50 * rounds))
print("end", endpoint.report(peer)[0], flush=True)
"""
TARGET = """
import json
import numpy as np, pyfab

domain = pyfab.Domain(sys.argv[1], rail_deadline=0.3, peer_deadline=30)
endpoint = domain.endpoint()
memory, sums = np.zeros(int(sys.argv[2]), np.uint8), np.zeros(1, np.int64)
regions = [domain.register(array, pyfab.Access.REMOTE) for array in (memory, sums)]
remotes = [region.remote.to_bytes().hex() for region in regions]
print(json.dumps({"address": endpoint.address.hex(), "memory": remotes[0], "sums": remotes[1]}), flush=True)
sys.stdin.read()
"""


def start(bench, size, times):
    target = bench.node(1).popen(TARGET, SPEC, str(size))
    initiator = bench.node(0).popen(INITIATOR, SPEC, str(times))
    initiator.stdin.write(target.stdout.readline())
    initiator.stdin.flush()
    return target, initiator


@pytest.mark.slow
@pytest.mark.req("LNX-63")
def test_unequal_rails_share_a_large_transfer():
    """The fastest of them carries two thirds at most, so that all together have 1.5 times its bandwidth or more."""
    size, times = 64 << 20, 2
    with Bench(nodes=2, rails=3, rates=["200mbit", "400mbit", "600mbit"]) as bench:
        _target, initiator = start(bench, size, times)
        output, _ = initiator.communicate(timeout=100)
        assert output.splitlines()[-1] == "end tcp.0+tcp.1+tcp.2", output
        for direction in (0, 1):  # gets, puts
            moved = [bench.node(0).counters(rail)[direction] for rail in range(3)]
            assert sum(moved) > size * times
            assert min(moved) > 0.05 * sum(moved), moved
            assert max(moved) < sum(moved) / 1.5, moved


@pytest.mark.slow
@pytest.mark.req("LNX-63")
def test_unequal_rails_are_faster_than_the_fastest_alone():
    """By half or more: a ratio of links that are throttled far below what any machine moves, so it is none of the machine's."""
    if reason := unavailable():
        pytest.skip(f"no bench of network namespaces: {reason}")
    program = Path(__file__).parents[2] / "benchmarks" / "rails.py"
    command = [sys.executable, program, "--unequal", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@litmus
@pytest.mark.req("LNX-64")
def test_cables_are_pulled_in_the_middle():
    times = rounds(6)
    with Bench(nodes=2, rails=3, rates=["200mbit"] * 3) as bench:
        _target, initiator = start(bench, 8_000_000, times)
        unplugged = None
        for turn in range(times):
            assert initiator.stdout.readline() == "begin\n"
            if unplugged is not None:
                bench.node(1).plug(unplugged)
            unplugged = turn % 3
            bench.node(1).unplug(unplugged)
        output, _ = initiator.communicate(timeout=100)
        assert output.splitlines()[-1].startswith("end"), output
