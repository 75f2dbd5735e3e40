"""Chaos, member by member: processes that put, get, add and send to each other at once, and are killed, stopped and starved.

    python tests/chaos/run.py --links shm+tcp --seconds 600 --seed 7

In the end every counter has the sum that it must have, every message came once with the right bytes, every operation had one
outcome, and nobody crashed, hung or kept what belonged to those who are gone. The seed determines the plan of the faults and
what each process means to do; when exactly they do it, the machine determines.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from judge import Judge
from supervisor import Supervisor

import faults


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--links", default="shm+tcp", help="what pyfab.Domain is opened with (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of faults (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=None, help="of an earlier run, to repeat it (default: a new one)"
    )
    parser.add_argument("--members", type=int, default=8, help="processes at a time (default: %(default)s)")
    parser.add_argument(
        "--soak",
        action="store_true",
        help="a quarter of them stay to the end, and use no more then than after the first quarter of the time; "
        "and all take part in a group that they join and leave",
    )
    parser.add_argument(
        "--deadline", type=float, default=2.0, help="the domains' peer_deadline (default: %(default)s s)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help=f"only this kind of fault, several times: {', '.join(faults.KINDS)}",
    )
    parser.add_argument(
        "--starve", choices=["cgroup", "turns"], default="cgroup", help="how, where the first can be had"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of pyfab.Domain"
    )
    parser.add_argument("--folder", type=Path, help="keep log and journals there")
    parser.add_argument(
        "--keep-going", action="store_true", help="look for further failures after the first one"
    )
    parser.add_argument("--verbose", action="store_true", help="print the log as it grows")
    chosen = parser.parse_args()
    chosen.set = dict(each.split("=", 1) for each in chosen.set)
    chosen.staying = max(1, chosen.members // 4) if chosen.soak else 1
    if chosen.seed is None:
        chosen.seed = secrets.randbelow(1_000_000)
    if chosen.only:
        for kind in set(faults.KINDS) - set(chosen.only):
            del faults.KINDS[kind]
    return chosen


def judge(supervisor: Supervisor) -> None:
    verdict = Judge(supervisor)
    if not supervisor.broken:
        end = time.monotonic() + supervisor.bound
        while (missing := verdict.missing()) and time.monotonic() < end:
            supervisor.turn()
            verdict.reload()
        for text in missing[:10]:
            supervisor.fail(text)
        if supervisor.count():
            for text in verdict.sums()[:10]:
                supervisor.fail(text)
        for text in (verdict.made_up() + verdict.rejections())[:10]:
            supervisor.fail(text)
        supervisor.finish()
    verdict.reload()
    print("\nfaults:   ", ", ".join(f"{count} {kind}" for kind, count in supervisor.faults.items()))
    print(f"processes: {len(supervisor.incarnations)}")
    for kind, row in verdict.figures().items():
        print(f"{kind:9}  " + ", ".join(f"{count} {name}" for name, count in row.items() if count))
    if supervisor.options.soak:
        if not supervisor.failures and not (supervisor.groups["rounds"] and supervisor.groups["admitted"]):
            supervisor.fail(f"nobody joined a group and used its window: {supervisor.groups}")
        print("groups:   ", ", ".join(f"{count} {what}" for what, count in sorted(supervisor.groups.items())))
        for rank, course in supervisor.courses.items():
            for when, found in zip(("first", "last"), course.first_and_last(), strict=True):
                print(
                    f"rank {rank} at {when:6}"
                    + ", ".join(f"{now:.5g} {name}" for name, now in found._asdict().items())
                )
    sys.stdout.flush()


def main() -> int:
    chosen = options()
    print(
        f"seed {chosen.seed}, links {chosen.links}, {chosen.seconds:g} s, {chosen.members} members",
        flush=True,
    )
    folder = (chosen.folder and chosen.folder.absolute()) or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    supervisor = Supervisor(chosen, folder)
    try:
        supervisor.run(
            faults.plan(chosen.seed, chosen.members, chosen.seconds, chosen.deadline, chosen.staying)
        )
        judge(supervisor)
    finally:
        supervisor.close()
        log = supervisor.write_log()
    if supervisor.failures:
        print(log.read_text()[-20_000:])
        print(f"FAILED with {len(supervisor.failures)} failures; log and journals: {folder}")
        for text in supervisor.failures[:20]:
            print("  ", text[:3000])
        return 1
    print("everything is accounted for")
    if not chosen.folder:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
