"""Bounded waits for rendezvous on the host, ended by a deadline or a failed rank."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mpi4py import MPI

from .freeing import Tested, give_up
from .interrupts import raise_if_overdue
from .polls import poll

SHORTEST_S, LONGEST_S = 50e-6, 5e-3  # pauses between two polls
_PART = 1 / 8  # length of a pause as a share of the time waited so far; bounds how late a wait ends
_YIELDS, SPIN_S = 50, 200e-6  # least number of polls, and least time, before the first pause
_LAST_LOOKS = 20
_TAG = 32749  # tag of notes; MPI allows tags up to 32767 at least
_UNUSED_TAG = 32748  # a tag that no message has
_NOTE = b"pyncclx: waited in vain for all ranks to come here. "
_FOR_NOTES_S = 1.0


_left: list[Tested] = []  # requests of notes that have not completed
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
        """Return the exception to raise for ranks that have not arrived in time."""
        return TimeoutError(f"rank {comm.rank} timed out waiting for ranks {ranks or 'unknown'}")


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
        MPI.COMM_WORLD.Iprobe(MPI.COMM_WORLD.rank, _UNUSED_TAG)
    except MPI.Exception:
        MPI.COMM_SELF.Iprobe(0, _UNUSED_TAG)


def begin(comm: MPI.Comm) -> None:
    """Raise before a rendezvous if some rank will certainly never arrive."""
    reason = _policies[0].hopeless(comm, 0.0)
    if reason is not None:
        raise reason


def complete(comm: MPI.Comm, request: Tested, seconds: float | None = None, *, memory: object = None) -> None:
    """Wait for a nonblocking collective of MPI's, without keeping the processor busy.

    Parameters
    ----------
    comm : MPI.Comm
    request : Tested
        A request of MPI's, or an object that stands for one.
    seconds : float, optional
        Longest wait; default: that of the failure policy.
    memory : object, optional
        Memory that MPI reads and writes; mpi4py's requests hold no reference to it. If the wait ends before the request
        does, the memory is kept alive.

    Raises
    ------
    Exception
        Exception of the failure policy for a rank that is late or will never arrive. The collective is then recorded;
        see `has_given_up`.
    """
    try:
        if not isinstance(comm, MPI.Intracomm):  # an intercommunicator, or a simulated one
            with _explained(comm):
                is_over = _is_over_in_time(comm, request, seconds, lambda: False)
            if not is_over:
                raise _policies[0].late(comm, [])
        elif (late := missing(comm, request, seconds)) or not request.Test():
            raise _policies[0].late(comm, late)
    except BaseException:
        _kept.append(memory)
        raise


def missing(
    comm: MPI.Comm,
    request: Tested,
    seconds: float | None,
    late: Callable[[], None] | None = None,
    look: Callable[[], None] | None = None,
) -> list[int]:
    """Wait for a collective as `complete` does; return the ranks that are late.

    All ranks that have arrived return the same list. During the wait, `look` is called repeatedly, and `late` once
    after three quarters of the time. Their exceptions are raised.
    """
    begun, asked, has_looked, was_late = time.monotonic(), late is None, False, False
    patience_s = patience() if seconds is None else seconds

    def given_up() -> bool:
        nonlocal asked, has_looked, was_late
        # Notes found at the first call belong to an earlier wait, for which this rank was late.
        while not has_looked and _take_note(comm, MPI.ANY_SOURCE):
            was_late = True
        has_looked = True
        if look is not None:
            look()
        if late is not None and not asked and time.monotonic() - begun > 0.75 * patience_s:
            asked = True
            late()
        return _has_note(comm, MPI.ANY_SOURCE)

    with _explained(comm):
        try:
            if _is_over_in_time(comm, request, seconds, given_up):
                return []
        except MPI.Exception:
            # The other ranks may have timed out in a collective that this rank has not called. MPI then matches this
            # collective with that one, and raises.
            if not (given_up() or was_late):
                raise
            give_up(comm, request)
        return _without_note(comm)


@contextmanager
def _explained(comm: MPI.Comm) -> Iterator[None]:
    """Raise the failure policy's exception for an error of MPI."""
    try:
        yield
    except MPI.Exception as error:
        raise _policies[0].explain(comm, error) from error


def _is_over_in_time(
    comm: MPI.Comm, request: Tested, seconds: float | None, given_up: Callable[[], bool]
) -> bool:
    policy = _policies[0]
    try:
        if _comes_soon(request):
            return True
        began = time.monotonic()
        patience = policy.seconds() if seconds is None else seconds
        while not poll(request.Test):
            waited = time.monotonic() - began
            if waited > patience or given_up():
                give_up(comm, request)
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
    except BaseException:
        give_up(comm, request)
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


def _has_note(comm: MPI.Comm, source: int, status: MPI.Status | None = None) -> bool:
    """Return whether a note has arrived; leave it for `_without_note` to receive."""
    status = status or MPI.Status()
    return MPI.Comm.Iprobe(comm, source, _TAG, status) and status.Get_count(MPI.BYTE) == len(_NOTE)


def _take_note(comm: MPI.Comm, source: int) -> bool:
    """Receive a note and return True; return False if none has arrived."""
    status = MPI.Status()
    if not _has_note(comm, source, status):
        return False
    MPI.Comm.Recv(comm, bytearray(len(_NOTE)), status.source, _TAG)
    return True


def _without_note(comm: MPI.Comm) -> list[int]:
    """Send the others a note of arrival; return the ranks that sent none in time."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    _left.extend(MPI.Comm.Isend(comm, [_NOTE, MPI.BYTE], rank, _TAG) for rank in others)
    end = time.monotonic() + _FOR_NOTES_S
    while others and time.monotonic() < end:
        others = [rank for rank in others if not _take_note(comm, rank)]
        time.sleep(LONGEST_S)
    return others
