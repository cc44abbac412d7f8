"""A program for jobs of several nodes: collectives and messages, compared with mpi4py's. Rank 0 prints the nodes."""

import numpy as np
from mpi4py import MPI

import pyncclx


def main() -> None:
    comm = pyncclx.Communicator()
    plain, size, rank = MPI.Intracomm(comm), comm.size, comm.rank
    for count in (3, 1000, 40_000):
        x = ((np.arange(count) * 7 + rank * 31) % 101).astype("i8")
        for name, length in (("Allreduce", count), ("Allgather", count * size), ("Scan", count)):
            mine, wanted = np.zeros(length, "i8"), np.zeros(length, "i8")
            getattr(comm, name)(x, mine)
            comm.synchronize()
            getattr(plain, name)(x, wanted)
            assert np.array_equal(mine, wanted), (name, count)
        blocks, mine, wanted = np.tile(x, size), np.zeros(count * size, "i8"), np.zeros(count * size, "i8")
        comm.Alltoall(blocks, mine)
        comm.synchronize()
        plain.Alltoall(blocks, wanted)
        assert np.array_equal(mine, wanted), ("Alltoall", count)
        got = np.zeros(count, "i8")
        comm.Sendrecv(x, (rank + 1) % size, 0, got, (rank - 1) % size, 0)
        comm.synchronize()
        assert np.array_equal(got, ((np.arange(count) * 7 + (rank - 1) % size * 31) % 101).astype("i8"))
    names = plain.gather(MPI.Get_processor_name())
    if rank == 0:
        print("right on", " ".join(names), comm.explain("Allreduce", 8), flush=True)
    comm.free()


if __name__ == "__main__":
    main()
