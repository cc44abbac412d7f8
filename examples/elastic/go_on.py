"""What elastic programs share: the ranks that live make a communicator of their own, and start others if they like."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, NoReturn

from mpi4py import MPI

import pyncclx

FAILURES = (pyncclx.RankFailed, pyncclx.Revoked)


def begin() -> tuple[Any, bool]:
    """The communicator of all ranks, and whether this process has joined a job that was under way."""
    parent = pyncclx.Communicator.Get_parent()
    if parent == MPI.COMM_NULL:
        return pyncclx.Communicator().Dup(), False
    return parent.Merge(True), True


def without_failed(comm: Any) -> Any:
    """A communicator of the ranks that live, in the place of one that has lost some. Collective over them."""
    comm.Revoke()  # a rank may wait for one that lives, and is here
    living = comm.Shrink()
    comm.Free()
    return living


def with_new(comm: Any, ranks: int) -> Any:
    """A communicator with so many ranks more, which run this program, in the place of one. Collective."""
    grown = comm.Grow(ranks, sys.executable, sys.argv)
    comm.Free()
    return grown


def end(comm: Any, code: int) -> NoReturn:
    """End without MPI_Finalize, which in Open MPI waits for dead ranks where others were started. Collective."""
    with contextlib.suppress(*FAILURES):  # of ranks that are through before this one
        comm.Agree(1)  # all have come to their end, so nobody needs those that leave
    sys.stdout.flush()
    os._exit(code)
