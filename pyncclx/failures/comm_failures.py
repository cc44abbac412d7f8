"""Failures of communicators: exceptions, reports, and what the detector watches.

Failures that are found while a thread holds the detector's lock are reported after the lock is released. A report calls
hooks and logging handlers of the program, which may wait for a thread that waits for the lock.
"""

from __future__ import annotations

import copy
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mpi4py import MPI

from mpi_bootstrap.failure_note import Note
from mpi_bootstrap.own_errors import own_error

from ..errors import Aborted, PeerTimeout, RankFailed, Revoked
from ..recording.failures import noted
from ..system.process import held, lock

TIMED_OUT, REVOKED, INTERRUPTED, ABORTED = "timed out", "revoked", "interrupted", "aborted"  # kinds of notes
WAITED, LATE = "waited", "late"  # kinds of notes: a rank timed out in a rendezvous, or came too late for it
MISMATCH = "mismatch"  # kind of note: two ranks' calls differ
#: The failure detector's lock.
LOCK = lock()
_errors: list[Exception] = held([])


@dataclass(frozen=True, slots=True)
class CommFailure:
    """Why a communicator failed: failed ranks, or a note of a rank that ended it.

    Attributes
    ----------
    ranks, world_ranks : tuple of int
        The failed ranks.
    reason : str
        Why they failed.
    note : Note or None
        The note of a rank that ended the communicator, if no rank has failed.
    host : str
    error : Exception or None
        Exception that calls raise on this rank. None: `exception` makes one from the other attributes.
    """

    ranks: tuple[int, ...] = ()
    world_ranks: tuple[int, ...] = ()
    reason: str = ""
    note: Note | None = None
    host: str = field(default_factory=socket.gethostname)
    error: Exception | None = None

    @property
    def is_revoked(self) -> bool:
        """Whether the communicator was revoked."""
        return self.note is not None and self.note.kind == REVOKED

    def exception(self, operation: str = "", wait: PeerTimeout | None = None) -> Exception:
        """Return the exception for a call.

        Parameters
        ----------
        operation : str
            The operation of this rank, if it is known.
        wait : PeerTimeout, optional
            The wait of a kernel on this rank that was ended.
        """
        if self.error is not None:
            return copy.copy(self.error)
        note, operation = self.note, wait.operation if wait is not None else operation
        if note is None:
            epoch = wait.epoch if wait is not None else 0
            return RankFailed(self.ranks, self.world_ranks, self.reason, self.host, operation, epoch)
        if note.kind == TIMED_OUT:
            return PeerTimeout(note.operation, note.epoch, note.rank, note.peer, note.expected, note.seen)
        if note.kind == REVOKED:
            return Revoked(f"{operation}{': ' * bool(operation)}the communicator was revoked; Shrink or Free it")
        doing = note.operation or "a call"
        if wait is not None:
            doing = f"{operation}: rank {wait.rank} was made to stop waiting for rank {wait.peer} (epoch {wait.epoch})"
        agree = "the ranks no longer agree where they are: Free the communicator"
        return Aborted(f"{doing}: rank {note.rank} {_LEFT[note.kind]}; {agree}")


def of_ranks(reasons: Mapping[int, str], world_ranks: Sequence[int]) -> CommFailure:
    """Return the failure of a communicator, from the failed ranks and their reasons.

    `world_ranks` are the COMM_WORLD ranks of all ranks of the communicator.
    """
    ranks = tuple(sorted(reasons))
    text = "; ".join(dict.fromkeys(reasons[rank] for rank in ranks))
    return CommFailure(ranks, tuple(world_ranks[rank] for rank in ranks), text)


def ended_by(rank: int, kind: str, operation: str = "", group: bytes = bytes(16), peer: int = -1) -> CommFailure:
    """Return the failure of a communicator that a rank has ended.

    `peer` is the rank that it waited for; -1 is an unknown rank.
    """
    return CommFailure(note=Note(group, kind, rank, peer, 0, 0, 0, time.monotonic_ns(), operation))


def left_by(rank: int, operation: str, error: BaseException) -> CommFailure:
    """Return a communicator's failure after an exception made one rank leave a call."""
    kind = INTERRUPTED if own_error(error) is None else ABORTED
    return ended_by(rank, kind, operation)


_LEFT = {
    INTERRUPTED: "was interrupted in it (Ctrl-C, or a signal)",
    ABORTED: "has aborted the communicator",
    WAITED: "has timed out waiting for all ranks",
    LATE: "came too late: the others have stopped waiting for it",
    MISMATCH: "found that ranks have made different calls",
}


class Monitored:
    """The failure detector's view of a communicator's kernels, or of its messages.

    Attributes
    ----------
    id : bytes
        16 bytes, the same on all ranks. Empty: processes exchange no notes about the communicator.
    rank : int
    uids : sequence of bytes
        Identifiers of the ranks' processes. Empty: the detector asks only MPI for failed ranks.
    world_ranks : tuple of int
        The ranks' numbers in COMM_WORLD.
    comm : MPI.Comm or None
        The communicator of MPI, valid until `Detector.forget`; None: MPI is not asked.
    handle : MPI.Comm or None
        The communicator, if `comm` is None.
    comm_failure : CommFailure or None
        Why the communicator has failed; None if it has not.
    is_busy : callable
        Returns whether a kernel runs, or may run in a graph. Any thread may call it.
    may_launch : callable
        Returns whether the program may launch kernels without a call of pyncclx: it has kernels of its own that
        communicate, or a CUDA graph with a captured call. Any thread may call it.
    """

    id: bytes = b""
    rank: int
    uids: Sequence[bytes] = ()
    world_ranks: tuple[int, ...] = ()
    comm: MPI.Comm | None = None
    handle: MPI.Comm | None = None
    comm_failure: CommFailure | None = None
    is_busy: Callable[[], bool] = staticmethod(lambda: False)
    may_launch: Callable[[], bool] = staticmethod(lambda: False)

    @property
    def has_failed(self) -> bool:
        """Whether every call raises from now on."""
        return self.comm_failure is not None

    @property
    def is_of_messages(self) -> bool:
        """Whether the kernels only move messages, and never wait for a rank's later call."""
        return False

    def fail(self, failure: CommFailure) -> None:
        """End the waits of the kernels, and make all later calls raise the failure.

        The detector calls this again when it learns of more failed ranks.
        """
        raise NotImplementedError

    def give_up(self, kind: str) -> None:
        """End the waits of the kernels on all ranks, although no rank has failed.

        `kind` is the reason that the ranks raise, such as an interrupt by Ctrl-C.
        """

    def given_up(self) -> Note | None:
        """Return the note to publish, once, if kernels of this rank failed; else None."""
        return None


def report(error: Exception) -> None:
    """Report a failure now, or at the next `make_reports` without the lock."""
    _errors.append(error)
    make_reports()


def make_reports() -> None:
    """Make all pending reports, unless this thread holds the lock."""
    while _errors and not LOCK._is_owned():  # type: ignore[attr-defined]
        with suppress(IndexError):  # another thread has reported it
            noted(_errors.pop(0))
