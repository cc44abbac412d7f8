"""Groups of ranks: their ranks in MPI.COMM_WORLD, and communicators of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

from mpi4py import MPI

from .plain import plain


def ranks_in_world(group: MPI.Group) -> Sequence[int]:
    """Return a group's ranks as ranks of MPI.COMM_WORLD, and free the group.

    Ranks of another world are MPI.UNDEFINED.

    Notes
    -----
    Open MPI's time to translate all ranks grows with the square of their number. The group of COMM_WORLD is not
    translated.

    Examples
    --------
    >>> list(ranks_in_world(MPI.COMM_SELF.Get_group())) == [MPI.COMM_WORLD.rank]
    True
    """
    world = MPI.COMM_WORLD.Get_group()
    is_world = MPI.Group.Compare(group, world) == MPI.IDENT
    ranks: Sequence[int] = range(group.size) if is_world else tuple(group.Translate_ranks(None, world))
    group.Free()
    world.Free()
    return ranks


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
    MPI_Comm_split is not used because it sends every rank the colours of all, in some MPIs around a ring. Neither is
    MPI_Comm_create_group: in Open MPI 5.0.11 it sends messages of tag 0, which the program's receives of any tag match.
    """
    whole = comm.Get_group()
    group = whole.Incl(list(ranks))
    made = comm.Create(group)
    group.Free()
    whole.Free()
    return cast(Comm, made)


def same_ranks(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator of the same ranks, without attributes. Collective.

    Its class is mpi4py's. MPI_Comm_dup is not used because it calls the program's functions that copy attributes.

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
