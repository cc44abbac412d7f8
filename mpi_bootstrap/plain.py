"""Call mpi4py's own methods of a communicator, or those of its channel.

Methods that a subclass overrides may call this package, so this package must not call them.

Open MPI confuses the steps of `Idup` with nonblocking collectives on the same communicator: ranks receive wrong data,
or hang. So this library's own collectives wait until an `Idup` of the program has completed.
"""

from typing import NamedTuple, cast

from mpi4py import MPI

from .waiting import complete


class _Duplication(NamedTuple):
    comm: MPI.Comm
    request: MPI.Request  # owned by the program, which completes it

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


def plain(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return an object for the same communicator whose methods are mpi4py's own.

    Does not communicate, but waits for an `Idup` in progress. If the communicator has a `Channel`, return the channel.
    Return an object of another class, such as a simulated communicator, unchanged.

    Examples
    --------
    >>> plain(MPI.COMM_SELF).size
    1
    """
    if not isinstance(comm, MPI.Comm):
        return cast(MPI.Intracomm, comm)
    channel = getattr(comm, "channel", None)
    if channel is not None:
        return cast(MPI.Intracomm, channel)
    await_duplication(comm)
    return MPI.Intracomm(comm)
