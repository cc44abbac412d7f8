"""Interface through which the failure detector watches kernels or messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mpi4py import MPI

from mpi_bootstrap.presence import Note

from .losses import Loss


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
