"""Translation of MPI groups to ranks of MPI.COMM_WORLD."""

from collections.abc import Sequence

from mpi4py import MPI


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
