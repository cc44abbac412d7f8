"""The nodes of a communicator: which ranks run on each, and the local ranks there."""

from dataclasses import dataclass

from mpi4py import MPI


@dataclass(frozen=True)
class Topology:
    """The place of one rank among the nodes of a communicator.

    Parameters
    ----------
    rank, size : int
        As in the communicator.
    node : int
        Index of this rank's node; nodes are numbered by the lowest rank that runs on them.
    local_rank, local_size : int
        Index of this rank among the ranks of its node (in rank order), and their number.
    hostname : str
        Name of the node, for messages.
    nodes : tuple of int, length size
        Node index of every rank.
    """

    rank: int
    size: int
    node: int
    local_rank: int
    local_size: int
    hostname: str
    nodes: tuple[int, ...]

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks that run on this rank's node, this one included, in rank order."""
        return tuple(rank for rank, node in enumerate(self.nodes) if node == self.node)


def topology(comm: MPI.Intracomm) -> Topology:
    """Find out which ranks of `comm` share a node. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm

    Returns
    -------
    Topology

    Notes
    -----
    The ranks of a node are those that MPI splits by `COMM_TYPE_SHARED`, since they can share memory. With most MPI
    libraries different containers of one machine are different nodes.

    Examples
    --------
    >>> place = topology(MPI.COMM_SELF)
    >>> place.local_rank, place.nodes
    (0, (0,))
    """
    local = _node_of(comm)
    try:
        local_rank, local_size = local.rank, local.size
        lowest = local.bcast(comm.rank)
    finally:
        local.Free()
    lowest_of = MPI.Comm.allgather(comm, lowest)
    index = {rank: node for node, rank in enumerate(sorted(set(lowest_of)))}
    nodes = tuple(index[rank] for rank in lowest_of)
    hostname = MPI.Get_processor_name()
    return Topology(comm.rank, comm.size, nodes[comm.rank], local_rank, local_size, hostname, nodes)


def _node_of(comm: MPI.Intracomm) -> MPI.Comm:
    """The ranks of this rank's node; mpi4py's own communicator, whatever subclass `comm` is of."""
    return MPI.Comm.Split_type(comm, MPI.COMM_TYPE_SHARED, key=comm.rank)
