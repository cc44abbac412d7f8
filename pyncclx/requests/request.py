"""Requests of operations on device arrays, which all of MPI's and mpi4py's ways to wait accept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast

from mpi4py import MPI

from ..errors import MPIError
from .host_receive import HostReceiveRequest
from .host_waits import gathered
from .open_receives import OpenReceive
from .status import forget_at_end


class Work(Protocol):
    """The operation that a request stands for."""

    def finish(self) -> None:
        """Let what is enqueued on the current stream from now on come after it; raise its errors, once."""

    def is_over(self) -> bool:
        """Whether `finish` would return at once."""

    def fill(self, status: MPI.Status) -> None:
        """Set the status to what is known of the message."""


class Request(MPI.Request):
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
    receive: OpenReceive | None = None  # of a device array, that it stands for

    @property
    def is_active(self) -> bool:
        """Whether there is something to wait for."""
        return bool(self)

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Make the current stream wait, and return True. As mpi4py's `Wait`.

        Raises
        ------
        MPI.Exception, PeerTimeout, Aborted
            Errors of the operation. The request is used up.
        """
        was_active = status is not None and self.is_active
        self._finish()
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

    def _is_over(self) -> bool:
        return not self or self._work.is_over()

    # Several, of any kind: these and mpi4py's

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> Literal[True]:
        """Wait for all, and return True. As mpi4py's `Waitall`."""
        if _OF_HOST_ARRAYS.issuperset(map(type, requests)):
            return wait_and_check(requests, statuses)
        ours = [each for each in requests if isinstance(each, Request)]
        receives = [each.receive for each in ours if each.receive is not None]
        for receive in receives:
            receive.is_awaited = True
        if len(receives) > 1:
            receives[0].gather(receives[1:])
        to_check = {index: each for index, each in enumerate(requests) if each and isinstance(each, HostReceiveRequest)}
        if to_check:
            return _wait_and_check(requests, [] if statuses is None else statuses, ours, to_check)
        active = {id(each): each for each in ours if each.is_active} if statuses is not None else {}
        errors = _finish_all(ours)
        over = MPI.Request.Waitall(requests, statuses)
        for index in (index for index, each in enumerate(requests) if id(each) in active):
            active[id(requests[index])]._complete(cast(list[MPI.Status], statuses)[index])
        if errors:
            raise errors[0]
        return over

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> bool:
        """Whether all are over; if so, do what `Waitall` does. As mpi4py's `Testall`."""
        ours = [request for request in requests if isinstance(request, Request)]
        theirs = [request for request in requests if not isinstance(request, Request)]
        over = [request._is_over() for request in ours]  # all of them: each call moves one on
        over += [request.Get_status() for request in theirs]
        return all(over) and cls.Waitall(requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait for one, and return its index, or MPI.UNDEFINED if none is active. As mpi4py's `Waitany`."""
        while True:
            index, over = cls.Testany(requests, status)
            if over:
                return index
            os.sched_yield()

    @classmethod
    def Testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        """Return the index of one that is over, and whether there is one. As mpi4py's `Testany`."""
        if not any(map(_is_active, requests)):
            return MPI.UNDEFINED, True
        for index, request in enumerate(requests):
            if _is_active(request) and request.Get_status():
                request.Wait(status)
                return index, True
        return MPI.UNDEFINED, False

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> list[int] | None:
        """Wait until some are over, and return their indices; None if none is active. As mpi4py's `Waitsome`."""
        while True:
            over = cls.Testsome(requests, statuses)
            if over is None or over:
                return over
            os.sched_yield()

    @classmethod
    def Testsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> list[int] | None:
        """Return the indices of those that are over; None if none is active. As mpi4py's `Testsome`."""
        if not any(map(_is_active, requests)):
            return None
        over = [index for index, request in enumerate(requests) if _is_active(request) and request.Get_status()]
        cls.Waitall([requests[index] for index in over], statuses)
        return over


_OF_HOST_ARRAYS = {MPI.Request, HostReceiveRequest}


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
    status.Set_cancelled(False)


def _is_active(request: MPI.Request) -> bool:
    return request.is_active if isinstance(request, Request) else bool(request)


def _finish_all(requests: Sequence[Request]) -> list[Exception]:
    """Finish the work of some, each whatever the others raise; return what they raise."""
    errors: list[Exception] = []
    with gathered(errors):
        for request in requests:
            try:
                request._finish()
            except Exception as error:
                errors.append(error)
    return errors


def wait_and_check(requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> Literal[True]:
    """Wait for requests of mpi4py's, and check receives of host arrays among them."""
    if statuses is None:
        statuses = [MPI.Status() for _ in requests]
    else:
        statuses += [MPI.Status() for _ in range(len(statuses), len(requests))]
    over = MPI.Request.Waitall(requests, statuses)
    for request, status in zip(requests, statuses, strict=False):
        if type(request) is HostReceiveRequest:  # of one that has been waited for, the status is empty
            request.check(status)
    return over


def _wait_and_check(
    requests: Sequence[MPI.Request],
    statuses: list[MPI.Status],
    ours: list[Request],
    to_check: dict[int, HostReceiveRequest],
) -> Literal[True]:
    """Wait for all, and check receives of host arrays, by their index; with some of ours, receive host arrays first.

    A peer's long message to a host array ends only when its receive has been checked. If all peers waited for their
    own long messages first, none would get there.
    """
    statuses += [MPI.Status() for _ in range(len(statuses), len(requests))]
    if not ours:
        return wait_and_check(requests, statuses)
    errors: list[Exception] = []
    left = list(to_check)
    while left := [index for index in left if not to_check[index].is_over(statuses[index], errors)]:
        for each in ours:
            each._is_over()  # moves it on
        os.sched_yield()
    rest = [index for index in range(len(requests)) if index not in to_check]
    try:
        Request.Waitall([requests[index] for index in rest], [statuses[index] for index in rest])
    except Exception as error:
        errors.append(error)
    if errors:
        raise errors[0]
    return True
