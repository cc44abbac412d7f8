"""The leases of the heap that are in use."""

from mpi4py import MPI


def leases(heap):
    """Return the leases in use, after all ranks have called this. Collective.

    `Free` waits for no other rank, so this first releases what all ranks have freed.
    """
    MPI.Comm.Barrier(MPI.COMM_WORLD)
    heap.sweep()
    return heap.leases
