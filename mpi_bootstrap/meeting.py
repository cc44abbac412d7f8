"""Rendezvous in which ranks sleep, with a time limit for late ranks.

Sleeping leaves the processors to a rank that compiles.
"""

from collections.abc import Callable

from mpi4py import MPI

from . import waiting
from .plain import plain


def missing_ranks(
    comm: MPI.Intracomm,
    seconds: float,
    late: Callable[[], None] | None = None,
    look: Callable[[], None] | None = None,
) -> list[int]:
    """Sleep until all ranks arrive; return those missing after `seconds`. Collective.

    As soon as one rank has waited that long, all ranks that have arrived return, and take part in no more rendezvous on
    this communicator. A rank that arrives later returns a list of its own number. During the wait, `look` is called
    repeatedly, and `late` once after three quarters of the time. Their exceptions are raised.

    A rendezvous is a nonblocking barrier, and MPI never matches a nonblocking collective with a blocking one. So a rank
    that waits here does not disturb a rank in a blocking collective of MPI.

    Examples
    --------
    >>> missing_ranks(MPI.COMM_SELF, seconds=1.0)
    []
    """
    waiting.begin(comm)
    return waiting.missing(comm, plain(comm).Ibarrier(), seconds, late, look)


def sleeping_barrier(comm: MPI.Intracomm, seconds: float | None = None) -> None:
    """Sleep until all ranks of a communicator have arrived. Collective.

    MPI's own barrier would keep a processor busy.

    Parameters
    ----------
    comm : MPI.Intracomm
    seconds : float, optional
        Longest wait; default: that of the failure policy, as in other rendezvous.

    Raises
    ------
    Exception
        The failure policy's exception, if a rank has not arrived in time, or never will.

    Examples
    --------
    >>> sleeping_barrier(MPI.COMM_SELF)
    """
    waiting.begin(comm)
    waiting.complete(comm, plain(comm).Ibarrier(), seconds)
