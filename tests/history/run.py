"""Histories of clients that update, put, get and send at once while they, their targets and their connections come to harm.

    python tests/history/run.py --links tcp --seconds 60 --seed 7

Every operation is noted with the times of its call and its return, and what the documentation promises is checked afterwards on
what was noted: docs/testing.md, "Histories". The seed determines faults and operations; when exactly they meet, the machine does.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from judge import Judge
from supervisor import FAULTS, Supervisor

sys.path.insert(0, str(Path(__file__).parent.parent))
import rails

DRAIN = 20  # seconds in which messages that were sent have to come


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--links",
        default="shm+tcp",
        help='of pyfab.Domain; "rails": two devices of tcp (default: %(default)s)',
    )
    parser.add_argument("--seconds", type=float, default=60, help="of faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run (default: a new one)")
    parser.add_argument("--clients", type=int, default=4, help="at a time (default: %(default)s)")
    parser.add_argument("--targets", type=int, default=2, help="at a time (default: %(default)s)")
    parser.add_argument("--deadline", type=float, default=2.0, help="peer_deadline (default: %(default)s s)")
    parser.add_argument(
        "--gap", type=float, default=0.6, help="seconds between faults (default: %(default)s)"
    )
    parser.add_argument(
        "--only", action="append", default=[], choices=list(FAULTS), help="this fault, several times"
    )
    parser.add_argument("--folder", type=Path, help="keep the journals there")
    chosen = parser.parse_args()
    if chosen.seed is None:
        chosen.seed = secrets.randbelow(1_000_000)
    if chosen.links == "rails":
        if rails.RAILS is None:
            parser.error(rails.WHY_NOT)
        chosen.links = rails.RAILS
    return chosen


def carry_out(supervisor: Supervisor, folder: Path) -> None:
    supervisor.run()
    end = time.monotonic() + DRAIN
    while not supervisor.failures and time.monotonic() < end:
        judge = Judge(folder, supervisor.processes, supervisor.troubles)
        if not any("never came" in each for each in judge.messages()):
            break
        supervisor.turn(0.5)
    supervisor.look()
    supervisor.end("target")


def main() -> int:
    chosen = options()
    print(f"seed {chosen.seed}, links {chosen.links}, {chosen.seconds:g} s", flush=True)
    folder = (chosen.folder and chosen.folder.absolute()) or Path(tempfile.mkdtemp(prefix="history-"))
    folder.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(chosen, folder)
    try:
        carry_out(supervisor, folder)
    finally:
        supervisor.close()
    judge = Judge(folder, supervisor.processes, supervisor.troubles)
    wrong = supervisor.failures + judge.check()
    for kind, row in sorted(judge.outcomes().items()):
        print(f"{kind:9}  " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(row.items())))
    print(f"{'total':9}  {len(judge.calls)} operations of {len(supervisor.processes)} processes")
    print("faults    ", ", ".join(f"{count} {kind}" for kind, count in sorted(supervisor.faults.items())))
    print("checked   ", ", ".join(f"{count} {what}" for what, count in sorted(judge.figures.items())))
    if wrong:
        print(f"FAILED, seed {chosen.seed}; journals: {folder}")
        for each in wrong[:10]:
            print(f"\n{each}"[:4000])
        return 1
    print("everything agrees with what is documented")
    if not chosen.folder:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
