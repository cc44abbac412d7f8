"""Requests of messages with device arrays, which all the ways of MPI and mpi4py to wait accept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

from mpi4py import MPI

from ..errors import NotSupported
from .host_receive import HostReceiveRequest, wait_for_all
from .open_receives import OpenReceive

_Result = TypeVar("_Result")


class Work(Protocol):
    """What a request stands for."""

    def finish(self) -> None:
        """What is enqueued on the current stream from now on comes after it; raises what went wrong, once."""

    def is_over(self) -> bool:
        """Whether `finish` would return at once."""

    def fill(self, status: MPI.Status) -> None:
        """Tell what is known of the message."""


class Request(MPI.Request):
    """A request of a call on device arrays: `Wait` makes the current stream wait, and the host for the matching only.

    For MPI it is a generalized request that is complete from the beginning and finishes the work when MPI asks for
    its status. So mpi4py's own `MPI.Request.Waitall` is right for it, and for lists with host arrays' requests; its
    `Testall`, `Waitany` and the like may take it first and wait. The class methods here do not.
    """

    _work: Work
    receive: OpenReceive | None = None  # of a device array, that it stands for

    @property
    def is_active(self) -> bool:
        """Whether there is something to wait for."""
        return bool(self)

    # One

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait as described above; True."""
        self._finish()
        return super().Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether `Wait` would not keep the host waiting; if so, do what it does."""
        return self._is_over() and self.Wait(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether it is over, without freeing the request."""
        if not self:
            return super().Get_status(status)
        over = self._is_over()
        if over and status is not None:
            self._work.fill(status)
        return over

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As `Wait`; None, as there is no object."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """As `Test`; there is no object."""
        return self.Test(status), None

    def Cancel(self) -> None:
        """Refuse: the peer may have begun."""
        raise NotSupported("Cancel: a message with a device array cannot be taken back; let it be received and wait")

    def Free(self) -> None:
        """Forget the request of a send that was offered its receiver; of a receive, only once it is over."""
        if not self._is_over():
            raise NotSupported("Free: the message is on its way; Wait for it")
        self.Wait()

    def _finish(self) -> None:
        """Finish the work; also if that raises the request is used up, as MPI's are."""
        if not self:
            return
        try:
            self._work.finish()
        except Exception:
            super().Wait()
            raise

    def _is_over(self) -> bool:
        return not self or self._work.is_over()

    # Several, of any kind

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> Literal[True]:
        """Wait for all; ours and mpi4py's."""
        checked = {index: each for index, each in enumerate(requests) if each and isinstance(each, HostReceiveRequest)}
        mine = [each for each in requests if isinstance(each, Request)]
        for each in mine:
            if each.receive is not None:
                each.receive.is_awaited = True
        if checked:
            known = [] if statuses is None else statuses
            known += [MPI.Status() for _ in range(len(known), len(requests))]
            if mine:
                return _wait_for_both(requests, checked, known, mine)
            return wait_for_all(requests, checked, known)
        errors = [error for each in mine if (error := _error_of(each)) is not None]
        over = MPI.Request.Waitall(requests, statuses)
        if errors:
            raise errors[0]
        return over

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> bool:
        """Whether all are over; if so, do what `Waitall` does."""
        mine = [request for request in requests if isinstance(request, Request)]
        theirs = [request for request in requests if not isinstance(request, Request)]
        over = [request._is_over() for request in mine]  # all of them: a look moves each on
        over += [request.Get_status() for request in theirs]
        return all(over) and cls.Waitall(requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait for one of them; its index, or MPI.UNDEFINED if none is active."""
        return _until(lambda: cls.Testany(requests, status))

    @classmethod
    def Testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        """Whether one is over, and which."""
        if not any(map(_is_active, requests)):
            return MPI.UNDEFINED, True
        for index, request in enumerate(requests):
            if _is_active(request) and request.Get_status():
                request.Wait(status)
                return index, True
        return MPI.UNDEFINED, False

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> list[int] | None:
        """Wait until some are over; their indices, None if none is active."""
        return _until(lambda: _some(cls.Testsome(requests, statuses)))

    @classmethod
    def Testsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> list[int] | None:
        """Which are over, each of them once; None if none is active."""
        if not any(map(_is_active, requests)):
            return None
        over = [index for index, request in enumerate(requests) if _is_active(request) and request.Get_status()]
        cls.Waitall([requests[index] for index in over], statuses)
        return over


def request_of(work: Work, receive: OpenReceive | None = None) -> Request:
    """Make the request of some work, which may be a receive."""
    generalized = MPI.Grequest.Start(_query, None, None, (work,))
    generalized.Complete()
    request = Request(generalized)
    request._work, request.receive = work, receive
    return request


def _query(status: MPI.Status, work: Work) -> None:
    """What MPI calls when somebody waits for the request."""
    work.finish()
    work.fill(status)
    status.Set_cancelled(False)


def _is_active(request: MPI.Request) -> bool:
    return request.is_active if isinstance(request, Request) else bool(request)


def _wait_for_both(
    requests: Sequence[MPI.Request],
    checked: dict[int, HostReceiveRequest],
    known: list[MPI.Status],
    mine: list[Request],
) -> Literal[True]:
    """Receive host arrays first, while ours go on.

    A peer's long message to a host array ends only when its `HostReceiveRequest` has been checked. If all peers waited
    for their own long messages first, none would get there.
    """
    errors: list[Exception] = []
    left = list(checked)
    while left := [index for index in left if not checked[index].is_over(known[index], errors)]:
        for each in mine:
            each._is_over()  # a look moves it on
        os.sched_yield()
    rest = [index for index in range(len(requests)) if index not in checked]
    try:
        Request.Waitall([requests[index] for index in rest], [known[index] for index in rest])
    except Exception as error:
        errors.append(error)
    if errors:
        raise errors[0]
    return True


def _error_of(request: Request) -> Exception | None:
    try:
        request._finish()
    except Exception as error:
        return error
    return None


def _until(test: Callable[[], tuple[_Result, bool]]) -> _Result:
    while True:
        result, over = test()
        if over:
            return result
        os.sched_yield()


def _some(indices: list[int] | None) -> tuple[list[int] | None, bool]:
    return indices, indices is None or bool(indices)
