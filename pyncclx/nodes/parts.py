"""Communicators of some ranks of another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

from mpi4py import MPI

Comm = TypeVar("Comm", bound=MPI.Intracomm)


def part(comm: Comm, ranks: Iterable[int]) -> Comm:
    """Return a communicator of these ranks, in this order. Collective in `comm`.

    All parts are disjoint. MPI_Comm_split would give every rank the colours of all; some MPIs send these around a ring.
    Open MPI's MPI_Comm_create_group sends messages of tag 0, which the program's receives of any tag take (5.0.11).
    """
    whole = comm.Get_group()
    group = whole.Incl(list(ranks))
    made = comm.Create(group)
    group.Free()
    whole.Free()
    return cast(Comm, made)
