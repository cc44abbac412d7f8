"""Meetings of a communicator's ranks, to which some rank may never come: it may be in a call of MPI's own."""

from collections.abc import Callable

from mpi4py import MPI

from . import waiting
from .freeing import come_again
from .plain import plain


class Meeting:
    """Meetings of one communicator's ranks, one after another.

    MPI matches no nonblocking collective with a blocking one. So a rank that waits here does no harm to one that is in
    a collective of MPI's own, and a rank that comes too late finds those that still wait.

    Examples
    --------
    >>> Meeting().missing(MPI.COMM_SELF, seconds=1.0)
    []
    """

    def __init__(self) -> None:
        self._waiting: MPI.Request | None = None  # of a meeting to which not all have come

    def missing(
        self,
        comm: MPI.Intracomm,
        seconds: float,
        late: Callable[[], None] | None = None,
        look: Callable[[], None] | None = None,
    ) -> list[int]:
        """Wait for all ranks to come, asleep, and return the ranks that have not. Collective.

        All ranks that have come return as soon as one of them has waited for so long. Meanwhile `look` is called again
        and again, and after three quarters of the time `late`; what they raise is raised.
        """
        if self._waiting is None:
            waiting.begin(comm)
            self._waiting = plain(comm).Ibarrier()
        ranks = waiting.missing(comm, self._waiting, seconds, late, look)
        if not ranks:
            come_again(self._waiting)
            self._waiting = None
        return ranks
