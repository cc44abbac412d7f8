"""The ranks that one communicator's messages go to: what is known of those that this process shares memory with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpi_bootstrap import Topology

from .postbox import Postbox


class Peers:
    """What is known of the ranks.

    Parameters
    ----------
    serial : int
        Of the endpoint in this process.
    postbox : Postbox
    world_ranks : sequence of int
        Their ranks in MPI.COMM_WORLD; negative of those that have none.
    topology : callable
        Returns the communicator's topology, None where it is not known.

    Attributes
    ----------
    numbers : list of int
        By which this process identifies the ranks: in MPI.COMM_WORLD, or else on this endpoint.
    readers : set of int
        Those that are known to have opened this process's bounce memory.
    far : set of int
        Those that have sent from another node.
    """

    def __init__(
        self, serial: int, postbox: Postbox, world_ranks: Sequence[int], topology: Callable[[], Topology | None]
    ) -> None:
        self._postbox, self._topology = postbox, topology
        self.numbers = [world if world >= 0 else (serial << 32) + rank for rank, world in enumerate(world_ranks)]
        self.readers: set[int] = set()
        self.far: set[int] = set()
        self._introduced: set[int] = set()  # that have got an envelope of this process

    def is_reader(self, rank: int) -> bool:
        """Whether a rank has opened this process's bounce memory by now."""
        if rank in self.readers:
            return True
        if self.is_far(rank) or not self._postbox.readers.has(self.numbers[rank]):
            return False
        self.readers.add(rank)
        return True

    def introduce(self, rank: int) -> None:
        """Take note that a rank is sent an envelope with its data, which says where this process is."""
        self._introduced.add(rank)

    def is_far(self, rank: int) -> bool:
        """Whether a rank is known to be on another node: its messages bring their data."""
        return rank in self.far or self._is_apart(rank)

    def are_far(self, rank: int) -> bool:
        """Whether a rank is known to be on another node, and can find out the same: no envelope is of use."""
        return self._is_apart(rank) or (rank in self.far and rank in self._introduced)

    def _is_apart(self, rank: int) -> bool:
        topology = self._topology() if rank >= 0 else None
        if topology is None or topology.is_divided:
            return False
        return topology.nodes[rank] != topology.node
