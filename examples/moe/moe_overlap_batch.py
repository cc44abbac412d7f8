"""The tokens of a batch, their shuffles, and some results by NumPy."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from common.overlap import rounded

Array = Any
TOLERANCE = 2**-6  # relative to the largest number: another order of a sum may round to a neighbour


class Inputs:
    """A rank's tokens of a batch, their routing, and all experts' parameters.

    Tokens and parameters are in units of 1/128.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    batch : int
    shape : tuple of int
        Tokens of each rank, elements of a token, width of an expert.
    options : argparse.Namespace
    """

    def __init__(self, comm: Any, batch: int, shape: tuple[int, int, int], options: argparse.Namespace) -> None:
        count, hidden, self.inner = shape
        self.size, self.experts, largest = comm.size, options.experts, options.largest
        mine, common = np.random.default_rng([comm.rank, batch, count]), np.random.default_rng(hidden)
        self.ids = np.argsort(mine.random((count, self.experts)), axis=1)[:, : options.k].copy()
        # Small, because sums have thousands of terms, and layers follow each other.
        self.weights = np.float32(2) ** -mine.integers(7, 10, self.ids.shape).astype("f4")
        self.x = mine.integers(-largest, largest, (count, hidden), "i1", endpoint=True)
        # Each expert's parameters are a part of these, at another offset.
        self.up = common.integers(-largest, largest, (hidden, self.inner + self.experts), "i1", endpoint=True)
        self.down = common.integers(-largest, largest, (self.inner + 2 * self.experts, hidden), "i1", endpoint=True)

    def rank_of(self, expert: Any) -> Any:
        """Return the rank of an expert, or of each of several experts."""
        return expert * self.size // self.experts

    def up_of(self, expert: int, whole: Array) -> Array:
        """Return an expert's first matrix."""
        return whole[:, expert : expert + self.inner]

    def down_of(self, expert: int, whole: Array) -> Array:
        """Return an expert's second matrix."""
        return whole[2 * expert : 2 * expert + self.inner]

    def agree(self, token: int, before: Array, after: Array) -> bool:
        """Return whether a layer turns `before` into `after`, for a token of this rank."""
        expected = self._expected(token, before)
        return bool(np.abs(after - expected).max() <= TOLERANCE * np.abs(expected).max())

    def _expected(self, token: int, x: Array) -> Array:
        """Return the sum in the order of `combine`: inside each rank, then over ranks."""
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
    """One rank's tokens of a batch, and their results.

    Parameters
    ----------
    layers : moe_overlap.Layers
    inputs : Inputs
    """

    def __init__(self, layers: Any, inputs: Inputs) -> None:
        self.layers, self.inputs, device = layers, inputs, layers.device
        self.ids, self.weights = device.upload(inputs.ids), device.upload(inputs.weights)
        self.x = [device.put(inputs.x)]  # before each layer, and at the end
        self.x += [device.empty(*inputs.x.shape) for _ in range(layers.count)]
        self.shuffle: Any = None

    def prepare(self, blocks: int | None) -> None:
        """Make a token shuffle whose kernels have `blocks` blocks. Collective.

        With None they have as many as are fastest.
        """
        comm, inputs, (tokens, k) = self.layers.comm, self.inputs, self.ids.shape
        rows = comm.allreduce(np.bincount(inputs.rank_of(inputs.ids).ravel(), minlength=comm.size))
        self.shuffle = comm.Create_token_shuffle(
            inputs.experts, int(max(rows)), self.layers.hidden, k=k, max_tokens=tokens, blocks=blocks
        )

    def free(self) -> None:
        """Release the shuffle's memory. Collective."""
        self.rows = self.handle = None
        if self.shuffle is not None:
            self.shuffle.Free()

    def dispatch(self, layer: int) -> None:
        """Send the tokens to the experts of a layer."""
        self.rows, self.handle = self.shuffle.dispatch(self.x[layer], self.ids, self.weights)
        self.layers.kept.append(self.handle)

    def compute(self) -> None:
        """Compute this rank's experts on the rows that have arrived."""
        layers = self.layers
        self.results = layers.device.experts(self.rows.data, self.rows.offsets, layers.up, layers.down)

    def combine(self, layer: int) -> None:
        """Send the results back, and add them up."""
        self.shuffle.combine(self.results, self.handle, out=self.x[layer + 1])

    def is_right(self) -> bool:
        """Return whether NumPy agrees for a token in the first and in the last layer."""
        token, device, last = len(self.ids) // 2, self.layers.device, self.layers.count - 1
        pairs = [[device.get(x[token : token + 1])[0] for x in self.x[layer : layer + 2]] for layer in {0, last}]
        return all(self.inputs.agree(token, *pair) for pair in pairs)
