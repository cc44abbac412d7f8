"""A barrier whose ranks sleep while they wait: one of them may need the processors, to compile."""

import time

from mpi4py import MPI

SHORTEST_S, LONGEST_S = 50e-6, 5e-3  # between two looks


def sleeping_barrier(comm: MPI.Intracomm) -> None:
    """Wait for all ranks of a communicator, asleep; MPI's own waits keep a processor busy. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm

    Examples
    --------
    >>> sleeping_barrier(MPI.COMM_SELF)
    """
    request, pause = MPI.Comm.Ibarrier(comm), SHORTEST_S
    while not request.Test():
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_S)
