"""Registrations: existing arrays whose memory is mapped into all ranks for a while."""

from __future__ import annotations

from mpi4py import MPI

from ..memory.mapped import Window
from .team import Team


class Registration:
    """The memory of an array of each rank, mapped into all ranks; `comm.Register` makes it.

    It ends with `Free`, with a ``with`` block, or with the communicator, which holds the array until then.

    Examples
    --------
    NumPy's arrays on the host device cannot be registered, so this needs a GPU:

    >>> with comm.Register(cupy.zeros(1 << 20, "f4")) as registration:  # doctest: +SKIP
    ...     comm.Barrier()
    """

    def __init__(self, comm: MPI.Intracomm, team: Team, window: Window) -> None:
        self._comm, self._team, self._window = comm, team, window

    def Free(self) -> None:
        """Unmap the memory, once every rank's operations are over. Collective.

        A peer that has other work under way, graphs or a `device_team` unmaps it later. Do not return the memory to
        CUDA (cudaFree) at once; the pools of CuPy and PyTorch keep it.

        Graphs and persistent requests that were made with the array must not be used any more, as if it were deleted.
        """
        if self._window in self._team.windows:  # else it was freed, or the communicator was
            self._team.deregister(self._comm, self._window)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:  # Free waits for all ranks, and those of a rank that raises may never come here
            self.Free()
