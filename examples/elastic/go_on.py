"""Functions of elastic programs: shrink to the living ranks, grow, and end."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, NoReturn

from mpi4py import MPI

import pyncclx

FAILURES = (pyncclx.RankFailed, pyncclx.Revoked)


def begin() -> tuple[Any, bool]:
    """Return the communicator of all ranks, and whether this process has joined later."""
    parent = pyncclx.Communicator.Get_parent()
    if parent == MPI.COMM_NULL:
        return pyncclx.Communicator().Dup(), False
    return parent.Merge(True), True


def without_failed(comm: Any) -> Any:
    """Replace a communicator by one of its living ranks. Collective over these."""
    # A living rank that is not here yet may wait for another one.
    comm.Revoke()
    living = comm.Shrink()
    comm.Free()
    return living


def with_new(comm: Any, ranks: int) -> Any:
    """Replace a communicator by one with `ranks` new ranks. Collective."""
    grown = comm.Grow(ranks, sys.executable, sys.argv)
    comm.Free()
    return grown


def end(comm: Any, code: int) -> NoReturn:
    """End without MPI_Finalize. Collective.

    In Open MPI, MPI_Finalize waits for dead ranks if processes were started later.
    """
    # Ranks that are done may have ended before this one.
    with contextlib.suppress(*FAILURES):
        # After this all ranks are done, so none needs the ranks that end.
        comm.Agree(1)
    sys.stdout.flush()
    os._exit(code)
