"""Proxies: which rank of a node has the tokens of which ranks."""

from __future__ import annotations

from ..nodes.places import Places


class Proxies:
    """Who has whose tokens in this rank's node, and who has this rank's elsewhere.

    The rank with local index i has its proxy on another node at local index i, modulo the number of ranks there: over
    the rail, if nodes are of one size. A proxy has its own tokens in slot 0, and those of the ranks that it stands for,
    by node and rank, in the following ones.

    Attributes
    ----------
    of : list of int
        By rank: the local index of its proxy in this node.
    slot_of : list of int
        By rank: the slot that its tokens have there.
    slots : int
        As many on all ranks of this node.
    sources : list of int
        The ranks in this rank's slots; this rank comes first.
    elsewhere : dict of int
        By node: this rank's proxy.

    Examples
    --------
    >>> proxies = Proxies(Places([0, 1, 1], rank=0))
    >>> proxies.of, proxies.slot_of, proxies.sources, proxies.elsewhere
    ([0, 0, 0], [0, 1, 2], [0, 1, 2], {1: 1})
    """

    def __init__(self, places: Places) -> None:
        size = places.local_size
        self.of, self.slot_of = [0] * places.size, [0] * places.size
        used = [1] * size
        for node in range(places.count):
            for index, rank in enumerate(places.ranks_of(node)):
                proxy = self.of[rank] = index % size
                if node != places.node:
                    self.slot_of[rank] = used[proxy]
                    used[proxy] += 1
        self.slots = max(used)
        served = [rank for rank in range(places.size) if self.of[rank] == places.local_rank]
        self.sources = sorted(served, key=self.slot_of.__getitem__)
        self.elsewhere = {node: _at(places, node) for node in places.other_nodes}


def _at(places: Places, node: int) -> int:
    ranks = places.ranks_of(node)
    return ranks[places.local_rank % len(ranks)]
