"""The methods of a communicator as mpi4py has them: a subclass may override them, and call us to set itself up."""

from typing import cast

from mpi4py import MPI

from .duplicating import await_duplication


def plain(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator with the same ranks whose methods are mpi4py's own, for collectives on it.

    Without communication, but for the end of an `Idup` that is under way. What is none of MPI's, such as a
    simulated one, is taken as it is.

    Examples
    --------
    >>> plain(MPI.COMM_SELF).size
    1
    """
    if not isinstance(comm, MPI.Comm):
        return cast(MPI.Intracomm, comm)
    await_duplication(comm)
    return MPI.Intracomm(comm)
