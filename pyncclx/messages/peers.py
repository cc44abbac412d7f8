"""The peers of a communicator: which share memory, which are on other nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpi_bootstrap import Topology

from .postbox import Postbox


class Peers:
    """Ranks of a communicator, as seen by this process.

    Parameters
    ----------
    serial : int
        Serial number of the endpoint in this process.
    postbox : Postbox
    world_ranks : sequence of int
        Rank of each peer in MPI.COMM_WORLD; negative if it has none.
    topology : callable
        Returns the communicator's topology; None if it is not known.

    Attributes
    ----------
    numbers : list of int
        Identifies each rank in this process: its rank in MPI.COMM_WORLD, else a number made from `serial` and rank.
    readers : set of int
        Ranks that are known to have opened this process's bounce memory.
    far : set of int
        Ranks that have sent a message from another node.
    """

    def __init__(
        self, serial: int, postbox: Postbox, world_ranks: Sequence[int], topology: Callable[[], Topology | None]
    ) -> None:
        self._postbox, self._topology = postbox, topology
        self.numbers = [world if world >= 0 else (serial << 32) + rank for rank, world in enumerate(world_ranks)]
        self.readers: set[int] = set()
        self.far: set[int] = set()
        # Ranks that have been sent an envelope of this process.
        self._introduced: set[int] = set()

    def is_reader(self, rank: int) -> bool:
        """Whether a rank is known to have opened this process's bounce memory."""
        if rank in self.readers:
            return True
        if self.is_far(rank) or not self._postbox.readers.has(self.numbers[rank]):
            return False
        self.readers.add(rank)
        return True

    def introduce(self, rank: int) -> None:
        """Record that a rank is sent an envelope. The envelope names this process's node."""
        self._introduced.add(rank)

    def is_far(self, rank: int) -> bool:
        """Whether a rank is known to be on another node. MPI then transfers the data."""
        return rank in self.far or self._is_apart(rank)

    def are_far(self, rank: int) -> bool:
        """Whether both ranks can know that they are on different nodes.

        Messages between them then need no envelope.
        """
        return self._is_apart(rank) or (rank in self.far and rank in self._introduced)

    def _is_apart(self, rank: int) -> bool:
        topology = self._topology() if rank >= 0 else None
        if topology is None or topology.is_divided:
            return False
        return topology.nodes[rank] != topology.node
