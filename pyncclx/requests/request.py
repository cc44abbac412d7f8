"""Requests of operations on device arrays, which all of MPI's and mpi4py's ways to wait accept."""

from __future__ import annotations

from typing import Any, Literal

from mpi4py import MPI

from .objects import ObjectRequests
from .shown import hide, show
from .work import NOTHING, Work, finish


class Request(ObjectRequests):
    """An `mpi4py.MPI.Request` of an operation on device arrays.

    `Wait` makes the current stream wait. The host waits only until a message is matched.

    mpi4py's own `MPI.Request.Waitall` is right for it, too, and for lists with host arrays' requests.
    mpi4py's `Testall`, `Waitany` and the like may take it first and wait; the class methods here do not.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> x, y = comm.Alloc(4), comm.Alloc(4)
    >>> pyncclx.Request.Waitall([comm.Irecv(y, 0), comm.Isend(x, 0)])
    True
    """

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Make the current stream wait, and return True. As mpi4py's `Wait`.

        Raises
        ------
        MPI.Exception, PeerTimeout, Aborted
            Errors of the operation. The request is used up.
        """
        work = self._work
        if not (work.active or work.is_asked):
            hide((self,))
            return super().Wait(status)
        try:
            finish(work)
        except MPI.Exception:
            if status is not None:
                work.fill(status)
            raise
        finally:
            hide((self,))
        if status is not None:
            work.fill(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether `Wait` would return at once; if so, do what it does. As mpi4py's `Test`."""
        return self._is_over() and self.Wait(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether `Wait` would return at once; the request stays. As mpi4py's `Get_status`."""
        if not self.is_active:
            hide((self,))
            return super().Get_status(status)
        over = self._is_over()
        if over and status is not None:
            self._work.fill(status)
        return over

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As `Wait`; return None, for there is no object."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """As `Test`; the object is None."""
        return self.Test(status), None

    def Cancel(self) -> None:
        """Cancel a receive that no message has matched. As mpi4py's `Cancel`: complete the request afterwards.

        The status then says by `Is_cancelled` whether it was cancelled; a send never is.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the request is of no message, or has nothing to complete.
        """
        (self._work if self.is_active else NOTHING).cancel()

    def Free(self) -> None:
        """Free the request. As mpi4py's `Free`: a message that is under way goes on.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the request is of no message and is not over.
        """
        if self._is_over():
            self.Wait()
            return
        work = self._work
        work.abandon()
        work.active = False
        hide((self,))

    def __del__(self) -> None:
        """Let a message go on whose request the program has dropped. Waits for nothing."""
        if self._work.active:
            self._work.drop()


def request_of(work: Work) -> Request:
    """Make the request of some work."""
    request = Request()
    request._work = work
    show((request,))
    return request
