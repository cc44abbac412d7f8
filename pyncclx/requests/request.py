"""Requests of operations on device arrays, for all wait calls of MPI and mpi4py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from mpi4py import MPI

from ..errors import MPIError
from ..system.mpi_library import is_child
from .host_receive import Undivided
from .objects import ObjectRequests
from .shown import hide, show
from .status import check_status
from .work import NOTHING, Work, finish

_new = MPI.Request.__new__


class Request(ObjectRequests):
    """An `mpi4py.MPI.Request` of an operation on device arrays.

    `Wait` makes the current stream wait. The host waits only until a message is matched.

    mpi4py's own `MPI.Request.Waitall` accepts this request too, also in a list with requests of host arrays. mpi4py's
    `Testall`, `Waitany` and similar calls may choose it first and wait for it; the methods of this class do not.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> x, y = comm.Alloc(4), comm.Alloc(4)
    >>> pyncclx.Request.Waitall([comm.Irecv(y, 0), comm.Isend(x, 0)])
    True
    """

    def __new__(cls, request: MPI.Request | None = None) -> MPI.Request:  # type: ignore[misc]
        """Return a request of this library itself; return a copy of one of mpi4py's."""
        if cls is not Request or request is None:
            return _new(cls, request)
        return request if isinstance(request, Undivided) else _new(MPI.Request, request)

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Make the current stream wait for the operation, and return True.

        It works like mpi4py's `Wait`.

        Raises
        ------
        MPI.Exception, PeerTimeout, Aborted
            Errors of the operation. The request is then complete.
        """
        if status is not None:
            check_status(status)
        work = self._work
        if not (work.active or work.is_asked):
            hide((self,))
            return super().Wait(status)
        try:
            finish(work)
        except BaseException as error:
            if status is not None and (work.is_received or isinstance(error, MPI.Exception)):
                work.fill(status)
            raise
        finally:
            hide((self,))
        if status is not None:
            work.fill(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the operation has ended; if it has, complete it as `Wait` does.

        It works like mpi4py's `Test`.

        Raises
        ------
        MPI.Exception, PeerTimeout, Aborted
            Errors of the operation. The request is then complete.
        """
        if status is not None:
            check_status(status)
        return self._is_over() and self.Wait(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the operation has ended, without completing the request.

        It works like mpi4py's `Get_status`.
        """
        if status is not None:
            check_status(status)
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
        """Test the request; return whether it has ended, and None as its object."""
        return self.Test(status), None

    def Cancel(self) -> None:
        """Cancel a receive that no message has matched, like mpi4py's `Cancel`.

        Complete the request afterwards: its status' `Is_cancelled` says whether it was cancelled. Sends are never
        cancelled.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the request is inactive or not that of a message.
        """
        (self._work if self.is_active else NOTHING).cancel()

    cancel = Cancel

    def Free(self) -> None:
        """Free the request, like mpi4py's `Free`. A message that is under way completes.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the operation has not ended and is not a message, or if the request has been
            completed.
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
        """Let the operation complete without its request; do not wait."""
        if self._work.active and not is_child():
            self._work.drop()


#: Returns a new request without work. Every nonblocking call makes one, so this is a C function.
empty: Callable[[], Request] = partial(_new, Request)


def request_of(work: Work) -> Request:
    """Return a new request for a work."""
    request = empty()
    request._work = work
    show((request,))
    return request
