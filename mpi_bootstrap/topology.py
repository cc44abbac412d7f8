"""The nodes of a communicator: which ranks run on each, and the local ranks there."""

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
        As in the communicator.
    node : int
        Index of this rank's node; nodes are numbered by the lowest rank that runs on them.
    local_rank, local_size : int
        Index of this rank among the ranks of its node (in rank order), and their number.
    hostname : str
        Name of the node, for messages.
    nodes : tuple of int, length size
        Node index of every rank.
    is_divided : bool
        Whether some of these nodes are parts of one: their ranks could map each other's memory.
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
        """The ranks that run on this rank's node, this one included, in rank order."""
        return tuple(rank for rank, node in enumerate(self.nodes) if node == self.node)

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        return max(self.nodes) + 1


def topology(
    comm: MPI.Intracomm, *, most: int | None = None, apart: bytes = b"", pretended: bool = True
) -> Topology:
    """Find out which ranks of `comm` share a node. Collective, with the same `most` and `pretended` on all ranks.

    Parameters
    ----------
    comm : MPI.Intracomm
    most : int, optional
        A node with more ranks is taken for several, of about equal size.
    apart : bytes
        Ranks of one node that give different bytes are taken for ranks of several.
    pretended : bool
        As of `node_identity`.

    Returns
    -------
    Topology

    Notes
    -----
    One Allreduce of a table of 16 bytes a rank, in which each rank has filled its own place; what is kept takes 8 bytes
    a rank, and a number for each node. Reductions take a number of rounds that grows with the logarithm of the ranks.

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
    """The bytes of all ranks, of which each gives as many, one after another."""
    table = bytearray(len(own) * comm.size)
    table[len(own) * comm.rank : len(own) * (comm.rank + 1)] = own
    with interrupts_deferred():
        begin(comm)
        complete(comm, plain(comm).Iallreduce(MPI.IN_PLACE, [table, MPI.BYTE], MPI.BOR), memory=table)
    return bytes(table)


def _numbered(keys: Iterable[Hashable]) -> tuple[int, ...]:
    """A number for each key, those that occur first being lower."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def _divided(nodes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The nodes, those with more than `most` ranks in several parts."""
    sizes, seen = Counter(nodes), Counter[int]()
    if max(sizes.values()) <= most:
        return nodes
    keys = []
    for node in nodes:
        parts = -(-sizes[node] // most)
        keys.append((node, seen[node] * parts // sizes[node]))
        seen[node] += 1
    return _numbered(keys)
