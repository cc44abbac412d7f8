"""Failures of communicators, and the exceptions that their calls then raise."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field

from mpi_bootstrap.presence import Note

from ..errors import Aborted, PeerTimeout, RankFailed, Revoked

TIMED_OUT, REVOKED, INTERRUPTED, ABORTED = "timed out", "revoked", "interrupted", "aborted"  # kinds of notes
MISMATCH = "mismatch"  # kind of a note: two ranks' calls differ


@dataclass(frozen=True, slots=True)
class Loss:
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
    """

    ranks: tuple[int, ...] = ()
    world_ranks: tuple[int, ...] = ()
    reason: str = ""
    note: Note | None = None
    host: str = field(default_factory=socket.gethostname)

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


def left_by(rank: int, operation: str, error: BaseException) -> Loss:
    """Return the failure of a communicator after one rank left a call by an exception."""
    kind = ABORTED if isinstance(error, Exception) else INTERRUPTED
    return Loss(note=Note(bytes(16), kind, rank, -1, 0, 0, 0, time.monotonic_ns(), operation))


_LEFT = {
    INTERRUPTED: "was interrupted in it (Ctrl-C, or a signal)",
    ABORTED: "has aborted the communicator",
    MISMATCH: "found that ranks have made different calls",
}
