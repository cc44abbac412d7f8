"""A barrier whose ranks sleep while they wait: one of them may need the processors, to compile."""

from mpi4py import MPI

from .plain import plain
from .waiting import begin, complete


def sleeping_barrier(comm: MPI.Intracomm, seconds: float | None = None) -> None:
    """Wait for all ranks of a communicator, asleep; MPI's own waits keep a processor busy. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    seconds : float, optional
        How long; as for other meetings if left out.

    Raises
    ------
    Exception
        Some rank has not come in time, or will never come.

    Examples
    --------
    >>> sleeping_barrier(MPI.COMM_SELF)
    """
    begin(comm)
    complete(comm, plain(comm).Ibarrier(), seconds)
