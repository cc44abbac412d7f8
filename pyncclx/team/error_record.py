"""The record of kernel errors of a communicator on this rank; each call checks it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
from mpi4py import MPI

from mpi_bootstrap.presence import Note

from ..backends import Device
from ..errors import CollectiveMismatch
from ..memory.error_words import (
    ABORT,
    EPOCH,
    FAILURE,
    LOST,
    MISMATCH,
    NBYTES,
    OPERATION,
    OVERFLOW,
    PEER,
    TIMED_OUT,
    ErrorWords,
    read,
)
from ..operations import NUMBERS
from ..recording.failures import noted
from ..recovery import blame, losses
from ..recovery.detector import DETECTOR
from ..recovery.losses import Loss
from ..system.mpi_library import before_finalize
from ..system.notes import note
from ..system.process import PerProcess
from . import kernel_errors
from .disagreement import Disagreement


class ErrorRecord:
    """Error words that kernels write; by its claim one kernel alone writes them.

    The failure detector sets the record's loss, and publishes timeouts and other failures of its kernels.

    Attributes
    ----------
    address : int
        Address of the words: `Team::watch`.
    claims : list of int
        Addresses of the claims on `Watch::overflow`, one in each lease or workspace of the communicator.
    loss : Loss or None
        Why the communicator cannot go on, if the reason is not an error of a kernel on this rank.
    disagreement : Disagreement or None
        Finds which calls differ between ranks; None before the ranks have their leases.
    id, rank, comm, uids, world_ranks, is_busy, may_launch, is_of_messages
        See `recovery.losses.Watched`.
    """

    comm: MPI.Comm
    id: bytes = b""
    uids: Sequence[bytes] = ()
    world_ranks: tuple[int, ...] = ()
    is_of_messages = False

    def __init__(self, device: Device, rank: int) -> None:
        self._device, self.rank = device, rank
        self._watch = device.allocate_watch(NBYTES)
        self._words: Any = self._watch.array.data  # a third of the time of indexing the array
        self.address = self._watch.address
        self.claims: list[int] = []
        self.loss: Loss | None = None
        self.disagreement: Disagreement | None = None
        self._mismatch = ""  # text of the error once raised: the leases may change
        self.is_busy: Callable[[], bool] = lambda: False
        self.may_launch: Callable[[], bool] = lambda: False
        self.entered: Callable[[], Sequence[int]] = lambda: ()  # operations begun by each rank, as seen here
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
            Once; the communicator goes on. The call that raises has not been launched.
        """
        if self._words[FAILURE]:
            raise noted(self.failure())
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
        error = noted(kernel_errors.overflow(read(self._watch, "i8"), self.rank))
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
        blame.look_now()
        record, loss = read(self._watch), self.loss
        if self._mismatched(record, loss):
            return CollectiveMismatch(self._mismatch)
        own = None if record.failure == LOST else kernel_errors.failure(record, self.rank)
        note = loss.note if loss is not None else None
        if own is not None and (loss is None or (note is not None and self._was_first(note))):
            return self._with_evidence(own)
        assert loss is not None
        if own is None:
            return loss.exception()
        wait = kernel_errors.wait_of(record, self.rank)
        if note is None or note.kind != losses.TIMED_OUT or note.peer == self.rank:
            return self._with_evidence(loss.exception(wait=wait))
        if 0 <= note.peer < len(self.uids):
            wait.peer = note.peer  # the others timed out first, so the rank that they waited for is late
        return self._with_evidence(wait)

    def _with_evidence(self, error: Exception) -> Exception:
        return blame.with_evidence(error, self.rank, self.uids, self.entered)

    def _mismatched(self, record: ErrorWords, loss: Loss | None) -> bool:
        """Return whether ranks made different calls; describe the difference once."""
        note = None if loss is None else loss.note
        if record.failure == MISMATCH:
            found = self.rank, record.peer, record.epoch
        elif note is not None and note.kind == losses.MISMATCH:
            found = note.rank, note.peer, note.epoch
        else:
            return False
        if not self._mismatch and self.disagreement is not None:
            self._mismatch = self.disagreement.describe(*found)
        return True

    def refuse(self, operation: str, kind: int, source: int, wanted: int, capacity: int) -> None:
        """Record numbers on the device that the host refuses; the first ones count."""
        words = self._watch.array.view(np.int64)
        if not words[OVERFLOW]:
            words[OPERATION] = NUMBERS[operation]
            words[OVERFLOW + 1 : OVERFLOW + 4] = source, wanted, capacity
            words[OVERFLOW] = kind

    def check_for_call(self, text: str) -> None:
        """Raise CollectiveMismatch if another rank is in a kernel of a different call."""
        self.check()
        found = self.disagreement.find(text) if self.disagreement is not None else None
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

    def lose(self, loss: Loss) -> None:
        """End the waits of this communicator's kernels on this rank; its calls raise."""
        before = self.loss
        if before is None or len(loss.ranks) > len(before.ranks):  # failed ranks count more than notes
            self.loss = loss
        self._watch.array[ABORT] = 1
        if not self._words[FAILURE]:
            self._words[FAILURE] = LOST
        if loss.note is None or loss.note.kind != losses.MISMATCH:  # the next call describes a mismatch better
            # Log it now, with this rank's position at the failure, not when its next call raises.
            noted(loss.exception())

    def give_up(self, kind: str, operation: str = "") -> None:
        """Make calls and kernels of this communicator fail on all ranks, for a reason."""
        note = Note(self.id, kind, self.rank, -1, 0, 0, 0, time.monotonic_ns(), operation)
        self.lose(Loss(note=note))
        if DETECTOR.made is not None:
            DETECTOR.made.presence.note(note)

    def given_up(self) -> Note | None:
        """Return once a note for other ranks if kernels of this rank failed; else None."""
        if not self._words[FAILURE] or self._gave_up is not None or self.loss is not None:
            return None
        record = read(self._watch)
        wait = kernel_errors.wait_of(record, self.rank)
        kind = {TIMED_OUT: losses.TIMED_OUT, MISMATCH: losses.MISMATCH}.get(record.failure, losses.ABORTED)
        words = wait.peer, wait.epoch, wait.expected, wait.seen, time.monotonic_ns()
        self._gave_up = Note(self.id, kind, self.rank, *words, wait.operation)
        if kind != losses.MISMATCH:
            noted(self._with_evidence(wait))  # now: other calls may come before one raises it
        return self._gave_up

    def abort(self) -> None:
        """End the waits of this communicator's kernels on this rank."""
        self._watch.array[ABORT] = 1

    def report(self) -> None:
        """Log what a kernel has refused, if no later call can raise it."""
        error = self.refusal()
        if error is not None:
            note(logging.WARNING, f"the communicator ends before a call has raised {type(error).__name__}: {error}")

    def close(self) -> None:
        """Report what no call has raised, and free the words."""
        self.report()
        _OPEN.get().discard(self)
        self._watch.close()


def _open() -> WeakSet[ErrorRecord]:
    """Return a set for the open records, which are reported at exit."""
    records: WeakSet[ErrorRecord] = WeakSet()

    def report() -> None:
        for record in list(records):
            record.report()

    before_finalize(report)
    return records


_OPEN = PerProcess(_open)
