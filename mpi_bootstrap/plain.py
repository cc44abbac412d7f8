"""mpi4py's own methods of a communicator whose subclass overrides them.

The overriding methods may call this package to prepare themselves.
"""

from typing import cast

from mpi4py import MPI

from .duplicating import await_duplication


def plain(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return an object for the same communicator whose methods are mpi4py's own.

    Does not communicate, but waits for an `Idup` under way. An object of another class, such as a simulated
    communicator, is returned unchanged.

    Examples
    --------
    >>> plain(MPI.COMM_SELF).size
    1
    """
    if not isinstance(comm, MPI.Comm):
        return cast(MPI.Intracomm, comm)
    await_duplication(comm)
    return MPI.Intracomm(comm)
