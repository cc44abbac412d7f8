"""Completing several requests of any kind, of this library and mpi4py's: all, whatever any of them raises."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from mpi4py import MPI

from .failures import Failures
from .host_receive import HostReceive, HostReceiveRequest
from .host_waits import gathered
from .open_receives import OpenReceive
from .status import copy_status, has_ended

Statuses = list[MPI.Status] | None


class OwnRequest(MPI.Request):
    """A request of operations on device arrays, as calls that complete several requests see it.

    Attributes
    ----------
    receive : OpenReceive or None
        The receive of a device array that it stands for.
    """

    receive: OpenReceive | None = None

    @property
    def is_active(self) -> bool:
        """Whether there is something to wait for."""
        return bool(self)

    def _is_over(self) -> bool:
        """Whether `_finish` would return at once."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Finish the operation."""
        raise NotImplementedError

    def _complete(self, status: MPI.Status) -> None:
        """Set what MPI leaves out in the status of a request that was active and is over."""

    def _fill(self, status: MPI.Status) -> None:
        """Set all of the status of a request that was active and has failed."""


_OF_HOST_ARRAYS = {MPI.Request, HostReceiveRequest}


def as_many(statuses: list[MPI.Status], requests: Sequence[object]) -> list[MPI.Status]:
    """Append what is missing to a list of statuses, as mpi4py does."""
    statuses += [MPI.Status() for _ in range(len(statuses), len(requests))]
    return statuses


def has_come(request: MPI.Request) -> bool:
    """Whether a request is over, which is none of those of mpi4py's that `end_persistent` completes."""
    if isinstance(request, OwnRequest):
        return request._is_over()
    return request.Get_status() if isinstance(request, HostReceive) else has_ended(request)


def end_persistent(requests: Sequence[MPI.Request], failures: Failures) -> dict[int, MPI.Status] | None:
    """Return None unless all are over; else complete mpi4py's persistent ones, and return their statuses by index.

    Those are asked last and together, since MPICH completes them where it is only asked for their status.
    """
    ended = {index: MPI.Status() for index, each in enumerate(requests) if is_persistent(each)}
    over = [has_come(each) for index, each in enumerate(requests) if index not in ended]  # each call moves one on
    try:
        if not (all(over) and MPI.Request.Testall([requests[index] for index in ended], list(ended.values()))):
            return None
    except MPI.Exception as error:
        failures.add_of_mpi(error, ended.items())
        if failures.of_call is not None:
            raise
    _end_staged(requests, failures)
    return ended


def _end_staged(requests: Sequence[MPI.Request], failures: Failures) -> None:
    """Let persistent requests that MPI has completed do the rest: the methods of staged ones have more to do."""
    for index, request in enumerate(requests):
        if is_persistent(request) and not failures.is_pending(index):
            with failures.keeping(index):
                request.Wait()


def is_persistent(request: MPI.Request) -> bool:
    """Whether a request is a persistent one of mpi4py's, on host arrays or host copies."""
    return isinstance(request, MPI.Prequest) and not isinstance(request, (OwnRequest, HostReceive))


def complete_if_over(
    requests: Sequence[MPI.Request],
    statuses: Statuses,
    complete: Callable[[Sequence[MPI.Request], list[MPI.Status]], Failures],
) -> Failures | None:
    """Complete all by a function, if all are over; return None if not."""
    failures = Failures()
    ended = end_persistent(requests, failures)
    if ended is None:
        return None
    every = as_many([] if statuses is None else statuses, requests)
    failures.update(complete(requests, every), range(len(requests)))
    for index, status in ended.items():
        copy_status(every[index], status)
    failures.set_errors(zip(range(len(requests)), every, strict=False))
    return failures


def complete(requests: Sequence[MPI.Request], statuses: Statuses = None) -> Failures:
    """Wait for all, each whatever the others raise; set their statuses."""
    if _OF_HOST_ARRAYS.issuperset(map(type, requests)):
        every = as_many([] if statuses is None else statuses, requests)
        failures = _wait_and_check(requests, every)
    else:
        ours = {index: each for index, each in enumerate(requests) if isinstance(each, OwnRequest)}
        if statuses is None and len(ours) < len(requests):
            statuses = []  # where MPI tells what has failed
        every = [] if statuses is None else as_many(statuses, requests)
        failures = _check_and_finish(requests, ours, every)
    if failures.of_requests:
        failures.set_errors(zip(range(len(requests)), every, strict=False))
    return failures


def _check_and_finish(
    requests: Sequence[MPI.Request], ours: dict[int, OwnRequest], statuses: list[MPI.Status]
) -> Failures:
    """Wait for all, for receives of host arrays first; set the statuses, if there are any."""
    to_check: dict[int, HostReceive] = {}
    if len(ours) < len(requests):
        to_check = {index: each for index, each in enumerate(requests) if each and isinstance(each, HostReceive)}
    if not to_check:
        return _finish_and_wait(requests, ours, statuses)
    return complete_asking(requests, statuses, list(to_check), lambda index: to_check[index].Test(statuses[index]))


def _finish_and_wait(
    requests: Sequence[MPI.Request], ours: dict[int, OwnRequest], statuses: list[MPI.Status]
) -> Failures:
    """Finish the work of this library's requests, then let MPI complete all; set the statuses, if there are any."""
    receives = [each.receive for each in ours.values() if each.receive is not None]
    for receive in receives:
        receive.is_awaited = True
    if len(receives) > 1:
        receives[0].gather(receives[1:])
    active = {index: each for index, each in ours.items() if each.is_active} if statuses else {}
    failures = _finish_all(ours)
    try:
        MPI.Request.Waitall(requests, statuses or None)
    except MPI.Exception as error:
        failures.add_of_mpi(error, zip(range(len(requests)), statuses, strict=False))
    if len(ours) < len(requests):
        _end_staged(requests, failures)
    for index, each in active.items():
        fill = each._fill if index in failures.of_requests else each._complete
        fill(statuses[index])
    return failures


def _finish_all(requests: dict[int, OwnRequest]) -> Failures:
    """Finish the work of some, by their indices, each whatever the others raise."""
    failures = Failures()
    with gathered(failures.add_of_call):
        for index, request in requests.items():
            try:
                request._finish()
            except Exception as error:
                failures.add(error, index)
    return failures


def _wait_and_check(requests: Sequence[MPI.Request], statuses: list[MPI.Status]) -> Failures:
    """Wait for requests of mpi4py's, and check receives of host arrays among them."""
    receives = [(index, each) for index, each in enumerate(requests) if type(each) is HostReceiveRequest and each]
    for _, receive in receives:
        receive.landing.is_claimed = True
    failures = Failures()
    try:
        MPI.Request.Waitall(requests, statuses)
    except MPI.Exception as error:
        failures.add_of_mpi(error, zip(range(len(requests)), statuses, strict=False))
    for index, receive in receives:
        if receive:  # MPI may return before the others when one has failed
            receive.landing.is_claimed = False
        elif index not in failures.of_requests:
            with failures.keeping(index):
                receive.landing.complete(statuses[index])
    return failures


def complete_some(
    requests: Sequence[MPI.Request], statuses: Sequence[MPI.Status], indices: Sequence[int], failures: Failures
) -> None:
    """Wait for some of the requests, by their indices."""
    if indices:
        some = complete([requests[index] for index in indices], [statuses[index] for index in indices])
        failures.update(some, indices)


def complete_asking(
    requests: Sequence[MPI.Request],
    statuses: Sequence[MPI.Status],
    asked: Sequence[int],
    is_over: Callable[[int], bool],
) -> Failures:
    """Ask whether some are over, by their indices, until they are, and move those of this library on; then all others.

    So host arrays are received first. A peer's long message to one ends only when its receive has been checked: if all
    peers waited for their own long messages first, none would get there.
    """
    failures, left = Failures(), list(asked)
    rest = [index for index in range(len(requests)) if index not in asked]
    while left:
        for index in list(left):
            over = True  # a request is used up by its error
            with failures.keeping(index):
                over = is_over(index)
            if over:
                left.remove(index)
        for index in rest:
            if isinstance(requests[index], OwnRequest):
                with failures.keeping(index):
                    has_come(requests[index])
        os.sched_yield()
    complete_some(requests, statuses, rest, failures)
    return failures
