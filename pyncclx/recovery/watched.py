"""What the failure detector looks after, as the rooms above have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mpi4py import MPI

from mpi_bootstrap.presence import Note

from .losses import Loss


class Watched(Protocol):
    """What the detector looks after: what a communicator has on the device, or its messages.

    Attributes
    ----------
    id : bytes
        The same on all ranks, 16 bytes; empty: it takes part in no notes.
    rank : int
    uids : sequence of bytes
        Of the ranks' processes; empty: only MPI is asked.
    world_ranks : tuple of int
    loss : Loss or None
        What it has lost.
    is_of_messages : bool
        Whether its kernels move messages.
    """

    id: bytes
    rank: int
    loss: Loss | None
    uids: Sequence[bytes]
    world_ranks: tuple[int, ...]
    is_of_messages: bool

    @property
    def comm(self) -> MPI.Comm | None:
        """A handle, until `Detector.forget`."""

    def lose(self, loss: Loss) -> None:
        """Let its kernels leave their waits, and its calls raise; called again when more is known."""

    def is_busy(self) -> bool:
        """Return whether a kernel is under way, or may be in a graph that is replayed; by any thread."""

    def may_launch(self) -> bool:
        """Return whether the program may launch kernels that nobody here sees: a graph's, or its own; by any thread."""

    def give_up(self, kind: str) -> None:
        """Let kernels leave their waits here and on all other ranks, for a reason that is no rank's failure."""

    def given_up(self) -> Note | None:
        """Return a note for the others, if its kernels have given up by themselves; once."""
