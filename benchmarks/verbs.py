"""pyfab over an RDMA device beside perftest: two processes of one machine, `--link` and `--device` say over what.

python tests/rdma/guest.py --timeout 1800 --share . -- python benchmarks/verbs.py --json out.jsonl

The baseline of a put, which is complete when the target has it, is a whole ping-pong of ib_write_lat: two writes one after the
other. Nearer in kind is ib_write_bw with one operation in flight, but it tells a mean only, others a median.
"""

from __future__ import annotations

import argparse

from contestants import CONTESTANTS, script
from harness import Case, Group, main

BULK = {"64 KiB": 64 << 10, "1 MiB": 1 << 20}


def groups(pyfab: str) -> list[Group]:
    listed = [
        Group(
            "put 8 B",
            "us",
            [Case("perftest", "ping_pong"), Case("perftest", "put"), Case(pyfab, "put_other")],
        ),
        Group("get 8 B", "us", [Case("perftest", "get"), Case(pyfab, "get_other")]),
        Group("fetch-add 8 B", "us", [Case("perftest", "fetch_add"), Case(pyfab, "fetch_add_other")]),
    ]
    for name, size in BULK.items():
        for what in ("put_rate", "get_rate"):
            cases = [Case("perftest", what, size), Case(pyfab, f"{what}_other", size)]
            listed.append(Group(f"{what[:3]} {name}, 64 in flight", "GB/s", cases))
    return listed


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--link", default="verbs:rxe0", help="of pyfab (verbs:rxe0)")
    own.add_argument("--device", default="rxe0", help="of perftest (rxe0)")
    given, _ = own.parse_known_args()
    name = f"pyfab {given.link}"
    CONTESTANTS[name] = script("pyfab_pair.py", given.link, "endpoint", module="pyfab")
    CONTESTANTS["perftest"] = script("baselines/perftest.py", given.device)
    main("verbs", groups(name), own)
