"""Requests of operations on device arrays, for all wait calls of MPI and mpi4py."""

from __future__ import annotations

from typing import Any, Literal

from mpi4py import MPI

from ..errors import MPIError
from ..system.mpi_library import is_child
from .objects import ObjectRequests
from .shown import hide, show
from .work import NOTHING, Work, finish


class Request(ObjectRequests):
    """An `mpi4py.MPI.Request` of an operation on device arrays.

    `Wait` makes the current stream wait. The host waits only until a message is matched.

    mpi4py's own `MPI.Request.Waitall` also takes it, in lists with requests of host arrays, too. mpi4py's `Testall`,
    `Waitany` and the like may choose it first and wait for it; the class methods here do not.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> x, y = comm.Alloc(4), comm.Alloc(4)
    >>> pyncclx.Request.Waitall([comm.Irecv(y, 0), comm.Isend(x, 0)])
    True
    """

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Make the current stream wait for the operation, and return True.

        As mpi4py's `Wait`.

        Raises
        ------
        MPI.Exception, PeerTimeout, Aborted
            Errors of the operation. The request is then complete.
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
        """Return whether the operation has ended; if so, do what `Wait` does.

        As mpi4py's `Test`.

        Raises
        ------
        MPI.Exception, PeerTimeout, Aborted
            Errors of the operation. The request is then complete.
        """
        return self._is_over() and self.Wait(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the operation has ended, without completing the request.

        As mpi4py's `Get_status`.
        """
        if not self.is_active:
            hide((self,))
            return super().Get_status(status)
        over = self._is_over()
        if over and status is not None:
            self._work.fill(status)
        return over

    get_status = Get_status

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Make the current stream wait. Return None, because there is no object."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Return what `Test` returns, and None, because there is no object."""
        return self.Test(status), None

    def Cancel(self) -> None:
        """Cancel a receive that no message has matched. As mpi4py's `Cancel`.

        Complete the request afterwards: `Is_cancelled` of its status returns whether it was cancelled. Sends never are.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the request is inactive or not that of a message.
        """
        (self._work if self.is_active else NOTHING).cancel()

    cancel = Cancel

    def Free(self) -> None:
        """Free the request. As mpi4py's `Free`. A message that is under way completes.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the operation is under way and not a message, or the request has been completed.
        """
        work = self._work
        if not (self.is_active or work.is_persistent):
            raise MPIError(MPI.ERR_REQUEST, "Free: the request has been completed")
        if self._is_over():
            self.Wait()
            return
        work.abandon()
        work.active = False
        hide((self,))

    def __del__(self) -> None:
        """Let the message complete without its request. Return at once."""
        if self._work.active and not is_child():
            self._work.drop()


def request_of(work: Work) -> Request:
    """Return a request of some work."""
    request = Request()
    request._work = work
    show((request,))
    return request
