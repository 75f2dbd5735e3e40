"""Messages, windows and collectives of every rank with every other one."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
to, source = (rank + 1) % size, (rank - 1) % size
for length in (0, 1, 100, 5000, 100_000, 4_000_000):
    out, landing = np.full(length, rank, np.uint8), np.zeros(length, np.uint8)
    received = world.Irecv(landing, source, tag=length)
    world.Isend(out, to, tag=length).Wait()
    received.Wait()
    assert (landing == source).all()
assert world.allreduce(rank) == size * (size - 1) // 2
window = MPI.Win.Allocate(1024 * 8, 8, comm=world)
here = np.frombuffer(window.tomemory(), np.int64)
here[:] = 0
window.Fence()
window.Put(np.array([rank + 10], np.int64), to, 5)
for _ in range(10):
    window.Accumulate(np.ones(1, np.int64), 0, 7)
window.Fence()
assert here[5] == source + 10
assert rank or here[7] == 10 * size
window.Free()
rows, columns = np.repeat(np.arange(size) + 16 * rank, 10_000), np.zeros(size * 10_000, np.int64)
for _ in range(20):
    world.Alltoall(rows, columns)
assert (16 * np.arange(size) + rank == columns.reshape(size, -1).T).all()
world.Barrier()
if rank == 0:
    print(f"passed with {size} ranks")
