"""Complete several requests, of this library or mpi4py's, even if some raise."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from mpi4py import MPI

from .failures import Failures
from .host_receive import HostReceive, HostReceiveRequest, Undivided
from .shown import hide
from .status import check_statuses, copy_status, has_ended
from .work import NOTHING, Finisher, Wait, Work, finish, wait_for
from .wrapped import ExplainedRequest, SentToItself

Statuses = Sequence[MPI.Status] | None


class OwnRequest(Undivided):
    """Base class of all requests of operations on device arrays."""

    _work: Work = NOTHING

    @property
    def is_active(self) -> bool:
        """Whether the request has an operation to complete."""
        return self._work.active or self._work.is_asked

    def _is_over(self) -> bool:
        """Return whether `Wait` would return immediately."""
        work = self._work
        return not work.active or work.is_over()


_OF_HOST_ARRAYS = {MPI.Request, HostReceiveRequest}


def as_many(statuses: Sequence[MPI.Status], requests: Sequence[object]) -> list[MPI.Status]:
    """Return a status for each request; extend a short list, as mpi4py does."""
    check_statuses(statuses)
    missing = [MPI.Status() for _ in range(len(statuses), len(requests))]
    if not isinstance(statuses, list):
        return [*statuses, *missing]
    statuses += missing
    return statuses


def has_come(request: MPI.Request) -> bool:
    """Return whether a request has ended. Pass no persistent request of mpi4py's."""
    if isinstance(request, OwnRequest):
        return request._is_over()
    return request.Get_status() if isinstance(request, HostReceive) else has_ended(request)


def end_persistent(requests: Sequence[MPI.Request], failures: Failures) -> dict[int, MPI.Status] | None:
    """Complete mpi4py's persistent requests if all requests have ended.

    Return the statuses of persistent requests by index, or None if a request has not ended. Persistent requests are
    tested last, in one call, because MPICH completes them even if only their status is queried.
    """
    ended = {index: MPI.Status() for index, each in enumerate(requests) if is_persistent(each)}
    # Call `has_come` for every request, because it also makes progress.
    over = [has_come(each) for index, each in enumerate(requests) if index not in ended]
    try:
        if not (all(over) and MPI.Request.Testall([requests[index] for index in ended], list(ended.values()))):
            return None
    except MPI.Exception as error:
        failures.add_of_mpi(error, ended.items())
        if failures.of_call is not None:
            raise
    return ended


def is_persistent(request: MPI.Request) -> bool:
    """Return whether a request is a persistent request of mpi4py's."""
    return isinstance(request, MPI.Prequest) and not isinstance(request, (OwnRequest, HostReceive))


def complete_if_over(
    requests: Sequence[MPI.Request],
    statuses: Statuses,
    complete: Callable[[Sequence[MPI.Request], list[MPI.Status]], Failures],
) -> Failures | None:
    """Complete all requests with `complete` if all have ended; otherwise return None."""
    if statuses is not None:
        check_statuses(statuses)
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
    """Wait for all requests, even if some raise, and set their statuses."""
    if requests and type(requests[0]) in _OF_HOST_ARRAYS and _OF_HOST_ARRAYS.issuperset(map(type, requests)):
        failures = _wait_and_check(requests, as_many([] if statuses is None else statuses, requests))
    else:
        ours: dict[int, OwnRequest] = {}
        for index, each in enumerate(requests):
            if isinstance(each, OwnRequest):
                ours[index] = each
        if len(ours) < len(requests):
            # MPI reports in the statuses which requests have failed.
            statuses = as_many([] if statuses is None else statuses, requests)
            failures = _complete_mixed(requests, ours, statuses)
        else:
            failures, every = Failures(), None if statuses is None else as_many(statuses, requests)
            finished = _finish(ours, failures, every)
            if every is not None:
                for index, status in zip(ours, every, strict=False):
                    finished.get(index, NOTHING).fill(status)
    if failures.of_requests and statuses is not None:
        failures.set_errors(zip(range(len(requests)), statuses, strict=False))
    return failures


def _complete_mixed(
    requests: Sequence[MPI.Request], ours: dict[int, OwnRequest], statuses: list[MPI.Status]
) -> Failures:
    """Complete this library's requests, then call MPI's `Waitall` for the others.

    `ours` are this library's requests, by index; MPI gets null requests in their place. If some requests receive into
    host arrays, or receive probed objects, those are polled first (see `complete_asking`).
    """
    own_ways = HostReceive, SentToItself
    to_check = {index: each for index, each in enumerate(requests) if each and isinstance(each, own_ways)}
    if to_check:
        return complete_asking(requests, statuses, list(to_check), lambda index: to_check[index].Test(statuses[index]))
    failures = Failures()
    finished = _finish(ours, failures, statuses)
    try:
        MPI.Request.Waitall(requests, statuses)
    except MPI.Exception as error:
        failures.add_of_mpi(error, zip(range(len(requests)), statuses, strict=False))
        _explain(requests, failures)
    for index, work in finished.items():
        work.fill(statuses[index])
    return failures


def _explain(requests: Sequence[MPI.Request], failures: Failures) -> None:
    """Record RankFailed or Revoked if that is the reason why a request has failed."""
    for index, request in enumerate(requests):
        error = failures.of_requests.get(index)
        if error is not None and isinstance(request, ExplainedRequest):
            reason = request.explained(error)
            if reason is not error:
                failures.add_of_call(reason, index)


def _finish(requests: dict[int, OwnRequest], failures: Failures, statuses: Statuses) -> dict[int, Work]:
    """Finish the active requests, even if some raise; return their works by index.

    If a signal handler raises, set the statuses of messages that have been received.

    Works with the same finisher are finished together. The host waits at the end, once for all works that share a wait,
    because each wait takes about 12 µs even if the work has ended (PyFR with 4 ranks on an H200, November 2026).
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
    # Finish works in MPI last: their messages may complete only after peers have received those of the other works.
    in_mpi = kinds.pop(finish_in_mpi, None)
    if in_mpi is not None:
        kinds[finish_in_mpi] = in_mpi
    try:
        for finisher, works in kinds.items():
            finisher(works, failures, waits)
        if waits:
            wait_for(waits, failures)
    except BaseException:
        for index, work in finished.items():
            if statuses is not None and work.is_received:
                work.fill(statuses[index])
        raise
    finally:
        hide(requests.values())
    return finished


def _finish_each(works: dict[int, Work], failures: Failures, waits: dict[Wait, None]) -> None:
    for index, work in works.items():
        try:
            wait = work.finish()
            if wait is not None:
                waits[wait] = None
        except BaseException as error:
            failures.add_own(error, index)


def finish_in_mpi(works: dict[int, Work], failures: Failures, waits: dict[Wait, None]) -> None:
    """Finish works that wait in MPI; other finishers are called before this one."""
    _finish_each(works, failures, waits)


def _wait_and_check(requests: Sequence[MPI.Request], statuses: list[MPI.Status]) -> Failures:
    """Wait for mpi4py's requests, and check the receives into host arrays among them."""
    receives = [(index, each) for index, each in enumerate(requests) if type(each) is HostReceiveRequest and each]
    views = []  # kept until the end, as in `HostReceive.finish`
    for _, receive in receives:
        receive.landing.is_claimed = True
        views.append(receive.landing())
    failures = Failures()
    try:
        try:
            MPI.Request.Waitall(requests, statuses)
        except MPI.Exception as error:
            failures.add_of_mpi(error, zip(range(len(requests)), statuses, strict=False))
        for index, receive in receives:
            # After one request has failed, MPI may return before the others are complete.
            if receive:
                receive.landing.is_claimed = False
            elif index not in failures.of_requests:
                with failures.keeping(index):
                    receive.landing.complete(statuses[index])
    except BaseException as error:
        for index, receive in receives:
            receive.end_interrupted(statuses[index], error)
        raise
    return failures


def complete_some(
    requests: Sequence[MPI.Request], statuses: Sequence[MPI.Status], indices: Sequence[int], failures: Failures
) -> None:
    """Wait for the requests with the given indices."""
    if indices:
        some = complete([requests[index] for index in indices], [statuses[index] for index in indices])
        failures.update(some, indices)


def complete_asking(
    requests: Sequence[MPI.Request],
    statuses: Sequence[MPI.Status],
    asked: Sequence[int],
    is_over: Callable[[int], bool],
) -> Failures:
    """Poll the requests with indices in `asked` until they end; wait for the others.

    During the polls, this library's other requests make progress. The indices in `asked` are those of receives into
    host arrays, and of probed objects. They come first, because a peer's long message to such a receive completes only
    after this rank has checked the receive. If all ranks first waited for their own long messages, they would deadlock.
    """
    failures, left = Failures(), list(asked)
    rest = [index for index in range(len(requests)) if index not in asked]
    while left:
        for index in list(left):
            # A request that has raised has ended.
            over = True
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
