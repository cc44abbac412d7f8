"""Registrations: existing arrays whose memory is mapped into all ranks."""

from __future__ import annotations

from mpi4py import MPI

from ..memory.mapped import Window
from .team import Team


class Registration:
    """The memory of an array of each rank, mapped into all ranks by `comm.Register`.

    It ends with `Free`, with a ``with`` block, or with the communicator. Until then the array is kept alive.

    Examples
    --------
    NumPy's arrays on the host device cannot be registered, so this needs a GPU:

    >>> with comm.Register(cupy.zeros(1 << 20, "f4")) as registration:  # doctest: +SKIP
    ...     comm.Barrier()
    """

    def __init__(self, comm: MPI.Intracomm, team: Team, window: Window) -> None:
        self._comm, self._team, self._window = comm, team, window

    def Free(self) -> None:
        """Unmap the memory, once every rank's operations have ended. Collective.

        A peer with other work in progress, graphs or a `device_team` unmaps it later. So do not return the memory to
        CUDA (cudaFree) at once; the pools of CuPy and PyTorch keep it. Do not use graphs and persistent requests made
        with the array any more.
        """
        if self._window in self._team.windows:  # otherwise it has been freed already
            self._team.deregister(self._comm, self._window)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        # After an exception other ranks may never call Free, which waits for all of them.
        if kind is None:
            self.Free()
