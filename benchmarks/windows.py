"""Windows beside those of mpi4py over Open MPI, small operations, each complete at the target when it counts as done."""

from __future__ import annotations

from compare import Claim, judge, print_claims
from facts import machine_facts
from harness import Case, choose_cores, measure, parse_arguments, write_json

OPERATIONS = (  # name, pyfab, mpi4py
    ("put 8 B", "assign", "put"),
    ("get 8 B", "element", "get"),
    ("accumulate 8 B", "accumulate", "accumulate"),
    ("fetch-and-op 8 B", "fetch_add", "fetch_add"),
)
MEMORY = (  # name, pyfab, mpi4py
    ("of the library", "mapped", "allocate"),
    ("of the program", "other", "create"),
)


def claims() -> list[Claim]:
    """At most half of mpi4py's time in memory of the library, and no more than its time for puts and gets elsewhere.

    Updates of other memory are carried out by the target's thread and are shown without a claim (a limit of 3).
    """
    return [
        Claim(
            f"{name}, memory {memory}",
            Case("pyfab shm window", f"{mine}_{kind}"),
            Case("mpi4py", f"{theirs}_{their_kind}"),
            0.5 if kind == "mapped" else 1.0 if "get" in name or "put" in name else 3.0,
        )
        for name, mine, theirs in OPERATIONS
        for memory, kind, their_kind in MEMORY
    ]


def main() -> None:
    from report import print_facts, print_skipped

    plan, path = parse_arguments("windows")
    facts = machine_facts(choose_cores())
    listed = claims()
    sides = (side for claim in listed for side in (claim.pyfab, claim.baseline) if isinstance(side, Case))
    results, skipped = measure(list(dict.fromkeys(sides)), plan)
    lines = [judge(claim, results) for claim in listed]
    if path:
        write_json(path, facts, skipped, lines)
    print_facts(facts)
    print_claims(lines)
    print_skipped(skipped)


if __name__ == "__main__":
    main()
