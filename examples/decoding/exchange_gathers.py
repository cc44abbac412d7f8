"""Exchange by an all-gather of all rows and a reduce-scatter of the results."""

from __future__ import annotations

from typing import Any

from decoding_collectives import Mpi, Nccl
from exchange import Alone, Array, Shape


class Gathered(Alone):
    """The usual exchange for few tokens if counts cannot stay on the device.

    Parameters
    ----------
    comm, xp, shape
        See `Exchange`.
    collectives : decoding_collectives.Mpi or decoding_collectives.Nccl
    """

    def __init__(self, comm: Any, xp: Any, shape: Shape, collectives: Mpi | Nccl) -> None:
        super().__init__(comm, xp, shape, tokens=comm.size * shape.tokens)
        self.collectives, self.name = collectives, f"{collectives.name}, all-gather"

    def dispatch(self, x: Array, chosen: Array, weights: Array) -> Array:
        return super().dispatch(*self.collectives.all_gather(x, chosen, weights))

    def combine(self, results: Array) -> Array:
        return self.collectives.reduce_scatter(super().combine(results))
