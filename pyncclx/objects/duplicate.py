"""The duplicate of a communicator that mpi4py makes to reduce objects."""

from __future__ import annotations

import math

from mpi4py import MPI

from mpi_bootstrap.duplicating import await_duplication
from mpi_bootstrap.waiting import begin, complete

from ..messages.base import MessageBase
from ..team.state import state_of


def meet_before_duplicate(comm: MessageBase) -> None:
    """Wait for all ranks before mpi4py's first reduction of objects. Collective.

    mpi4py then duplicates the communicator, and holds the interpreter while it waits for the other ranks. They may be
    waiting for messages between nodes, which threads of this process send. As mpi4py's, this wait has no time limit; it
    ends when a rank fails.
    """
    state = state_of(comm)
    if not state.has_duplicate:
        begin(comm)
        await_duplication(comm)
        complete(comm, MPI.Comm.Ibarrier(comm), math.inf)
        state.has_duplicate = True
