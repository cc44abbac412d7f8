"""Groups of MPI's: which ranks of MPI.COMM_WORLD they have."""

from collections.abc import Sequence

from mpi4py import MPI


def ranks_in_world(group: MPI.Group) -> Sequence[int]:
    """Return the ranks of a group as ranks of MPI.COMM_WORLD, MPI.UNDEFINED for those of another world; free the group.

    Notes
    -----
    The time that Open MPI takes to translate all ranks grows with their square; of COMM_WORLD's own there is nothing to
    translate.

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
