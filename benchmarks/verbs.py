"""pyfab over an RDMA device beside perftest: two processes of one machine, `--link` and `--device` say over what.

python tests/rdma/guest.py --timeout 1800 --share . -- python benchmarks/verbs.py --json out.jsonl

The baseline of a put, which is complete when the target has it, is a whole ping-pong of ib_write_lat: two writes one after the
other. Nearer in kind is ib_write_bw with one operation in flight, but it tells a mean only, others a median. It is the baseline
where there is one processor, as in a guest that counts instructions for time:

python tests/rdma/guest.py --exact --timeout 1800 --share . -- python benchmarks/verbs.py --program one_sided
"""

from __future__ import annotations

import argparse
import os

from contestants import CONTESTANTS, Command, script
from harness import Case, Group, main

BULK = {"64 KiB": 64 << 10, "1 MiB": 1 << 20}


def groups(contestants: list[str]) -> list[Group]:
    def cases(what: str, size: int = 8) -> list[Case]:
        return [Case(name, f"{what}_other", size) for name in contestants]

    # Two that poll for each other's writes need a processor each.
    writes = ["ping_pong", "put"] if len(os.sched_getaffinity(0)) > 1 else ["put"]
    listed = [
        Group("put 8 B", "us", [*(Case("perftest", what) for what in writes), *cases("put")]),
        Group("get 8 B", "us", [Case("perftest", "get"), *cases("get")]),
        Group("fetch-add 8 B", "us", [Case("perftest", "fetch_add"), *cases("fetch_add")]),
    ]
    for name, size in BULK.items():
        for what in ("put_rate", "get_rate"):
            title = f"{what[:3]} {name}, 64 in flight"
            listed.append(Group(title, "GB/s", [Case("perftest", what, size), *cases(what, size)]))
    return listed


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--link", default="verbs:rxe0", help="of pyfab (verbs:rxe0)")
    own.add_argument("--device", default="rxe0", help="of perftest (rxe0)")
    own.add_argument("--program", help="cpp/one_sided.cpp, compiled: the library without Python")
    given, _ = own.parse_known_args()
    names = [f"pyfab {given.link}"]
    CONTESTANTS[names[0]] = script("pyfab_pair.py", given.link, "endpoint", module="pyfab")
    if given.program:
        names.append(f"pyfab {given.link} in C++")
        CONTESTANTS[names[1]] = lambda: Command([given.program], [given.link])
    CONTESTANTS["perftest"] = script("baselines/perftest.py", given.device)
    main("verbs", groups(names), own)
