"""End waits on the host for failed ranks: in rendezvous, MPI, and MPI_Finalize."""

from __future__ import annotations

import atexit
import functools
import itertools
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, TypeVar, cast

from mpi4py import MPI

import mpi_bootstrap

from ..errors import Aborted, RankFailed, RanksMissing, Revoked
from ..recording.failures import noted
from ..requests.wrapped import ExplainedRequest
from ..system import settings
from ..system.mpi_library import goes_on_after_failures
from ..system.process import PerProcess
from ..system.signals import has_default_action
from . import ulfm
from .comm_failures import INTERRUPTED, LATE, REVOKED, WAITED, ended_by, of_ranks
from .detector import DETECTOR, OVER_S, PAUSE_S, Detector

RENDEZVOUS = "a rendezvous of all ranks on the host"
_FOR_MPI_S = 0.5  # seconds to wait for MPI's reason: the first error of Open MPI may be of class ERR_OTHER
_FOR_SURE_S = 10.0  # the same if ranks have certainly failed; MPI takes longer on a busy machine
_FINALIZE_S = 10.0  # seconds in which MPI may end after a rank has failed
_Method = TypeVar("_Method", bound=Callable[..., Any])
_OF_FAILURES = {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED, MPI.ERR_OTHER}


class FailurePolicy(mpi_bootstrap.WaitPolicy):
    """pyncclx's `WaitPolicy`: how long ranks wait, and what a failed wait raises."""

    def __init__(self) -> None:
        self._asked = 0.0  # when MPI was asked last

    def seconds(self) -> float:
        """Return PYNCCLX_TIMEOUT in seconds."""
        return settings.TIMEOUT.get()

    def hopeless(
        self, comm: MPI.Comm, waited_s: float, operation: str = RENDEZVOUS, *, with_ended: bool = True
    ) -> Exception | None:
        """Return the failure because of which an operation can never complete, or None.

        With `with_ended`, the operation needs all ranks. So once it has waited for `OVER_S`, ranks whose programs have
        ended count as failed.
        """
        detector = DETECTOR.made
        if detector is None:
            return None
        self._ask_mpi(detector)
        failure = detector.failure_of(comm)
        if failure is not None:
            return noted(failure.exception(operation))
        with_ended = with_ended and waited_s > OVER_S
        if not (detector.has_failed or with_ended):
            return None
        reasons = detector.failed_among(ulfm.world_ranks(comm), with_ended=with_ended)
        return noted(_failed(comm, reasons, operation)) if reasons else None

    def _ask_mpi(self, detector: Detector) -> None:
        """Ask MPI for failed ranks in this thread, at intervals, if the detector must not."""
        if goes_on_after_failures() and MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            now = time.monotonic()
            if now - self._asked > PAUSE_S:
                self._asked = now
                detector.ask_mpi()

    def explain(self, comm: MPI.Comm, error: MPI.Exception) -> Exception:
        """Return RankFailed or Revoked if that is MPI's reason, otherwise MPI's exception."""
        return noted(explained(comm, error))

    def late(self, comm: MPI.Comm, ranks: list[int]) -> Exception:
        """Return RanksMissing for late ranks; if these are unknown, for silent processes.

        On a late rank, return Aborted.
        """
        detector = DETECTOR.made
        if comm.rank in ranks:
            return noted(ended_by(comm.rank, LATE, RENDEZVOUS).exception())
        if not ranks and detector is not None:
            ranks = detector.standing_still(ulfm.world_ranks(comm))
        return noted(RanksMissing(comm.rank, tuple(ranks)))

    def interrupted(self, comm: MPI.Comm, rank: int) -> Exception:
        """Return the Aborted for a rendezvous that a signal handler has ended on a rank."""
        return ended_by(rank, INTERRUPTED, RENDEZVOUS).exception()

    def ended(self, comm: MPI.Comm, error: Exception, *, is_first: bool) -> None:
        """Make the communicator's collectives raise, also those of kernels."""
        detector = DETECTOR.made
        # Every rank finds other failures by itself.
        if detector is None or not isinstance(error, (RanksMissing, Aborted)):
            return
        kind = WAITED if isinstance(error, RanksMissing) else INTERRUPTED
        for watched in detector.watched_of(comm):
            if not (watched.is_of_messages or watched.has_failed):
                failure = ended_by(watched.rank, kind, RENDEZVOUS, watched.id)
                watched.fail(replace(failure, error=error))
                if is_first and watched.id and failure.note is not None:
                    detector.presence.note(failure.note)


def explained(comm: MPI.Comm, error: MPI.Exception, operation: str = "") -> Exception:
    """Return RankFailed or Revoked if that is MPI's reason, otherwise MPI's exception."""
    explains_itself = isinstance(error, (RankFailed, Revoked))
    if explains_itself or not goes_on_after_failures() or error.Get_error_class() not in _OF_FAILURES:
        return error
    detector = DETECTOR.made
    is_sure = error.Get_error_class() != MPI.ERR_OTHER or (detector is not None and detector.has_failed)
    end = time.monotonic() + (_FOR_SURE_S if is_sure else _FOR_MPI_S)
    while time.monotonic() < end:
        ranks = ulfm.failed_ranks(comm)
        if ranks:
            known, of_world = {}, ulfm.world_ranks(comm)
            if detector is not None:
                known = detector.failed_among(of_world)
                # Record the ranks now: the program may free the communicator before the detector finds them.
                for rank in ranks:
                    detector.record_failure(of_world[rank])
            return _failed(comm, {**dict.fromkeys(ranks, "MPI has found that its process died"), **known}, operation)
        if ulfm.is_revoked(comm):
            return ended_by(-1, REVOKED).exception(operation)
        time.sleep(0.01)
    return error


def explains_failures(method: _Method) -> _Method:
    """Make a method raise RankFailed or Revoked in place of MPI's exceptions."""

    @functools.wraps(method)
    def call(self: MPI.Comm, *args: Any, **kwargs: Any) -> Any:
        try:
            # After a call with `*args`, Python may run a signal handler. Its exception would lose a request or a
            # message.
            (result,) = itertools.starmap(functools.partial(method, **kwargs), ((self, *args),))
            return result
        except MPI.Exception as error:
            raise_explained(self, error, method.__name__)

    return cast(_Method, call)


def raise_explained(comm: MPI.Comm, error: MPI.Exception, operation: str) -> NoReturn:
    """Raise RankFailed or Revoked for MPI's exception, else the exception itself."""
    reason = explained(comm, error, operation)
    if reason is error:
        raise error
    raise noted(reason) from error


def explained_request(comm: MPI.Comm, request: MPI.Request) -> MPI.Request:
    """Return a request of mpi4py's that raises RankFailed or Revoked.

    Requests of this library raise them themselves.
    """
    if type(request) is not MPI.Request or not goes_on_after_failures():
        return request
    return ExplainedRequest(request, functools.partial(explained, comm))


def _failed(comm: MPI.Comm, reasons: dict[int, str], operation: str = RENDEZVOUS) -> Exception:
    failure, detector = of_ranks(reasons, ulfm.world_ranks(comm)), DETECTOR.made
    is_here = detector is not None and all(map(detector.shares_node, failure.world_ranks))
    return replace(failure, host=MPI.Get_processor_name() if is_here else "").exception(operation)


#: Made with the first communicator.
POLICY = PerProcess(lambda: mpi_bootstrap.set_wait_policy(FailurePolicy()), lasting=True)


def _end() -> None:
    detector = DETECTOR.made
    if detector is not None:
        detector.end()


def _bound_finalize() -> None:
    """Bound the time of MPI_Finalize: Open MPI's may wait for a dead rank."""
    detector = DETECTOR.made
    if detector is None or not detector.has_failed or not goes_on_after_failures() or MPI.Is_finalized():
        return
    if has_default_action(signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, _FINALIZE_S)


# Functions run in the reverse order of registration, so functions that the program registers later run first.
atexit.register(_bound_finalize)
atexit.register(_end)
