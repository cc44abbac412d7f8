"""The nodes of a communicator's ranks, in 8 bytes per rank and 4 per node."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence


class Places:
    """Which ranks of a communicator are on which node.

    Nodes may have different numbers of ranks, and ranks may alternate between nodes.

    Parameters
    ----------
    nodes : sequence of int
        The node of every rank; nodes are numbered by their lowest rank (`mpi_bootstrap.Topology.nodes`).
    rank : int
        This rank.

    Attributes
    ----------
    rank, size : int
        As in the communicator.
    node, count : int
        This rank's node, and the number of nodes.
    local_rank, local_size : int
        This rank's index among those of its node, and their number.
    lanes : int
        Number of ranks on the smallest node. The ranks with the same local index, one of each node, exchange data with
        each other, if the index is less than `lanes` (see `rails.py`).
    is_even : bool
        Whether all nodes have the same number of ranks.
    in_rank_order : bool
        Whether each node's ranks follow those of the previous node. A reduction by node is then in rank order.

    Examples
    --------
    >>> places = Places([0, 1, 0, 1, 0], rank=2)
    >>> places.local_rank, places.lanes, list(places.ranks_of(1)), places.in_rank_order
    (1, 2, [1, 3], False)
    """

    def __init__(self, nodes: Sequence[int], rank: int) -> None:
        self.rank, self.size = rank, len(nodes)
        self.count = max(nodes) + 1
        self._nodes = array("i", nodes)
        self._begins = array("i", bytes(4 * (self.count + 1)))  # where the ranks of each node begin in `_ranks`
        for node in nodes:
            self._begins[node + 1] += 1
        for node in range(self.count):
            self._begins[node + 1] += self._begins[node]
        self._ranks = array("i", sorted(range(self.size), key=nodes.__getitem__))  # ordered by node, then by rank
        sizes = {len(self.ranks_of(node)) for node in range(self.count)}
        self.node = nodes[rank]
        self.local_rank, self.local_size = self.local_of(rank), len(self.ranks_of(self.node))
        self.lanes, self.is_even = min(sizes), len(sizes) == 1
        self.in_rank_order = all(before <= after for before, after in zip(self._nodes, self._nodes[1:], strict=False))

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return self._nodes[rank]

    def ranks_of(self, node: int) -> array[int]:
        """Return the ranks of a node, in rank order."""
        return self._ranks[self._begins[node] : self._begins[node + 1]]

    def local_of(self, rank: int) -> int:
        """Return the index of a rank among those of its node."""
        return self.place_of(rank) - self._begins[self._nodes[rank]]

    def place_of(self, rank: int) -> int:
        """Return a rank's index in the order by node, then by rank."""
        return bisect_left(self._ranks, rank, self._begins[self._nodes[rank]], self._begins[self._nodes[rank] + 1])

    def peer_on(self, node: int, lane: int) -> int:
        """Return the rank of a node with this local index, else the node's last rank."""
        return self._ranks[min(self._begins[node] + lane, self._begins[node + 1] - 1)]

    def ranks_with(self, lane: int) -> array[int]:
        """Return the ranks with this local index, in rank order."""
        begins = zip(self._begins, self._begins[1:], strict=False)
        return array("i", sorted(self._ranks[begin + lane] for begin, end in begins if begin + lane < end))

    @property
    def away(self) -> list[int]:
        """The ranks of other nodes."""
        return [rank for rank, node in enumerate(self._nodes) if node != self.node]

    @property
    def other_nodes(self) -> list[int]:
        """The other nodes, beginning with the next, so that first sends differ in target."""
        return [(self.node + step) % self.count for step in range(1, self.count)]
