"""Exchange by pyncclx's token shuffle: counts and routings stay on the device."""

from __future__ import annotations

from typing import Any

from decoding_kernels import copy, launch
from exchange import Array, Exchange, Shape


class Shuffled(Exchange):
    """`dispatch` and `combine` of a token shuffle; one sum comes back from each rank.

    The shuffle's rows are contiguous. Batched products need the same number for each expert, so each row is copied to a
    slot of its expert, and its result back.
    """

    name = "pyncclx"

    def __init__(self, comm: Any, xp: Any, shape: Shape) -> None:
        super().__init__(comm, xp, shape)
        self.slots = xp.zeros((len(self.experts), self.capacity, shape.hidden), shape.dtype)
        # In the order of the shuffle's rows.
        self.results = self.slots.reshape(-1, shape.hidden).copy()
        self.slot_of = xp.full(len(self.results), -1, "i4")
        sizes = shape.experts, len(self.results), shape.hidden, shape.dtype
        self.shuffle = comm.Create_token_shuffle(*sizes, k=shape.k, max_tokens=shape.tokens)

    def dispatch(self, x: Array, chosen: Array, weights: Array) -> Array:
        rows, self.handle = self.shuffle.dispatch(x, chosen, weights)
        self.kept.append(self.handle)
        self.slot_of.fill(-1)
        experts, made = len(self.experts), (self.slot_of, self.lost)
        launch(self.xp, "spread", experts, 64, [rows.offsets, experts, self.capacity, *made])
        copy(self.xp, rows.data, self.slots, self.slot_of)
        return self.slots

    def combine(self, results: Array) -> Array:
        copy(self.xp, self.results, results, self.slot_of, back=True)
        return self.shuffle.combine(self.results, self.handle)

    def free(self) -> None:
        self.kept.clear()
        del self.handle
        self.shuffle.Free()
