"""The ranks that one communicator's messages go to: what is known of those that this process shares memory with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpi_bootstrap import Topology

from .envelope import Sender
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
    """

    def __init__(
        self, serial: int, postbox: Postbox, world_ranks: Sequence[int], topology: Callable[[], Topology | None]
    ) -> None:
        self._serial, self._postbox, self._world_ranks = serial, postbox, world_ranks
        self._topology = topology
        self._readers: set[int] = set()  # known to have opened the bounce memory
        self._far: set[int] = set()  # that have sent from another node
        self._introduced: set[int] = set()  # that have got an envelope of this process

    def number_of(self, rank: int) -> int:
        """Return the number by which this process identifies a rank: in MPI.COMM_WORLD, or else on this endpoint."""
        world = self._world_ranks[rank]
        return world if world >= 0 else (self._serial << 32) + rank

    def is_reader(self, rank: int) -> bool:
        """Whether a rank is known to have opened this process's bounce memory."""
        if rank in self._readers:
            return True
        if self.is_far(rank) or not self._postbox.readers.has(self.number_of(rank)):
            return False
        self._readers.add(rank)
        return True

    def note_sender(self, rank: int, sender: Sender) -> None:
        """Take note of where a rank has sent a message from."""
        if sender.node != self._postbox.sender.node:
            self._far.add(rank)

    def introduce(self, rank: int) -> None:
        """Take note that a rank is sent an envelope with its data, which says where this process is."""
        self._introduced.add(rank)

    def is_far(self, rank: int) -> bool:
        """Whether a rank is known to be on another node: its messages bring their data."""
        return rank in self._far or self._is_apart(rank)

    def are_far(self, rank: int) -> bool:
        """Whether a rank is known to be on another node, and can find out the same: no envelope is of use."""
        return self._is_apart(rank) or (rank in self._far and rank in self._introduced)

    def _is_apart(self, rank: int) -> bool:
        topology = self._topology() if rank >= 0 else None
        if topology is None or topology.is_divided:
            return False
        return topology.nodes[rank] != topology.node
