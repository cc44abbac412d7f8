"""Proxies: the ranks that hold tokens of other nodes' ranks."""

from __future__ import annotations

from ...nodes.places import Places


class Proxies:
    """The proxies of all ranks in this rank's node, and this rank's proxies elsewhere.

    On another node, the proxy of the rank with local index i has local index i modulo the number of ranks there. If
    nodes are of one size, that is over the rail. A proxy has its own tokens in slot 0. The following slots have those
    of the ranks that it stands for, by node and rank.

    Attributes
    ----------
    of : list of int
        By rank: the local index of its proxy in this node.
    slot_of : list of int
        By rank: the slot of its tokens at that proxy.
    slots : int
        Number of slots, the same on all ranks of this node.
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
