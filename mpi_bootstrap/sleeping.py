"""A barrier whose ranks sleep; one of them may need the processors to compile."""

from mpi4py import MPI

from .plain import plain
from .waiting import begin, complete


def sleeping_barrier(comm: MPI.Intracomm, seconds: float | None = None) -> None:
    """Sleep until all ranks of a communicator have come. Collective.

    MPI's own waits keep a processor busy.

    Parameters
    ----------
    comm : MPI.Intracomm
    seconds : float, optional
        Longest wait; default `patience`, as in other rendezvous.

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
