"""Blocking puts and gets of 64 KiB, 1 MiB and 64 MiB, one at a time: GB/s."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Case, Group, main

SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
MAPPED = [
    ("memory", "memcpy"),
    ("memory", "memcpy_shared"),
    ("pyfab shm", "put_mapped"),
    ("pyfab shm", "get_mapped"),
    ("mpi4py", "put_allocate"),
    ("mpi4py", "get_allocate"),
    ("ucx mapped", "put"),
]
OTHER = [
    ("process_vm", "put"),
    ("process_vm", "get"),
    ("pyfab shm", "put_other"),
    ("pyfab shm", "get_other"),
    ("mpi4py", "put_create"),
    ("mpi4py", "get_create"),
    ("libfabric shm", "put"),
    ("ucx other", "put"),
]
TCP = [
    ("raw tcp", "put"),
    ("raw tcp", "put_spin"),
    ("raw tcp", "get"),
    ("pyfab tcp", "put_other"),
    ("pyfab tcp", "get_other"),
    ("libfabric tcp", "put"),
    ("ucx tcp", "put"),
]


def groups() -> Iterator[Group]:
    """One table per size and kind of memory."""
    for name, size in SIZES.items():
        for title, members in (
            ("shared memory, mapped", MAPPED),
            ("shared memory, any memory", OTHER),
            ("tcp on loopback", TCP),
        ):
            cases = [Case(contestant, what, size) for contestant, what in members]
            yield Group(f"{name}, {title}", "GB/s", cases)


if __name__ == "__main__":
    main("bandwidth", list(groups()))
