"""Calls that complete several requests, of this library or mpi4py's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from .completing import OwnRequest, Statuses, as_many, complete, complete_if_over, complete_some
from .failures import Failures, of_request
from .host_receive import HostReceive
from .queries import Queries
from .status import check_status, check_statuses, copy_status, fill_empty

_T = TypeVar("_T")


class Requests(Queries):
    """mpi4py's calls for lists of requests; a list may mix host and device arrays.

    `Waitsome`, `Testall`, `Testsome` and the lower-case calls raise the exceptions of `Waitall`.
    """

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> Literal[True]:
        """Wait for all requests, and return True, like mpi4py's `Waitall`.

        Raises
        ------
        MPI.Exception
            Class ERR_IN_STATUS, if requests have failed. The text and the statuses have their errors; `__cause__` is
            the first.
        PeerTimeout, RankFailed, Revoked, Aborted, CollectiveMismatch
            Errors of a communicator.
        """
        failures = complete(requests, statuses)
        if failures.of_requests or failures.of_call is not None:
            failures.raise_of("Waitall")
        return True

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> bool:
        """Return whether all requests have ended; if so, complete them.

        It works like mpi4py's `Testall`. It raises what `Waitall` raises.
        """
        failures = complete_if_over(requests, statuses, complete)
        if failures is None:
            return False
        failures.raise_of("Testall")
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait for one request, and return its index, like mpi4py's `Waitany`.

        The index is MPI.UNDEFINED if no request is active.
        """
        return first(lambda: cls.Testany(requests, status), lambda result: result[1])[0]

    @classmethod
    def Testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        """Complete one request that has ended; return its index, and whether there is one.

        It works like mpi4py's `Testany`. If no request is active, return MPI.UNDEFINED and True.
        """
        if status is not None:
            check_status(status)
        return test_any(requests, status, lambda request: (test(request, status), None))[:2]

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[int] | None:
        """Wait until some requests have ended, complete them, and return their indices.

        Return None if no request is active. It works like mpi4py's `Waitsome`. It raises what `Waitall` raises.
        """
        return first(lambda: cls.Testsome(requests, statuses), lambda over: over is None or bool(over))

    @classmethod
    def Testsome(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[int] | None:
        """Complete the requests that have ended, and return their indices.

        Return None if no request is active. It works like mpi4py's `Testsome`. It raises what `Waitall` raises.
        """
        if statuses is not None:
            check_statuses(statuses)
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
    """Call `test` until `is_enough` accepts its result; return that result."""
    while not is_enough(result := test()):
        os.sched_yield()
    return result


def test_any(
    requests: Sequence[MPI.Request], status: MPI.Status | None, test: Callable[[MPI.Request], tuple[bool | None, Any]]
) -> tuple[int, bool, Any]:
    """Return the index of the first request that has ended, True, and its object.

    `test` completes a request if it has ended; it returns whether it had (None if inactive), and its object. If no
    request has ended, return MPI.UNDEFINED and whether no request is active.
    """
    is_any_active = False
    for index, request in enumerate(requests):
        try:
            over, message = test(request)
        except BaseException as error:
            own = own_error(error)
            if own is not None:
                of_request(own, index)
            raise
        if over:
            return index, True, message
        is_any_active |= over is not None
    if not is_any_active and status is not None:
        fill_empty(status)
    return MPI.UNDEFINED, not is_any_active, None


def fill_first(statuses: Statuses, found: Sequence[MPI.Status], indices: Sequence[int], failures: Failures) -> None:
    """Set the first statuses of a list to those of the requests with these indices.

    If the list is too short, the other statuses are appended.
    """
    if statuses is not None:
        first = list(zip(indices, as_many(statuses, indices), strict=False))
        for index, status in first:
            copy_status(status, found[index])
        failures.set_errors(first)


def test(request: MPI.Request, status: MPI.Status | None) -> bool | None:
    """Complete a request if it has ended; return whether it had, None if inactive."""
    over = _test_or_look(request, status)
    if over and isinstance(request, OwnRequest):
        request.Wait(status)
    return over


def _test_or_look(request: MPI.Request, status: MPI.Status | None) -> bool | None:
    """Return whether a request has ended, None if it is inactive.

    Requests of mpi4py's and of host arrays are completed if they have ended. The caller completes this library's other
    requests together.
    """
    if isinstance(request, OwnRequest):
        return request._is_over() if request.is_active else None
    if isinstance(request, HostReceive):
        return request.test_active(status)
    if isinstance(request, MPI.Prequest):
        return _complete_persistent(request, status)
    return request.Test(status) if request else None


def _complete_persistent(request: MPI.Prequest, status: MPI.Status | None) -> bool | None:
    """Complete a persistent mpi4py request if it has ended; return whether it had.

    Return None if it is inactive. Only MPI's calls for lists distinguish inactive requests from completed ones.
    """
    status = MPI.Status() if status is None else status
    index, over = MPI.Request.Testany([request], status)
    if index == MPI.UNDEFINED:
        return None if over else False
    return True


def test_each(
    requests: Sequence[MPI.Request], test: Callable[[int], bool | None], failures: Failures
) -> list[int] | None:
    """Call `test` for each request; return the indices of those that have ended.

    Parameters
    ----------
    requests : sequence of Request
    test : callable
        Called with an index into `requests`. Returns whether the request has ended, or None if it is inactive.
    failures : Failures
        Stores exceptions that `test` raises. A request for which it raises counts as ended.

    Returns
    -------
    list of int or None
        None if no request is active.
    """
    outcomes: list[bool | None] = []
    for index in range(len(requests)):
        over: bool | None = True
        with failures.keeping(index):
            over = test(index)
        # Stop at once: the requests that have not been tested stay active.
        if failures.of_call is not None:
            raise failures.of_call
        outcomes.append(over)
    if all(over is None for over in outcomes):
        return None
    return [index for index, over in enumerate(outcomes) if over]
