"""Rendezvous in which ranks sleep, with a time limit for late ranks.

Sleeping leaves the processors to a rank that compiles.
"""

from collections.abc import Callable

from mpi4py import MPI

from . import waiting
from .freeing import come_again
from .plain import plain


class Meeting:
    """The rendezvous of one communicator's ranks; one takes place at a time.

    A rendezvous is a nonblocking barrier, and MPI never matches a nonblocking collective with a blocking one. So a rank
    that waits here does not disturb a rank in a blocking collective of MPI. A late rank first completes the rendezvous
    in which the other ranks still wait.

    Examples
    --------
    >>> Meeting().missing(MPI.COMM_SELF, seconds=1.0)
    []
    """

    def __init__(self) -> None:
        self._waiting: MPI.Request | None = None  # a rendezvous that some rank has not reached

    def missing(
        self,
        comm: MPI.Intracomm,
        seconds: float,
        late: Callable[[], None] | None = None,
        look: Callable[[], None] | None = None,
    ) -> list[int]:
        """Sleep until all ranks arrive; return those missing after `seconds`. Collective.

        As soon as one rank has waited that long, all ranks that have arrived return. During the wait, `look` is called
        repeatedly, and `late` once after three quarters of the time. Their exceptions are raised.
        """
        if self._waiting is None:
            waiting.begin(comm)
            self._waiting = plain(comm).Ibarrier()
        ranks = waiting.missing(comm, self._waiting, seconds, late, look)
        if not ranks:
            come_again(self._waiting)
            self._waiting = None
        return ranks


def sleeping_barrier(comm: MPI.Intracomm, seconds: float | None = None) -> None:
    """Sleep until all ranks of a communicator have arrived. Collective.

    MPI's own waits keep a processor busy.

    Parameters
    ----------
    comm : MPI.Intracomm
    seconds : float, optional
        Longest wait; default `patience`, as in other rendezvous.

    Raises
    ------
    Exception
        From the failure policy: a rank has not arrived in time, or never will.

    Examples
    --------
    >>> sleeping_barrier(MPI.COMM_SELF)
    """
    waiting.begin(comm)
    waiting.complete(comm, plain(comm).Ibarrier(), seconds)
