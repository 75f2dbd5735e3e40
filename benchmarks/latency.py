"""Blocking 8-byte operations, each complete at the target before the next: µs per operation."""

from __future__ import annotations

from harness import Case, Group, main

PUT_MAPPED = [
    Case("mpi4py", "put_allocate"),
    Case("pyfab shm", "put_mapped"),
    Case("pyfab shm window", "put_mapped"),
    Case("pyfab shm window", "assign_mapped"),
    Case("ucx mapped", "put"),
    Case("libfabric shm", "put"),
    Case("memory", "store_seen"),
]
PUT_OTHER = [
    Case("mpi4py", "put_create"),
    Case("pyfab shm", "put_other"),
    Case("pyfab shm window", "put_other"),
    Case("pyfab shm window", "assign_other"),
    Case("mpi4py osc/ucx", "put_create"),
    Case("ucx other", "put"),
    Case("process_vm", "put"),
]
PUT_TCP = [
    Case("raw tcp", "put"),
    Case("raw tcp", "put_spin"),
    Case("pyfab tcp", "put_other"),
    Case("pyfab tcp window", "put_other"),
    Case("libfabric tcp", "put"),
    Case("ucx tcp", "put"),
]
GET_MAPPED = [
    Case("mpi4py", "get_allocate"),
    Case("pyfab shm", "get_mapped"),
    Case("pyfab shm window", "get_mapped"),
    Case("ucx mapped", "get"),
]
GET_OTHER = [
    Case("mpi4py", "get_create"),
    Case("pyfab shm", "get_other"),
    Case("pyfab shm window", "get_other"),
    Case("mpi4py osc/ucx", "get_create"),
    Case("ucx other", "get"),
    Case("libfabric shm", "get"),
    Case("process_vm", "get"),
]
GET_TCP = [
    Case("raw tcp", "get"),
    Case("pyfab tcp", "get_other"),
    Case("libfabric tcp", "get"),
    Case("ucx tcp", "get"),
]
FETCH_ADD = [
    Case("mpi4py", "fetch_add_allocate"),
    Case("pyfab shm", "fetch_add_mapped"),
    Case("pyfab shm", "fetch_add_other"),
    Case("pyfab shm window", "fetch_add_mapped"),
    Case("mpi4py", "fetch_add_create"),
    Case("libfabric shm", "fetch_add"),
    Case("ucx mapped", "fetch_add"),
    Case("memory", "fetch_add"),
]
FETCH_ADD_TCP = [
    Case("libfabric tcp", "fetch_add"),
    Case("pyfab tcp", "fetch_add_other"),
    Case("ucx tcp", "fetch_add"),
]

if __name__ == "__main__":
    main(
        "latency",
        [
            Group("put 8 B, shared memory, mapped", "us", PUT_MAPPED),
            Group("put 8 B, shared memory, any memory", "us", PUT_OTHER),
            Group("put 8 B, tcp on loopback", "us", PUT_TCP),
            Group("get 8 B, shared memory, mapped", "us", GET_MAPPED),
            Group("get 8 B, shared memory, any memory", "us", GET_OTHER),
            Group("get 8 B, tcp on loopback", "us", GET_TCP),
            Group("fetch-add 8 B, shared memory", "us", FETCH_ADD),
            Group("fetch-add 8 B, tcp on loopback", "us", FETCH_ADD_TCP),
        ],
    )
