"""The record of kernel errors of a communicator on this rank; each call checks it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from mpi4py import MPI

from mpi_bootstrap.agreement import is_agreed
from mpi_bootstrap.failure_note import Note
from mpi_bootstrap.own_errors import own_error

from ..backends import Device
from ..errors import CollectiveMismatch
from ..operations import NUMBERS
from ..recording.failures import noted
from ..system.mpi_library import ended_before_finalize
from ..system.notes import note
from . import attribution, comm_failures, kernel_errors
from .comm_failures import CommFailure, Monitored, report
from .detector import DETECTOR
from .kernel_errors import (
    ABORT,
    EPOCH,
    FAILURE,
    LOST,
    MISMATCH,
    OPERATION,
    OVERFLOW,
    PEER,
    TIMED_OUT,
    WORDS_NBYTES,
    ErrorWords,
    read_words,
)

# The kinds of notes, by `Watch::failure`.
_KINDS = {TIMED_OUT: comm_failures.TIMED_OUT, MISMATCH: comm_failures.MISMATCH}


class ErrorRecord(Monitored):
    """Error words of a communicator, written by the first kernel that claims them.

    The failure detector sets the record's failure, and publishes timeouts and other failures of its kernels.

    Attributes
    ----------
    address : int
        Address of the words: `Team::watch`.
    claims : list of int
        Addresses of the claims on `Watch::overflow`, one in each lease or workspace of the communicator.
    comm_failure : CommFailure or None
        Why the communicator is unusable, if the reason is not an error of a kernel on this rank.
    describe_calls, find_call, late : callable
        Methods of the communicator's `RecordedCalls`, once the ranks have their leases.
    renamed : callable
        Returns an error with the rank numbers to show. If this record is for one node of a communicator over nodes,
        they are the numbers in that communicator.
    """

    def __init__(self, device: Device, rank: int) -> None:
        self._device, self.rank = device, rank
        self._watch = device.allocate_watch(WORDS_NBYTES)
        self._words: Any = self._watch.array.data  # a read takes a third of the time that the array needs
        self.address = self._watch.address
        self.claims: list[int] = []
        self.describe_calls: Callable[[int, int, int], str] = lambda a, b, epoch: ""
        self.find_call: Callable[[str], tuple[int, int] | None] = lambda text: None
        self.late: Callable[[], tuple[Sequence[int], Sequence[int]]] = lambda: ((), ())
        self.renamed: Callable[[Exception, CommFailure | None], Exception] = lambda error, failure: error
        self._mismatch = ""  # text of a mismatch that has been raised; the leases may have changed since
        self._gave_up: Note | None = None  # the note published to other ranks
        _OPEN.get().add(self)

    def belong(self, comm: MPI.Comm, name: bytes, uids: Sequence[bytes], world_ranks: Sequence[int]) -> None:
        """Set what the failure detector needs to watch the communicator."""
        self.comm, self.id, self.uids, self.world_ranks = comm, name, tuple(uids), tuple(world_ranks)

    def check(self) -> None:
        """Raise what a kernel has recorded since the last check.

        Raises
        ------
        RankFailed, Revoked, PeerTimeout, Aborted, CollectiveMismatch
            At every call from then on: the ranks are no longer in step. Free the communicator, or Shrink it.
        CapacityExceeded, ValueError, MPI.Exception
            Once; the communicator stays usable. The call that raises has not been launched.
        """
        if self._words[FAILURE]:
            raise noted(self.renamed(self.failure(), self.comm_failure))
        error = self.refusal() if self._words[OVERFLOW] else None
        if error is not None:
            # Clear the claims after the words: a kernel may claim and write the record at once.
            for claim in self.claims:
                self._device.fill_zero(claim, 4)
            raise error

    def refusal(self) -> Exception | None:
        """Return the exception for numbers on the device that a kernel refused."""
        if not self._words[OVERFLOW]:
            return None
        error = noted(kernel_errors.overflow(read_words(self._watch, "i8"), self.rank))
        self._words[OVERFLOW] = 0
        return error

    @property
    def is_clear(self) -> bool:
        """Whether `check` raises nothing."""
        return not (self._words[FAILURE] or self._words[OVERFLOW])

    @property
    def has_failed(self) -> bool:
        """Whether every call raises from now on."""
        return bool(self._words[FAILURE])

    def failure(self) -> Exception:
        """Return the exception for the failure that ended the communicator."""
        attribution.look_now()
        record, failure = read_words(self._watch), self.comm_failure
        if self._mismatched(record, failure):
            return CollectiveMismatch(self._mismatch)
        own = None if record.failure == LOST else kernel_errors.failure(record, self.rank)
        note = failure.note if failure is not None else None
        if own is not None and (failure is None or (note is not None and self._was_first(note))):
            return self._with_evidence(own)
        assert failure is not None
        if own is None:
            return failure.exception()
        wait = kernel_errors.wait_of(record, self.rank)
        if note is None or note.kind != comm_failures.TIMED_OUT or note.peer == self.rank:
            return self._with_evidence(failure.exception(wait=wait))
        if 0 <= note.peer < len(self.uids):
            wait.peer = note.peer  # the other rank timed out first, so the rank that it waited for is late
        return self._with_evidence(wait)

    def _with_evidence(self, error: Exception) -> Exception:
        return attribution.with_evidence(error, self.rank, self.uids, self.late)

    def _mismatched(self, record: ErrorWords, failure: CommFailure | None) -> bool:
        """Return whether ranks made different calls; describe the difference once."""
        note = None if failure is None else failure.note
        if record.failure == MISMATCH:
            found = self.rank, record.peer, record.epoch
        elif note is not None and note.kind == comm_failures.MISMATCH:
            found = note.rank, note.peer, note.epoch
        else:
            return False
        self._mismatch = self._mismatch or self.describe_calls(*found)
        return True

    def refuse(self, operation: str, kind: int, source: int, wanted: int, capacity: int) -> None:
        """Record numbers on the device that the host refuses; keep an earlier record."""
        words = self._watch.array.view(np.int64)
        if not words[OVERFLOW]:
            words[OPERATION] = NUMBERS[operation]
            words[OVERFLOW + 1 : OVERFLOW + 4] = source, wanted, capacity
            words[OVERFLOW] = kind

    def check_for_call(self, text: str) -> None:
        """Raise CollectiveMismatch if another rank is in a kernel of a different call."""
        self.check()
        found = self.find_call(text)
        if found is not None:
            self._words[PEER], self._words[EPOCH] = found
            self._words[FAILURE] = MISMATCH
        self.check()

    def _was_first(self, note: Note) -> bool:
        """Return whether kernels here timed out before the other rank's.

        A process that stood still times out later, so it is not first.
        """
        own = self._gave_up
        return own is not None and own.when_ns < note.when_ns

    def fail(self, failure: CommFailure) -> None:
        """End the waits of this communicator's kernels on this rank; make its calls raise."""
        before = self.comm_failure
        if before is None or len(failure.ranks) > len(before.ranks):  # failed ranks count more than notes
            self.comm_failure = failure
        self._watch.array[ABORT] = 1
        if not self._words[FAILURE]:
            self._words[FAILURE] = LOST
        # A mismatch is not logged here: the next call describes it with both ranks' calls.
        if failure.note is None or failure.note.kind != comm_failures.MISMATCH:
            # Log it now, with this rank's position at the failure, not when its next call raises.
            report(self.renamed(failure.exception(), failure))

    def give_up(self, kind: str, operation: str = "", peer: int = -1, error: Exception | None = None) -> None:
        """Make this communicator's kernels and later calls fail on all ranks.

        `peer` is the late rank, -1 if it is unknown or on another node. `error` is what this rank raises.
        """
        failure = replace(comm_failures.ended_by(self.rank, kind, operation, self.id, peer), error=error)
        self.fail(failure)
        if DETECTOR.made is not None and failure.note is not None:
            DETECTOR.made.presence.note(failure.note)

    def given_up(self) -> Note | None:
        """Return the note for other ranks, once, if this rank's kernels failed; else None."""
        if not self._words[FAILURE] or self._gave_up is not None or self.comm_failure is not None:
            return None
        record = read_words(self._watch)
        wait = kernel_errors.wait_of(record, self.rank)
        kind = _KINDS.get(record.failure, comm_failures.ABORTED)
        if kind != comm_failures.MISMATCH:
            self._with_evidence(wait)  # this may change `wait.peer`
        words = wait.peer, wait.epoch, wait.expected, wait.seen, time.monotonic_ns()
        self._gave_up = Note(self.id, kind, self.rank, *words, wait.operation)
        if kind != comm_failures.MISMATCH:
            report(self.renamed(wait, None))  # do not wait for the call that raises it, which may come late
        return self._gave_up

    def abort(self) -> None:
        """End the waits of this communicator's kernels on this rank."""
        self._watch.array[ABORT] = 1

    def report(self) -> None:
        """Log what a kernel has refused, because no later call can raise it."""
        error = self.refusal()
        if error is not None:
            note(logging.WARNING, f"the communicator ends before a call has raised {type(error).__name__}: {error}")

    def close(self) -> None:
        """Report errors that no call has raised, and free the words."""
        self.report()
        _OPEN.get().discard(self)
        self._watch.close()


@contextmanager
def failing_if_interrupted(record: ErrorRecord | None, operation: str) -> Iterator[None]:
    """Fail a communicator on all ranks if a signal handler's exception ends the block.

    Otherwise the other ranks would wait for this one. Do nothing if all ranks have agreed on the exception.
    """
    try:
        yield
    except BaseException as error:
        if record is not None and not record.has_failed and own_error(error) is None and not is_agreed(error):
            record.give_up(comm_failures.INTERRUPTED, operation)
        raise


_OPEN = ended_before_finalize(ErrorRecord.report)
