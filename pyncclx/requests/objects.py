"""Calls that complete several requests of any kind, mpi4py's of objects among them, and return the objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from .host_receive import HostReceive
from .several import Requests, Statuses, as_many, complete_all, end_persistent, fill_first, first, kept, test
from .status import copy_status, fill_empty


class ObjectRequests(Requests):
    """mpi4py's calls with a lower-case name; requests without an object have None."""

    @classmethod
    def waitall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[Any]:
        """Wait for all, and return their objects, None of those without. As mpi4py's `waitall`."""
        every = as_many([] if statuses is None else statuses, requests)
        ours = [index for index, each in enumerate(requests) if isinstance(each, Requests)]
        objects: list[Any] = [None] * len(requests)

        def is_over(index: int) -> bool:
            over, objects[index] = _test_object(requests[index], every[index])
            return over is not False

        others = [index for index in range(len(requests)) if index not in ours]
        errors = complete_all(others, is_over, [requests[index] for index in ours])
        with kept(errors):
            cls.Waitall([requests[index] for index in ours], [every[index] for index in ours])
        if errors:
            raise errors[0]
        return objects

    @classmethod
    def testall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> tuple[bool, list[Any] | None]:
        """Return whether all are over; if so, their objects, too. As mpi4py's `testall`."""
        ended = end_persistent(requests)
        if ended is None:
            return False, None
        statuses = as_many([] if statuses is None else statuses, requests)
        objects = cls.waitall(requests, statuses)
        for index, status in ended.items():
            copy_status(statuses[index], status)
        return True, objects

    @classmethod
    def waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, Any]:
        """Wait for one, and return its index and its object. As mpi4py's `waitany`."""
        index, _, message = first(lambda: cls.testany(requests, status), lambda result: result[1])
        return index, message

    @classmethod
    def testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool, Any]:
        """Return the index of one that is over, whether there is one, and its object. As mpi4py's `testany`."""
        is_any_active = False
        for index, request in enumerate(requests):
            over, message = _test_object(request, MPI.Status() if status is None else status)
            if over:
                return index, True, message
            is_any_active |= over is not None
        if not is_any_active and status is not None:
            fill_empty(status)
        return MPI.UNDEFINED, not is_any_active, None

    @classmethod
    def waitsome(
        cls, requests: Sequence[MPI.Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait until some are over, and return their indices and objects. As mpi4py's `waitsome`."""
        return first(lambda: cls.testsome(requests, statuses), lambda result: result[0] is None or bool(result[0]))

    @classmethod
    def testsome(
        cls, requests: Sequence[MPI.Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return the indices of those that are over, and their objects. As mpi4py's `testsome`."""
        found = [MPI.Status() for _ in requests]
        outcomes = [_test_object(*each) for each in zip(requests, found, strict=True)]
        if all(over is None for over, _ in outcomes):
            return None, None
        indices = [index for index, (over, _) in enumerate(outcomes) if over]
        fill_first(statuses, [found[index] for index in indices])
        return indices, [outcomes[index][1] for index in indices]


def _test_object(request: MPI.Request, status: MPI.Status) -> tuple[bool | None, Any]:
    """Do what `_test` does, and return the object, too."""
    if isinstance(request, (Requests, HostReceive, MPI.Prequest)):
        return test(request, status), None
    return request.test(status) if request else (None, None)
