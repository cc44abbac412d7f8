"""Placement of a token shuffle's experts on ranks, and of proxies on nodes.

A proxy is a rank that receives, for its node, the tokens of certain ranks on other nodes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..nodes.rails import NodeMap

# expert_place of cuda/tokens/shuffle.cuh has 16 bits for an expert's index on its rank.
MAX_EXPERTS = 1 << 16


@dataclass(frozen=True)
class Placement:
    """Which ranks have which experts.

    Attributes
    ----------
    ranks : list of lists of int
        The ranks of each expert, which take its tokens in turn.
    local_experts : list of lists of int
        The experts of each rank, in ascending order.
    """

    ranks: list[list[int]]
    local_experts: list[list[int]]

    @property
    def replicas(self) -> int:
        """The largest number of ranks that have the same expert."""
        return max(map(len, self.ranks))

    def table(self) -> bytes:
        """Return the kernels' table of the experts' places.

        expert_replica of cuda/tokens/shuffle.cuh reads it. If experts have replicas, the number of an expert's ranks
        precedes its places, and zeros follow.
        """
        index_of = [{expert: i for i, expert in enumerate(experts)} for experts in self.local_experts]
        words: list[int] = []
        replicas = self.replicas
        for expert, ranks in enumerate(self.ranks):
            places = [rank << 16 | index_of[rank][expert] for rank in ranks]
            words += places if replicas == 1 else [len(ranks), *places, *[0] * (replicas - len(ranks))]
        return struct.pack(f"={len(words)}I", *words)

    def first_buckets(self, *, by_source: bool) -> list[int]:
        """Return the index of each rank's first bucket, then the number of all buckets.

        A bucket is a group of rows. A rank has one bucket for each of its experts, or with `by_source` a single one.
        """
        counts = [1 if by_source else len(experts) for experts in self.local_experts]
        return [sum(counts[:rank]) for rank in range(len(counts) + 1)]


def place_experts(placement: Any, num_experts: int, size: int) -> Placement:
    """Read a placement: None, one rank for each expert, or several (-1 for none).

    Raises
    ------
    ValueError
        If the shape is wrong, an expert has no rank, or a number is not a rank.
    """
    if placement is None:
        placement = [expert * size // num_experts for expert in range(num_experts)]
    table = np.array(placement, np.int64)
    if table.ndim not in (1, 2) or len(table) != num_experts or table.size == 0:
        raise ValueError(
            f"placement has the shape {table.shape}; expecting ({num_experts},) or ({num_experts}, replicas), the "
            "rank or ranks of every expert"
        )
    chosen = [[rank for rank in row if rank != -1] for row in table.reshape(num_experts, -1).tolist()]
    for expert, ranks in enumerate(chosen):
        if not ranks or min(ranks) < 0 or max(ranks) >= size:
            raise ValueError(f"placement: expert {expert} is on ranks {ranks}; there are the ranks 0 to {size - 1}")
    local: list[list[int]] = [[] for _ in range(size)]
    for expert, ranks in enumerate(chosen):
        for rank in set(ranks):
            local[rank].append(expert)
    return Placement(chosen, local)


class Proxies:
    """The proxies of all ranks in this rank's node, and this rank's proxies elsewhere.

    On another node, the proxy of the rank with local index i has local index i modulo the number of ranks there. If
    nodes have equal sizes, it is on the same rail. A proxy has its own tokens in slot 0, and those of the ranks that it
    represents in the following slots, by node and rank.

    Attributes
    ----------
    of : list of int
        The local index of each rank's proxy in this node.
    slot_of : list of int
        The slot of each rank's tokens at that proxy.
    slots : int
        Number of slots, the same on all ranks of this node.
    sources : list of int
        The ranks in this rank's slots; this rank comes first.
    elsewhere : dict of int
        This rank's proxy on each other node.

    Examples
    --------
    >>> proxies = Proxies(NodeMap([0, 1, 1], rank=0))
    >>> proxies.of, proxies.slot_of, proxies.sources, proxies.elsewhere
    ([0, 0, 0], [0, 1, 2], [0, 1, 2], {1: 1})
    """

    def __init__(self, places: NodeMap) -> None:
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


def _at(places: NodeMap, node: int) -> int:
    ranks = places.ranks_of(node)
    return ranks[places.local_rank % len(ranks)]
