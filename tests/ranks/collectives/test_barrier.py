"""Barrier on the device: no rank's stream goes on before the streams of all ranks have arrived."""

import numpy as np
from mpi4py import MPI

from support.everywhere import assert_everywhere


def test_everybody_has_come(comm):
    """Each rank counts its calls in memory that all see, before the call."""
    window = MPI.Win.Allocate_shared(8, 8, comm=comm)
    arrived = [np.frombuffer(window.Shared_query(rank)[0], "i8") for rank in range(comm.size)]
    arrived[comm.rank][0] = 0
    super(type(comm), comm).Barrier()
    early = []
    for call in range(1, 51):
        arrived[comm.rank][0] = call
        comm.Barrier(device=True)
        comm.synchronize()
        early += [(call, rank) for rank in range(comm.size) if arrived[rank][0] < call]
    assert_everywhere(comm, not early, f"(call, rank) not waited for: {early[:5]}")
    window.Free()


def test_barrier_of_the_host_is_mpis(comm):
    comm.Barrier()
    comm.barrier()
