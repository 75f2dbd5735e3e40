"""What a synchronisation call of ten triplets costs from Python on a domain that does not need it.

Ends with 1 if that is a microsecond or more. `benchmarks/cpp/sync_calls.cpp` is the same for C++.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pyfab

ROUNDS, CALLS, BOUND_NS = 61, 2000, 1000


def cost(domain: pyfab.Domain, segments: list[pyfab.Triplet]) -> float:
    """The best round, as whatever else runs on the machine only adds: ns a call."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(CALLS // 2):
            domain.sync_rdma_read(segments)
            domain.sync_rdma_write(segments)
        rounds.append((time.perf_counter_ns() - start) / CALLS)
    return min(rounds)


def main() -> int:
    """Measures and judges."""
    with pyfab.Domain("shm") as domain:
        region = domain.register(np.zeros(640, np.uint8), pyfab.Access.REMOTE)
        segments = [pyfab.Triplet(region.lmr_context, region.address + 64 * i, 64) for i in range(10)]
        one, ten = cost(domain, segments[:1]), cost(domain, segments)
    print(f"1 triplet {one:.0f} ns, 10 triplets {ten:.0f} ns, bound {BOUND_NS} ns")
    return int(ten >= BOUND_NS)


if __name__ == "__main__":
    sys.exit(main())
