"""Exchange by an all-to-all of equal blocks, padded to the most rows of an expert."""

from __future__ import annotations

from typing import Any

from decoding_collectives import Mpi, Nccl
from exchange import Alone, Array, Shape, room


class Padded(Alone):
    """The usual exchange for many tokens: ranks divide each expert's room equally.

    Parameters
    ----------
    comm, xp, shape
        See `Exchange`.
    collectives : decoding_collectives.Mpi or decoding_collectives.Nccl
    """

    def __init__(self, comm: Any, xp: Any, shape: Shape, collectives: Mpi | Nccl) -> None:
        capacity = room(shape.room * shape.tokens * shape.k, shape.experts, shape.tokens)
        super().__init__(comm, xp, shape, experts=range(shape.experts), capacity=capacity)
        self.collectives, self.name = collectives, f"{collectives.name}, padded"

    def dispatch(self, x: Array, chosen: Array, weights: Array) -> Array:
        blocks = self.collectives.all_to_all(super().dispatch(x, chosen, weights))
        ranks, hidden = self.comm.size, self.shape.hidden
        by_rank = blocks.reshape(ranks, -1, self.capacity, hidden)
        return self.xp.ascontiguousarray(by_rank.swapaxes(0, 1)).reshape(-1, ranks * self.capacity, hidden)

    def combine(self, results: Array) -> Array:
        ranks, hidden = self.comm.size, self.shape.hidden
        by_expert = results.reshape(-1, ranks, self.capacity, hidden)
        blocks = self.xp.ascontiguousarray(by_expert.swapaxes(0, 1))
        return super().combine(self.collectives.all_to_all(blocks.reshape(-1, self.capacity, hidden)))
