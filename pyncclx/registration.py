"""Arrays that a program already has, mapped into all ranks for a while."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .buffers import Buffer
from .symmetric import Window
from .team import Team


class Registration:
    """What `comm.Register` gives: the memory of an array of each rank is mapped into all of them.

    It ends with `Free`, with a ``with`` block, or with the communicator. It holds the array.
    """

    def __init__(self, comm: MPI.Intracomm, team: Team, window: Window, buffer: Buffer) -> None:
        self._comm, self._team, self._window = comm, team, window
        self._buffer: Buffer | None = buffer

    def Free(self) -> None:
        """Unmap the memory, once every rank's operations are over. Collective.

        Graphs and persistent requests that were made with the array must not be used any more, as after its own end.
        """
        if self._buffer is not None and self._window in self._team.windows:
            self._team.deregister(self._comm, self._window)
        self._buffer = None

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.Free()
