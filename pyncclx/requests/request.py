"""Requests of operations on device arrays, which all of MPI's and mpi4py's ways to wait accept."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from mpi4py import MPI

from ..errors import MPIError
from .objects import ObjectRequests
from .open_receives import OpenReceive
from .status import forget_at_end


class Work(Protocol):
    """The operation that a request stands for."""

    def finish(self) -> None:
        """Let what is enqueued on the current stream from now on come after it; raise its errors, once."""

    def is_over(self) -> bool:
        """Whether `finish` would return at once."""

    def fill(self, status: MPI.Status) -> None:
        """Set all of the status to what is known of the message."""


class Request(ObjectRequests):
    """An `mpi4py.MPI.Request` of an operation on device arrays.

    `Wait` makes the current stream wait. The host waits only until a message is matched.

    For MPI it is a generalized request that is complete from the beginning, and that finishes the work when MPI asks
    for its status. So mpi4py's own `MPI.Request.Waitall` is right for it, and for lists with host arrays' requests.
    mpi4py's `Testall`, `Waitany` and the like may take it first and wait; the class methods here do not.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> x, y = comm.Alloc(4), comm.Alloc(4)
    >>> pyncclx.Request.Waitall([comm.Irecv(y, 0), comm.Isend(x, 0)])
    True
    """

    _work: Work

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Make the current stream wait, and return True. As mpi4py's `Wait`.

        Raises
        ------
        MPI.Exception, PeerTimeout, Aborted
            Errors of the operation. The request is used up.
        """
        was_active = status is not None and self.is_active
        try:
            self._finish()
        except MPI.Exception:
            if was_active and status is not None:
                self._fill(status)
            raise
        try:
            super().Wait(status)
        except MPI.Exception:
            forget_at_end(self, self._work, status)
        if was_active and status is not None:
            self._complete(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether `Wait` would return at once; if so, do what it does. As mpi4py's `Test`."""
        return self._is_over() and self.Wait(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether `Wait` would return at once; the request stays. As mpi4py's `Get_status`."""
        if not self:
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
        cancel = getattr(self._work, "cancel", None) if self.is_active else None
        if cancel is None:
            raise MPIError(MPI.ERR_REQUEST, "Cancel: only a send or a receive that is under way can be cancelled")
        cancel()

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
        abandon = getattr(self._work, "abandon", None)
        if abandon is None:
            raise MPIError(MPI.ERR_REQUEST, "Free: the operation is under way, and is no message; Wait for it")
        abandon()
        super().Free()

    def __del__(self) -> None:
        """Let a message go on whose request the program has dropped."""
        self._drop()

    def _drop(self) -> None:
        """Let a message go on without the program; a copy of the handle may still complete it. Waits for nothing."""
        if self:
            drop = getattr(getattr(self, "_work", None), "drop", None)
            if drop is not None and self.is_active:
                drop()

    def _finish(self) -> None:
        """Finish the work; also if that raises the request is used up, as MPI's are."""
        if not self:
            return
        try:
            self._work.finish()
        except Exception:
            super().Wait()
            raise

    def _complete(self, status: MPI.Status) -> None:
        """Set what MPI leaves out in the status of a request that was active and is over."""
        if getattr(self._work, "is_cancelled", False):
            status.Set_cancelled(True)

    def _fill(self, status: MPI.Status) -> None:
        self._work.fill(status)

    def _is_over(self) -> bool:
        return not self or self._work.is_over()


def request_of(work: Work, receive: OpenReceive | None = None) -> Request:
    """Make the request of some work, which may be a receive."""
    generalized = MPI.Grequest.Start(_query, None, None, (work,))
    generalized.Complete()
    request = Request(generalized)
    request._work, request.receive = work, receive
    return request


def _query(status: MPI.Status, work: Work) -> None:
    """MPI calls this when the program waits for the request."""
    work.finish()
    work.fill(status)
