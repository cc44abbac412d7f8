"""Calls that complete several requests of any kind: of this library, and mpi4py's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar, cast

from mpi4py import MPI

from .host_receive import HostReceive, HostReceiveRequest
from .host_waits import gathered
from .open_receives import OpenReceive
from .status import copy_status, fill_empty, has_ended

_T = TypeVar("_T")
Statuses = list[MPI.Status] | None


class Requests(MPI.Request):
    """mpi4py's calls for many requests, for those of operations on device arrays and others together.

    Attributes
    ----------
    receive : OpenReceive or None
        The receive of a device array that a request of this library stands for.
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

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> Literal[True]:
        """Wait for all, and return True. As mpi4py's `Waitall`."""
        if _OF_HOST_ARRAYS.issuperset(map(type, requests)):
            return wait_and_check(requests, statuses)
        ours = [each for each in requests if isinstance(each, Requests)]
        receives = [each.receive for each in ours if each.receive is not None]
        for receive in receives:
            receive.is_awaited = True
        if len(receives) > 1:
            receives[0].gather(receives[1:])
        to_check = {index: each for index, each in enumerate(requests) if each and isinstance(each, HostReceive)}
        if to_check:
            return _wait_and_check(requests, as_many([] if statuses is None else statuses, requests), ours, to_check)
        active = {id(each): each for each in ours if each.is_active} if statuses is not None else {}
        errors = _finish_all(ours)
        over = MPI.Request.Waitall(requests, statuses)
        if len(ours) < len(requests):
            _end_staged(requests)
        for index in (index for index, each in enumerate(requests) if id(each) in active):
            active[id(requests[index])]._complete(cast(list[MPI.Status], statuses)[index])
        if errors:
            raise errors[0]
        return over

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> bool:
        """Whether all are over; if so, do what `Waitall` does. As mpi4py's `Testall`."""
        ended = end_persistent(requests)
        if ended is None:
            return False
        statuses = as_many([] if statuses is None else statuses, requests)
        cls.Waitall(requests, statuses)
        for index, status in ended.items():
            copy_status(statuses[index], status)
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
        found = {index: MPI.Status() for index in range(len(requests))}
        outcomes = {index: _test_or_look(request, found[index]) for index, request in enumerate(requests)}
        if all(outcome is None for outcome in outcomes.values()):
            return None
        over = [index for index, outcome in outcomes.items() if outcome]
        ours = [index for index in over if isinstance(requests[index], Requests)]
        if ours:
            cls.Waitall([requests[index] for index in ours], [found[index] for index in ours])
        fill_first(statuses, [found[index] for index in over])
        return over


_OF_HOST_ARRAYS = {MPI.Request, HostReceiveRequest}


@contextmanager
def kept(errors: list[Exception]) -> Iterator[None]:
    """Append what the block raises to `errors`."""
    try:
        yield
    except Exception as error:
        errors.append(error)


def first(test: Callable[[], _T], is_enough: Callable[[_T], bool]) -> _T:
    """Call `test` until what it returns is enough."""
    while not is_enough(result := test()):
        os.sched_yield()
    return result


def as_many(statuses: list[MPI.Status], requests: Sequence[MPI.Request]) -> list[MPI.Status]:
    """Append what is missing to a list of statuses, as mpi4py does."""
    statuses += [MPI.Status() for _ in range(len(statuses), len(requests))]
    return statuses


def fill_first(statuses: Statuses, found: list[MPI.Status]) -> None:
    """Set the first statuses of a list, which gets those that it lacks."""
    if statuses is None:
        return
    for status, other in zip(statuses, found, strict=False):
        copy_status(status, other)
        status.Set_cancelled(other.Is_cancelled())
    statuses += found[len(statuses) :]


def has_come(request: MPI.Request) -> bool:
    """Whether a request is over, which is none of those of mpi4py's that `end_persistent` completes."""
    if isinstance(request, Requests):
        return request._is_over()
    return request.Get_status() if isinstance(request, HostReceive) else has_ended(request)


def end_persistent(requests: Sequence[MPI.Request]) -> dict[int, MPI.Status] | None:
    """Return None unless all are over; else complete mpi4py's persistent ones, and return their statuses by index.

    Those are asked last and together, since MPICH completes them where it is only asked for their status.
    """
    ended = {index: MPI.Status() for index, each in enumerate(requests) if _is_persistent(each)}
    over = [has_come(each) for index, each in enumerate(requests) if index not in ended]  # each call moves one on
    persistent = [requests[index] for index in ended]
    if not (all(over) and MPI.Request.Testall(persistent, list(ended.values()))):
        return None
    _end_staged(persistent)
    return ended


def _end_staged(requests: Sequence[MPI.Request]) -> None:
    """Let persistent requests that MPI has completed do the rest: the methods of staged ones have more to do."""
    for request in requests:
        if _is_persistent(request):
            request.Wait()


def _is_persistent(request: MPI.Request) -> bool:
    return isinstance(request, MPI.Prequest) and not isinstance(request, (Requests, HostReceive))


def test(request: MPI.Request, status: MPI.Status | None) -> bool | None:
    """Complete a request if it is over, and return whether it was; None of one that is not active."""
    over = _test_or_look(request, status)
    if over and isinstance(request, Requests):
        request.Wait(status)
    return over


def _test_or_look(request: MPI.Request, status: MPI.Status | None) -> bool | None:
    """Do so, but leave requests of this library, of which several are better completed together."""
    if isinstance(request, Requests):
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
    _end_staged([request])
    return True


def _finish_all(requests: Iterable[Requests]) -> list[Exception]:
    """Finish the work of some, each whatever the others raise; return what they raise."""
    errors: list[Exception] = []
    with gathered(errors):
        for request in requests:
            try:
                request._finish()
            except Exception as error:
                errors.append(error)
    return errors


def wait_and_check(requests: Sequence[MPI.Request], statuses: Statuses = None) -> Literal[True]:
    """Wait for requests of mpi4py's, and check receives of host arrays among them, whatever the others raise."""
    every = as_many([] if statuses is None else statuses, requests)
    pairs = zip(requests, every, strict=False)
    receives = [(each, status) for each, status in pairs if type(each) is HostReceiveRequest and each]
    for receive, _ in receives:
        receive.landing.is_claimed = True
    errors: list[Exception] = []
    has_errors = False  # in the statuses
    try:
        MPI.Request.Waitall(requests, every)
    except MPI.Exception as error:
        errors.append(error)
        has_errors = error.Get_error_class() == MPI.ERR_IN_STATUS
    for receive, status in receives:
        if receive:  # MPI may return before the others when one has failed
            receive.landing.is_claimed = False
        elif not has_errors or status.Get_error() == MPI.SUCCESS:
            with kept(errors):
                receive.landing.complete(status)
    if errors:
        raise errors[0]
    return True


def _wait_and_check(
    requests: Sequence[MPI.Request],
    statuses: list[MPI.Status],
    ours: list[Requests],
    to_check: dict[int, HostReceive],
) -> Literal[True]:
    """Wait for all, and check receives of host arrays, by their index; with some of ours, receive host arrays first.

    A peer's long message to a host array ends only when its receive has been checked. If all peers waited for their
    own long messages first, none would get there.
    """
    errors = complete_all(to_check, lambda index: to_check[index].Test(statuses[index]), ours)
    rest = [index for index in range(len(requests)) if index not in to_check]
    with kept(errors):
        Requests.Waitall([requests[index] for index in rest], [statuses[index] for index in rest])
    if errors:
        raise errors[0]
    return True


def complete_all(
    indices: Iterable[int], is_over: Callable[[int], bool], ours: Sequence[MPI.Request]
) -> list[Exception]:
    """Ask until all are over, by their indices, and move requests of this library on; return what was raised."""
    errors: list[Exception] = []
    left = list(indices)
    while left:
        for index in list(left):
            over = True  # a request is used up by its error
            with kept(errors):
                over = is_over(index)
            if over:
                left.remove(index)
        for request in ours:
            with kept(errors):
                has_come(request)
        os.sched_yield()
    return errors
