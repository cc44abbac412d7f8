"""Calls that complete several requests of any kind: of this library, and mpi4py's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from mpi4py import MPI

from .completing import OwnRequest, Statuses, as_many, complete, complete_if_over, complete_some
from .failures import Failures
from .host_receive import HostReceive
from .status import copy_status, fill_empty

_T = TypeVar("_T")


class Requests(OwnRequest):
    """mpi4py's calls for many requests, for those of operations on device arrays and others together.

    `Waitsome`, `Testall`, `Testsome` and the relatives with lower-case names raise what `Waitall` does.
    """

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> Literal[True]:
        """Wait for all, and return True. As mpi4py's `Waitall`.

        Raises
        ------
        MPI.Exception
            Class ERR_IN_STATUS, if requests have failed: the text and the statuses have their errors, the first is its
            `__cause__`.
        PeerTimeout, RankFailed, Revoked, Aborted, CollectiveMismatch
            Errors of a communicator.
        """
        failures = complete(requests, statuses)
        if failures.of_requests or failures.of_call is not None:
            failures.raise_of("Waitall")
        return True

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> bool:
        """Whether all are over; if so, do what `Waitall` does. As mpi4py's `Testall`."""
        failures = complete_if_over(requests, statuses, complete)
        if failures is None:
            return False
        failures.raise_of("Testall")
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait for one, and return its index, or MPI.UNDEFINED if none is active. As mpi4py's `Waitany`."""
        return first(lambda: cls.Testany(requests, status), lambda result: result[1])[0]

    @classmethod
    def Testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        """Return the index of one that is over, and whether there is one. As mpi4py's `Testany`."""
        is_any_active = False
        for index, request in enumerate(requests):
            over = test(request, status)
            if over:
                return index, True
            is_any_active |= over is not None
        if not is_any_active and status is not None:
            fill_empty(status)
        return MPI.UNDEFINED, not is_any_active

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[int] | None:
        """Wait until some are over, and return their indices; None if none is active. As mpi4py's `Waitsome`."""
        return first(lambda: cls.Testsome(requests, statuses), lambda over: over is None or bool(over))

    @classmethod
    def Testsome(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[int] | None:
        """Return the indices of those that are over; None if none is active. As mpi4py's `Testsome`."""
        found, failures = [MPI.Status() for _ in requests], Failures()
        over = test_each(requests, lambda index: _test_or_look(requests[index], found[index]), failures)
        if over is None:
            return None
        ours = [index for index in over if isinstance(requests[index], OwnRequest)]
        complete_some(requests, found, ours, failures)
        fill_first(statuses, found, over, failures)
        failures.raise_of("Testsome")
        return over


def first(test: Callable[[], _T], is_enough: Callable[[_T], bool]) -> _T:
    """Call `test` until what it returns is enough."""
    while not is_enough(result := test()):
        os.sched_yield()
    return result


def fill_first(statuses: Statuses, found: Sequence[MPI.Status], indices: Sequence[int], failures: Failures) -> None:
    """Set the first statuses of a list, which gets those that it lacks, to those of some requests."""
    if statuses is not None:
        first = list(zip(indices, as_many(statuses, indices), strict=False))
        for index, status in first:
            copy_status(status, found[index])
        failures.set_errors(first)


def test(request: MPI.Request, status: MPI.Status | None) -> bool | None:
    """Complete a request if it is over, and return whether it was; None of one that is not active."""
    over = _test_or_look(request, status)
    if over and isinstance(request, OwnRequest):
        request.Wait(status)
    return over


def _test_or_look(request: MPI.Request, status: MPI.Status | None) -> bool | None:
    """Do so, but leave requests of this library, of which several are better completed together."""
    if isinstance(request, OwnRequest):
        return request._is_over() if request.is_active else None
    if isinstance(request, HostReceive):
        return request.test_active(status)
    if isinstance(request, MPI.Prequest):
        return _complete_persistent(request, status)
    return request.Test(status) if request else None


def _complete_persistent(request: MPI.Prequest, status: MPI.Status | None) -> bool | None:
    """Complete a persistent request of mpi4py's that is over; None of an inactive one, as MPI shows in lists only."""
    status = MPI.Status() if status is None else status
    index, over = MPI.Request.Testany([request], status)
    if index == MPI.UNDEFINED:
        return None if over else False
    request.Wait()  # staged ones have more to do
    return True


def test_each(
    requests: Sequence[MPI.Request], test: Callable[[int], bool | None], failures: Failures
) -> list[int] | None:
    """Test all, by their indices; return the indices of those that are over, None if none is active."""
    outcomes: list[bool | None] = []
    for index in range(len(requests)):
        over: bool | None = True  # a request is used up by its error
        with failures.keeping(index):
            over = test(index)
        if failures.of_call is not None:  # which is raised now; what has not been tested stays
            raise failures.of_call
        outcomes.append(over)
    if all(over is None for over in outcomes):
        return None
    return [index for index, over in enumerate(outcomes) if over]
