"""Complete several requests of any kind, and return their objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from .completing import OwnRequest, Statuses, as_many, complete_asking, complete_if_over
from .failures import Failures
from .host_receive import HostReceive
from .several import Requests, fill_first, first, test, test_any, test_each
from .status import check_status, check_statuses


class ObjectRequests(Requests):
    """mpi4py's lower-case calls for lists of requests.

    If a request receives no Python object, they return None as its object.
    """

    @classmethod
    def waitall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[Any]:
        """Wait for all requests, and return their objects, like mpi4py's `waitall`."""
        objects: list[Any] = [None] * len(requests)
        _receive(requests, as_many([] if statuses is None else statuses, requests), objects).raise_of("waitall")
        return objects

    @classmethod
    def testall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> tuple[bool, list[Any] | None]:
        """Return whether all requests have ended, and their objects if so.

        It works like mpi4py's `testall`.
        """
        objects: list[Any] = [None] * len(requests)
        failures = complete_if_over(requests, statuses, lambda some, every: _receive(some, every, objects))
        if failures is None:
            return False, None
        failures.raise_of("testall")
        return True, objects

    @classmethod
    def waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, Any]:
        """Wait for one request, and return its index and object, like mpi4py's `waitany`."""
        index, _, message = first(lambda: cls.testany(requests, status), lambda result: result[1])
        return index, message

    @classmethod
    def testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool, Any]:
        """Complete one request that has ended, if there is one.

        Return its index, whether there is one, and its object. It works like mpi4py's `testany`.
        """
        if status is None:
            status = MPI.Status()
        check_status(status)
        return test_any(requests, status, lambda request: _test_object(request, status))

    @classmethod
    def waitsome(
        cls, requests: Sequence[MPI.Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait until some requests have ended, and return their indices and objects.

        It works like mpi4py's `waitsome`.
        """
        return first(lambda: cls.testsome(requests, statuses), lambda result: result[0] is None or bool(result[0]))

    @classmethod
    def testsome(
        cls, requests: Sequence[MPI.Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Complete the requests that have ended, and return their indices and objects.

        It works like mpi4py's `testsome`.
        """
        if statuses is not None:
            check_statuses(statuses)
        found, failures = [MPI.Status() for _ in requests], Failures()
        objects: list[Any] = [None] * len(requests)

        def is_over(index: int) -> bool | None:
            over, objects[index] = _test_object(requests[index], found[index])
            return over

        indices = test_each(requests, is_over, failures)
        if indices is None:
            return None, None
        fill_first(statuses, found, indices, failures)
        failures.raise_of("testsome")
        return indices, [objects[index] for index in indices]


def _receive(requests: Sequence[MPI.Request], statuses: list[MPI.Status], objects: list[Any]) -> Failures:
    """Wait for all requests, even if some raise; set their statuses and objects."""

    def is_over(index: int) -> bool:
        over, objects[index] = _test_object(requests[index], statuses[index])
        return over is not False

    others = [index for index, each in enumerate(requests) if not isinstance(each, OwnRequest)]
    failures = complete_asking(requests, statuses, others, is_over)
    failures.set_errors(zip(range(len(requests)), statuses, strict=False))
    return failures


def _test_object(request: MPI.Request, status: MPI.Status) -> tuple[bool | None, Any]:
    """Complete a request if it has ended; return whether it had, and its object.

    The first is None if the request is inactive.
    """
    if isinstance(request, (OwnRequest, HostReceive, MPI.Prequest)):
        return test(request, status), None
    return request.test(status) if request else (None, None)
