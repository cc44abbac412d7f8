"""Bounded waits for rendezvous on the host, ended by a deadline or a failed rank."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mpi4py import MPI

from .freeing import Tested, check, has_left, leave
from .interrupts import raise_if_overdue
from .notes import INTERRUPTED, LATE, LEFT, UNUSED_TAG, has_note, send_notes, take_note
from .own_errors import own_error
from .polls import poll

SHORTEST_S, LONGEST_S = 50e-6, 5e-3  # pauses between two polls
_PART = 1 / 8  # length of a pause as a share of the time waited so far; bounds how late a wait ends
_YIELDS, SPIN_S = 50, 200e-6  # least number of polls, and least time, before the first pause
_LAST_LOOKS = 20
_FOR_NOTES_S = 1.0


_kept: list[object] = []  # memory of collectives that timed out, which MPI may still write to


class WaitPolicy:
    """Failure policy: how long a rank waits for other ranks, and what it raises then.

    This class is the default policy.
    """

    def seconds(self) -> float:
        """Return how many seconds a rank waits for others."""
        return 300.0

    def hopeless(self, comm: MPI.Comm, waited_s: float) -> Exception | None:
        """Return an error if some rank will certainly never arrive; otherwise None."""
        return None

    def explain(self, comm: MPI.Comm, error: MPI.Exception) -> Exception:
        """Return the exception to raise instead of one of MPI's."""
        return error

    def late(self, comm: MPI.Comm, ranks: list[int]) -> Exception:
        """Return the exception to raise for ranks that have not arrived in time.

        If `comm.rank` is one of them, this rank came too late: the others no longer wait for it.
        """
        return TimeoutError(f"rank {comm.rank} timed out waiting for ranks {ranks or 'unknown'}")

    def interrupted(self, comm: MPI.Comm, rank: int) -> Exception:
        """Return the exception to raise after a signal handler raised on a rank."""
        return RuntimeError(f"rank {rank} was interrupted while it waited for the others")

    def ended(self, comm: MPI.Comm, error: Exception, *, is_first: bool) -> None:
        """Handle the end of this rank's rendezvous on a communicator, due to an error.

        If `is_first`, the other ranks may not have learned of the error yet.
        """


AnyPolicy = TypeVar("AnyPolicy", bound=WaitPolicy)
_policies: list[WaitPolicy] = [WaitPolicy()]


def set_wait_policy(policy: AnyPolicy) -> AnyPolicy:
    """Set the failure policy of all later waits in this process; return it."""
    _policies[:] = [policy]
    return policy


def patience() -> float:
    """Return how many seconds a rank waits for others."""
    return _policies[0].seconds()


def let_go_on() -> None:
    """Probe for a message, so that MPI makes progress on this rank.

    In Open MPI only a probe that finds nothing makes progress. In MPICH a probe of COMM_SELF makes none, so COMM_WORLD
    is probed. A revoked COMM_WORLD raises; then COMM_SELF is probed, because MPICH cannot revoke.
    """
    try:
        MPI.COMM_WORLD.Iprobe(MPI.COMM_WORLD.rank, UNUSED_TAG)
    except MPI.Exception:
        MPI.COMM_SELF.Iprobe(0, UNUSED_TAG)


def begin(comm: MPI.Comm) -> None:
    """Raise if a rank has failed, or if this rank has left an earlier rendezvous."""
    reason = _policies[0].hopeless(comm, 0.0)
    if reason is not None:
        raise reason
    check(comm)


def complete(comm: MPI.Comm, request: Tested, seconds: float | None = None, *, memory: object = None) -> None:
    """Wait for a nonblocking collective of MPI's, without keeping the processor busy.

    Parameters
    ----------
    comm : MPI.Comm
    request : Tested
        A request of MPI's, or another object with its method `Test`.
    seconds : float, optional
        Longest wait; default: that of the failure policy.
    memory : object, optional
        Memory that MPI reads and writes; mpi4py's requests hold no reference to it. If the wait ends before the request
        does, the memory is kept alive.

    Raises
    ------
    Exception
        Exception of the failure policy for a rank that is late, has left, or will never arrive. This rank then takes
        part in no more rendezvous on this communicator; see `has_left`.
    """
    try:
        if not isinstance(comm, MPI.Intracomm):  # an intercommunicator, or a simulated one
            with _explained(comm):
                is_over = _is_over_in_time(comm, request, seconds, lambda: False)
            if not is_over:
                raise _end(comm, request, _policies[0].late(comm, []), is_first=True)
        elif late := missing(comm, request, seconds):
            raise _policies[0].late(comm, late)
    except BaseException:
        _kept.append(memory)
        raise


def missing(
    comm: MPI.Intracomm,
    request: Tested,
    seconds: float | None,
    late: Callable[[], None] | None = None,
    look: Callable[[], None] | None = None,
) -> list[int]:
    """Wait for a nonblocking collective of MPI's, and return the ranks that are late.

    If no rank is late, the list is empty. Otherwise the ranks that arrived in time return the same list, and a late
    rank returns a list of its own number only. The longest wait is `seconds`, or if it is None, that of the failure
    policy. During the wait, `look` is called repeatedly, and `late` once after three quarters of the time. Their
    exceptions are raised.
    """
    begun, asked, looks = time.monotonic(), late is None, 0
    patience_s = patience() if seconds is None else seconds

    def is_left() -> bool:
        nonlocal asked, looks
        looks += 1
        if look is not None:
            look()
        if late is not None and not asked and time.monotonic() - begun > 0.75 * patience_s:
            asked = True
            late()
        return has_note(comm, MPI.ANY_SOURCE)

    with _explained(comm):
        try:
            # MPI can complete a collective although other ranks have left the rendezvous. Their notes show this.
            if _is_over_in_time(comm, request, seconds, is_left) and not has_note(comm, MPI.ANY_SOURCE):
                return []
        except MPI.Exception:
            # The other ranks may have left a collective that this rank has not called. MPI then matches this
            # collective with that one, and raises.
            if not has_note(comm, MPI.ANY_SOURCE):
                raise
        try:
            ranks = _late_ranks(comm, request, is_late=looks <= 1)
        except BaseException as error:
            if not (has_left(comm) or isinstance(error, MPI.Exception)):
                reason = own_error(error) or _policies[0].interrupted(comm, comm.rank)
                _end(comm, request, reason, is_first=True)
            raise
    _end(comm, request, _policies[0].late(comm, ranks), is_first=comm.rank not in ranks)
    return ranks


def leave_interrupted(comm: MPI.Comm) -> None:
    """Stop all rendezvous on a communicator, and tell the other ranks.

    Call it after a signal handler has raised in a collective call: ranks may have made different numbers of calls.
    """
    send_notes(comm, INTERRUPTED)
    _end(comm, None, _policies[0].interrupted(comm, comm.rank), is_first=True)


def _end(comm: MPI.Comm, request: Tested | None, error: Exception, *, is_first: bool) -> Exception:
    """Stop all rendezvous of this rank on a communicator; return the error."""
    leave(comm, request, error)
    _policies[0].ended(comm, error, is_first=is_first)
    return error


@contextmanager
def _explained(comm: MPI.Comm) -> Iterator[None]:
    """Raise the failure policy's exception in place of one of MPI's."""
    try:
        yield
    except MPI.Exception as error:
        raise _policies[0].explain(comm, error) from error


def _is_over_in_time(
    comm: MPI.Comm, request: Tested, seconds: float | None, is_left: Callable[[], bool]
) -> bool:
    policy = _policies[0]
    try:
        if _comes_soon(request):
            return True
        began = time.monotonic()
        patience = policy.seconds() if seconds is None else seconds
        while not poll(request.Test):
            waited = time.monotonic() - began
            if waited > patience or is_left():
                return False
            pause = pause_after(waited)
            reason = policy.hopeless(comm, waited) if pause == LONGEST_S else None
            if reason is not None:
                # A rank may have arrived and then ended while this process did not run, so poll again.
                if _comes_after_all(request):
                    return True
                raise reason
            raise_if_overdue()
            time.sleep(pause)
    except MPI.Exception:
        raise
    except BaseException as error:
        reason = own_error(error)
        if reason is None:
            send_notes(comm, INTERRUPTED)
        _end(comm, request, reason or _policies[0].interrupted(comm, comm.rank), is_first=reason is None)
        raise
    return True


def pause_after(waited_s: float) -> float:
    """Return the seconds until the next poll, after `waited_s` seconds of waiting."""
    return min(max(_PART * waited_s, SHORTEST_S), LONGEST_S)


def _comes_soon(request: Tested) -> bool:
    looks, end = 0, time.monotonic() + SPIN_S
    while looks < _YIELDS or time.monotonic() < end:
        if poll(request.Test):
            return True
        os.sched_yield()
        looks += 1
    return False


def _comes_after_all(request: Tested) -> bool:
    for _ in range(_LAST_LOOKS):
        if poll(request.Test):
            return True
        time.sleep(SHORTEST_S)
    return False


def _late_ranks(comm: MPI.Comm, request: Tested, *, is_late: bool) -> list[int]:
    """Exchange notes, and return the ranks that are late.

    A rank is late if it sends no note in time, or if its note says that it is late. If `is_late`, or if no other rank
    is late, the list has this rank's number alone.
    """
    late, silent = set[int](), {rank for rank in range(comm.size) if rank != comm.rank}

    def take() -> None:
        while found := take_note(comm, MPI.ANY_SOURCE):
            source, reason = found
            if reason == INTERRUPTED:
                raise _end(comm, request, _policies[0].interrupted(comm, source), is_first=False)
            silent.discard(source)
            if reason == LATE:
                late.add(source)

    take()
    if silent:
        send_notes(comm, LATE if is_late else LEFT)
    end = time.monotonic() + _FOR_NOTES_S
    while silent and not is_late and time.monotonic() < end:
        time.sleep(LONGEST_S)
        take()
    return [comm.rank] if is_late or not late | silent else sorted(late | silent)
