"""The tokens of a batch: where they come from, how they get to their experts and back, and some results by NumPy."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from common.overlap import rounded

Array = Any
TOLERANCE = 2**-6  # of the largest number: sums in another order can be rounded to a neighbour, and so what follows


class Inputs:
    """A rank's tokens of a batch, their routing, and the parameters of all experts; tokens and parameters in 128ths.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    batch : int
    shape : tuple of int
        Tokens of each rank, numbers of a token, width of an expert.
    options : argparse.Namespace
    """

    def __init__(self, comm: Any, batch: int, shape: tuple[int, int, int], options: argparse.Namespace) -> None:
        count, hidden, self.inner = shape
        self.size, self.experts, largest = comm.size, options.experts, options.largest
        mine, common = np.random.default_rng([comm.rank, batch, count]), np.random.default_rng(hidden)
        self.ids = np.argsort(mine.random((count, self.experts)), axis=1)[:, : options.k].copy()
        # Small, since sums have thousands of terms, and layers follow each other.
        self.weights = np.float32(2) ** -mine.integers(7, 10, self.ids.shape).astype("f4")
        self.x = mine.integers(-largest, largest, (count, hidden), "i1", endpoint=True)
        # Those of each expert are a part of these, at another place.
        self.up = common.integers(-largest, largest, (hidden, self.inner + self.experts), "i1", endpoint=True)
        self.down = common.integers(-largest, largest, (self.inner + 2 * self.experts, hidden), "i1", endpoint=True)

    def rank_of(self, expert: Any) -> Any:
        """The rank of an expert, or of each of some."""
        return expert * self.size // self.experts

    def up_of(self, expert: int, whole: Array) -> Array:
        """An expert's first matrix."""
        return whole[:, expert : expert + self.inner]

    def down_of(self, expert: int, whole: Array) -> Array:
        """An expert's second matrix."""
        return whole[2 * expert : 2 * expert + self.inner]

    def agree(self, token: int, before: Array, after: Array) -> bool:
        """Whether a layer makes one vector of the other, for a token of this rank."""
        expected = self._expected(token, before)
        return bool(np.abs(after - expected).max() <= TOLERANCE * np.abs(expected).max())

    def _expected(self, token: int, x: Array) -> Array:
        """As `combine` adds: the results of each rank, then the ranks."""
        total = np.float32(0)
        for rank in range(self.size):
            part = np.zeros_like(x)
            for expert, weight in zip(self.ids[token], self.weights[token], strict=True):
                if self.rank_of(expert) == rank:
                    part += weight * self._expert(int(expert), x)
            total = total + rounded(part)
        return rounded(total)

    def _expert(self, expert: int, x: Array) -> Array:
        up, down = self.up_of(expert, self.up).astype("f4"), self.down_of(expert, self.down).astype("f4")
        return rounded(rounded(np.maximum(x @ up / 128, 0)) @ down / 128)


class Batch:
    """One rank's tokens of a batch, and what becomes of them.

    Parameters
    ----------
    layers : moe_overlap.Layers
    inputs : Inputs
    """

    def __init__(self, layers: Any, inputs: Inputs) -> None:
        self.layers, self.inputs, device = layers, inputs, layers.device
        self.ids, self.weights = device.upload(inputs.ids), device.upload(inputs.weights)
        self.x = [device.put(inputs.x)]  # before each layer, and in the end
        self.x += [device.empty(*inputs.x.shape) for _ in range(layers.count)]
        self.shuffle: Any = None

    def prepare(self, blocks: int | None) -> None:
        """Make a token shuffle whose kernels have so many blocks; None: as many as are fastest. Collective."""
        comm, inputs, (tokens, k) = self.layers.comm, self.inputs, self.ids.shape
        rows = comm.allreduce(np.bincount(inputs.rank_of(inputs.ids).ravel(), minlength=comm.size))
        self.shuffle = comm.Create_token_shuffle(
            inputs.experts, int(max(rows)), self.layers.hidden, k=k, max_tokens=tokens, blocks=blocks
        )

    def free(self) -> None:
        """Give the shuffle's memory back. Collective."""
        self.rows = self.handle = None
        if self.shuffle is not None:
            self.shuffle.Free()

    def dispatch(self, layer: int) -> None:
        """Bring the tokens to the experts of a layer."""
        self.rows, self.handle = self.shuffle.dispatch(self.x[layer], self.ids, self.weights)
        self.layers.kept.append(self.handle)

    def compute(self) -> None:
        """What this rank's experts make of the rows that have come."""
        layers = self.layers
        self.results = layers.device.experts(self.rows.data, self.rows.offsets, layers.up, layers.down)

    def combine(self, layer: int) -> None:
        """Bring the results back, and add them up."""
        self.shuffle.combine(self.results, self.handle, out=self.x[layer + 1])

    def is_right(self) -> bool:
        """Whether NumPy makes the same of a token of this rank in the first layer, and in the last."""
        token, device, last = len(self.ids) // 2, self.layers.device, self.layers.count - 1
        pairs = [[device.get(x[token : token + 1])[0] for x in self.x[layer : layer + 2]] for layer in {0, last}]
        return all(self.inputs.agree(token, *pair) for pair in pairs)
