"""The nodes of a communicator, and the ranks that run on each."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from mpi4py import MPI

from .identity import IDENTITY_NBYTES, node_identity
from .interrupts import interrupts_deferred
from .plain import plain
from .waiting import begin, complete


@dataclass(frozen=True)
class Topology:
    """The place of one rank among the nodes of a communicator.

    Parameters
    ----------
    rank, size : int
        Rank and size in the communicator.
    node : int
        Index of this rank's node; nodes are numbered by the lowest rank that runs on them.
    local_rank, local_size : int
        Index of this rank among the ranks of its node (in rank order), and their number.
    hostname : str
        Name of the node, for error messages.
    nodes : tuple of int, length size
        Node index of every rank.
    is_divided : bool
        Whether some of these nodes are parts of one real node, whose ranks could map each other's memory.
    """

    rank: int
    size: int
    node: int
    local_rank: int
    local_size: int
    hostname: str
    nodes: tuple[int, ...]
    is_divided: bool = False

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks on this rank's node, including this one, in rank order."""
        return tuple(rank for rank, node in enumerate(self.nodes) if node == self.node)

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return max(self.nodes) + 1


def topology(
    comm: MPI.Intracomm, *, most: int | None = None, apart: bytes = b"", pretended: bool = True
) -> Topology:
    """Return which ranks of a communicator share a node.

    Collective, with the same `most` and `pretended` on all ranks.

    Parameters
    ----------
    comm : MPI.Intracomm
    most : int, optional
        A node with more ranks is divided into several of about equal size.
    apart : bytes
        Ranks of one node that pass different bytes are treated as ranks of different nodes.
    pretended : bool
        Whether values of the environment variable PYNCCLX_NODE make different nodes; see `node_identity`.

    Returns
    -------
    Topology

    Notes
    -----
    Costs one Allreduce of a table with 16 bytes per rank, in which each rank fills its own entry. Its number of rounds
    grows with the logarithm of the number of ranks. The result takes 8 bytes per rank, and a number for each node.

    Examples
    --------
    >>> place = topology(MPI.COMM_SELF)
    >>> place.local_rank, place.nodes
    (0, (0,))
    """
    own = node_identity(pretended=pretended)
    if apart:
        own = hashlib.blake2b(own + apart, digest_size=IDENTITY_NBYTES).digest()
    identities = _gathered(comm, own)
    begins = range(0, len(identities), IDENTITY_NBYTES)
    nodes = whole = _numbered(identities[begin : begin + IDENTITY_NBYTES] for begin in begins)
    if most is not None:
        nodes = _divided(nodes, most)
    node = nodes[comm.rank]
    local_rank = sum(each == node for each in nodes[: comm.rank])
    hostname = MPI.Get_processor_name()
    local_size, is_divided = nodes.count(node), nodes != whole
    return Topology(comm.rank, comm.size, node, local_rank, local_size, hostname, nodes, is_divided)


def _gathered(comm: MPI.Intracomm, own: bytes) -> bytes:
    """Return the bytes of all ranks in rank order; all ranks pass equally many."""
    table = bytearray(len(own) * comm.size)
    table[len(own) * comm.rank : len(own) * (comm.rank + 1)] = own
    with interrupts_deferred():
        begin(comm)
        complete(comm, plain(comm).Iallreduce(MPI.IN_PLACE, [table, MPI.BYTE], MPI.BOR), memory=table)
    return bytes(table)


def _numbered(keys: Iterable[Hashable]) -> tuple[int, ...]:
    """Number keys in the order of their first occurrence."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def _divided(nodes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Divide nodes with more than `most` ranks; return the node of each rank."""
    sizes, seen = Counter(nodes), Counter[int]()
    if max(sizes.values()) <= most:
        return nodes
    keys = []
    for node in nodes:
        parts = -(-sizes[node] // most)
        keys.append((node, seen[node] * parts // sizes[node]))
        seen[node] += 1
    return _numbered(keys)
