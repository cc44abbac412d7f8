"""Completing several requests of any kind, of this library and mpi4py's: all, whatever any of them raises."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from mpi4py import MPI

from .failures import Failures
from .host_receive import HostReceive, HostReceiveRequest
from .sent_to_itself import SentToItself
from .shown import hide
from .status import copy_status, has_ended
from .work import NOTHING, Finisher, Wait, Work, finish, wait_for

Statuses = list[MPI.Status] | None


class OwnRequest(MPI.Request):
    """A request of operations on device arrays, as calls that complete several requests see it."""

    _work: Work = NOTHING

    @property
    def is_active(self) -> bool:
        """Whether there is something to wait for."""
        return self._work.active or self._work.is_asked

    def _is_over(self) -> bool:
        """Whether `Wait` would return at once."""
        work = self._work
        return not work.active or work.is_over()


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
        failures = _wait_and_check(requests, as_many([] if statuses is None else statuses, requests))
    else:
        ours: dict[int, OwnRequest] = {}
        for index, each in enumerate(requests):
            if isinstance(each, OwnRequest):
                ours[index] = each
        if len(ours) < len(requests):
            statuses = as_many([] if statuses is None else statuses, requests)  # where MPI tells what has failed
            failures = _complete_mixed(requests, ours, statuses)
        else:
            failures = Failures()
            finished = _finish(ours, failures)
            if statuses is not None:
                for index, status in zip(ours, as_many(statuses, requests), strict=False):
                    finished.get(index, NOTHING).fill(status)
    if failures.of_requests and statuses is not None:
        failures.set_errors(zip(range(len(requests)), statuses, strict=False))
    return failures


def _complete_mixed(
    requests: Sequence[MPI.Request], ours: dict[int, OwnRequest], statuses: list[MPI.Status]
) -> Failures:
    """Complete those of this library, by their indices, for MPI to find null, and let it complete the others.

    If there are receives of host arrays or probed objects, all are asked, and these come first.
    """
    own_ways = HostReceive, SentToItself
    to_check = {index: each for index, each in enumerate(requests) if each and isinstance(each, own_ways)}
    if to_check:
        return complete_asking(requests, statuses, list(to_check), lambda index: to_check[index].Test(statuses[index]))
    failures = Failures()
    finished = _finish(ours, failures)
    try:
        MPI.Request.Waitall(requests, statuses)
    except MPI.Exception as error:
        failures.add_of_mpi(error, zip(range(len(requests)), statuses, strict=False))
    _end_staged(requests, failures)
    for index, work in finished.items():
        work.fill(statuses[index])
    return failures


def _finish(requests: dict[int, OwnRequest], failures: Failures) -> dict[int, Work]:
    """Finish what is active, each whatever the others raise, those of a kind together; return the works by index.

    The host waits at the end, and once for what several share: each wait takes some 12 µs though all but the first have
    nothing to wait for (PyFR with 4 ranks on an H200, November 2026).
    """
    finished: dict[int, Work] = {}
    kinds: dict[Finisher, dict[int, Work]] = {}
    waits: dict[Wait, None] = {}
    for index, request in requests.items():
        work = request._work
        if work.active:
            finished[index] = work
            kinds.setdefault(work.finisher or _finish_each, {})[index] = work
        elif work.is_asked:
            finished[index] = work
            with failures.keeping(index):
                finish(work)
    try:
        for finisher, works in kinds.items():
            finisher(works, failures, waits)
        if waits:
            wait_for(waits, failures)
    finally:
        hide(requests.values())
    return finished


def _finish_each(works: dict[int, Work], failures: Failures, waits: dict[Wait, None]) -> None:
    for index, work in works.items():
        try:
            wait = work.finish()
            if wait is not None:
                waits[wait] = None
        except Exception as error:
            failures.add(error, index)


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
