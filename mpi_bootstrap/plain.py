"""The methods of a communicator as mpi4py has them: a subclass may override them, and call us to set itself up."""

from typing import cast

from mpi4py import MPI


def plain(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator with the same ranks whose methods are mpi4py's own, without communication.

    What is none of MPI's, such as a simulated one, is taken as it is.

    Examples
    --------
    >>> plain(MPI.COMM_SELF).size
    1
    """
    return MPI.Intracomm(comm) if isinstance(comm, MPI.Comm) else cast(MPI.Intracomm, comm)
