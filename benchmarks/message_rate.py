"""Many 8-byte operations at once: million operations per second.

``*_rate`` has up to 64 operations in flight (one call each), ``write_many`` and ``read_many`` hand over 4096
in one call.
"""

from __future__ import annotations

from harness import Case, Group, main

MAPPED = [
    Case("mpi4py", "put_rate_allocate"),
    Case("pyfab shm", "write_many_mapped"),
    Case("pyfab shm", "read_many_mapped"),
    Case("pyfab shm", "put_rate_mapped"),
    Case("pyfab shm window", "put_rate_mapped"),
    Case("ucx mapped", "put_rate"),
    Case("libfabric shm", "put_rate"),
]
OTHER = [
    Case("mpi4py", "put_rate_create"),
    Case("pyfab shm", "write_many_other"),
    Case("pyfab shm", "read_many_other"),
    Case("pyfab shm", "put_rate_other"),
    Case("mpi4py osc/ucx", "put_rate_create"),
    Case("ucx other", "put_rate"),
    Case("libfabric shm", "get_rate"),
]
TCP = [
    Case("libfabric tcp", "put_rate"),
    Case("pyfab tcp", "write_many_other"),
    Case("pyfab tcp", "read_many_other"),
    Case("pyfab tcp", "put_rate_other"),
    Case("ucx tcp", "put_rate"),
    Case("raw tcp", "put_rate"),
]

if __name__ == "__main__":
    main(
        "message_rate",
        [
            Group("rate 8 B, shared memory, mapped", "Mops", MAPPED),
            Group("rate 8 B, shared memory, any memory", "Mops", OTHER),
            Group("rate 8 B, tcp on loopback", "Mops", TCP),
        ],
    )
