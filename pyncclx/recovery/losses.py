"""Failures of communicators, their exceptions, and what is watched for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mpi4py import MPI

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


class Watched(Protocol):
    """A communicator's kernels or its messages, which the failure detector watches.

    Attributes
    ----------
    id : bytes
        16 bytes, the same on all ranks. Empty: no notes about it are exchanged with other processes.
    rank : int
    uids : sequence of bytes
        Identifiers of the ranks' processes. Empty: only MPI is asked for failed ranks.
    world_ranks : tuple of int
        The ranks' numbers in COMM_WORLD.
    loss : Loss or None
        Why the communicator has failed; None if it has not.
    is_of_messages : bool
        True for messages. Their kernels wait for no call that another rank may make later.
    """

    id: bytes
    rank: int
    loss: Loss | None
    uids: Sequence[bytes]
    world_ranks: tuple[int, ...]

    @property
    def is_of_messages(self) -> bool:
        """Whether its kernels only move messages, and wait for no later call of a rank."""

    @property
    def comm(self) -> MPI.Comm | None:
        """The communicator of MPI; it is valid until `Detector.forget`."""

    def lose(self, loss: Loss) -> None:
        """End the waits of its kernels, and make its calls raise the failure.

        The detector calls this again when it learns of more failed ranks.
        """

    def is_busy(self) -> bool:
        """Return whether a kernel runs, or may run in a graph; any thread may call it."""

    def may_launch(self) -> bool:
        """Return whether the program may launch kernels without a call of pyncclx.

        It may if it has kernels of its own that communicate, or a CUDA graph with a captured call. Any thread may call
        this.
        """

    def give_up(self, kind: str) -> None:
        """End the waits of its kernels on all ranks, though no rank has failed.

        `kind` is the reason that the ranks raise, such as an interrupt by Ctrl-C.
        """

    def given_up(self) -> Note | None:
        """Return once the note to publish if kernels of this rank have failed; else None."""
