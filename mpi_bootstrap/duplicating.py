"""Communicators that MPI is duplicating for the program.

Open MPI confuses the steps of `Idup` with nonblocking collectives on the same communicator: ranks get others' data, or
hang. So this library's own collectives wait until an `Idup` has completed.
"""

from typing import NamedTuple

from mpi4py import MPI

from .waiting import complete


class _Duplication(NamedTuple):
    comm: MPI.Comm
    request: MPI.Request  # the program's, which completes it

    def Test(self) -> bool:
        """Return whether the duplication has completed."""
        return not self.request or self.request.Get_status()


_under_way: list[_Duplication] = []


def note_duplication(comm: MPI.Comm, request: MPI.Request) -> None:
    """Record that the program has begun to duplicate a communicator."""
    _under_way[:] = [duplication for duplication in _under_way if duplication.request]
    _under_way.append(_Duplication(MPI.Comm(comm), request))


def await_duplication(comm: MPI.Comm) -> None:
    """Wait until the duplications of a communicator have completed.

    Raises
    ------
    Exception
        See `complete`.
    """
    for duplication in _under_way[:]:
        if duplication.comm == comm:
            complete(comm, duplication)
    _under_way[:] = [duplication for duplication in _under_way if not duplication.Test()]
