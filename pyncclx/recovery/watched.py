"""The protocol of what the failure detector watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mpi4py import MPI

from mpi_bootstrap.presence import Note

from .losses import Loss


class Watched(Protocol):
    """A communicator's device side or messages, as the failure detector watches them.

    Attributes
    ----------
    id : bytes
        16 bytes, the same on all ranks; empty: it takes part in no notes.
    rank : int
    uids : sequence of bytes
        uids of the ranks' processes; empty: only MPI is asked.
    world_ranks : tuple of int
    loss : Loss or None
        Why it failed.
    is_of_messages : bool
        Whether its kernels only move messages, and wait for no call that another rank may make later.
    """

    id: bytes
    rank: int
    loss: Loss | None
    uids: Sequence[bytes]
    world_ranks: tuple[int, ...]

    @property
    def is_of_messages(self) -> bool:
        """Whether its kernels only move messages; see above."""

    @property
    def comm(self) -> MPI.Comm | None:
        """A handle that is valid until `Detector.forget`."""

    def lose(self, loss: Loss) -> None:
        """End the waits of its kernels, and make its calls raise; called again with news."""

    def is_busy(self) -> bool:
        """Return whether a kernel runs, or may run in a graph; any thread may call it."""

    def may_launch(self) -> bool:
        """Return whether the program may launch kernels unseen; any thread may call it.

        These are its own kernels, and those of graphs.
        """

    def give_up(self, kind: str) -> None:
        """End its kernels' waits on all ranks, for a reason that is no rank's failure."""

    def given_up(self) -> Note | None:
        """Return a note for other processes if its kernels failed by themselves; once."""
