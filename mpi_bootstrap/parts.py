"""Communicators of some ranks of another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

from mpi4py import MPI

from .plain import plain

Comm = TypeVar("Comm", bound=MPI.Intracomm)


def part(comm: Comm, ranks: Iterable[int]) -> Comm:
    """Return a communicator of these ranks, in this order. Collective in `comm`.

    Its methods are those of `comm`'s class. It has none of the program's attributes.

    Parameters
    ----------
    comm : MPI.Intracomm
    ranks : iterable of int
        This rank is among them. Different ranks pass the same ranks, or have none in common.

    Notes
    -----
    MPI_Comm_split would give every rank the colours of all; some MPIs send these around a ring. Open MPI's
    MPI_Comm_create_group sends messages of tag 0, which the program's receives of any tag take (5.0.11).
    """
    whole = comm.Get_group()
    group = whole.Incl(list(ranks))
    made = comm.Create(group)
    group.Free()
    whole.Free()
    return cast(Comm, made)


def same_ranks(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator of the same ranks, without attributes. Collective.

    It is one of mpi4py's. MPI_Comm_dup would call the program's functions that copy attributes.

    Examples
    --------
    >>> made = same_ranks(MPI.COMM_SELF)
    >>> made != MPI.COMM_SELF, made.size
    (True, 1)
    >>> made.Free()
    """
    own = plain(comm)
    group = own.Get_group()
    made = own.Create(group)
    group.Free()
    return cast(MPI.Intracomm, made)
