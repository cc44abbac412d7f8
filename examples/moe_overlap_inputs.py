"""What moe_overlap.py computes with, and some of its results by NumPy."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from overlap import rounded

Array = Any
SAMPLES = 2  # of a rank's tokens, for NumPy


class Inputs:
    """A rank's tokens and routing, and the parameters of all experts, as integers: multiples of 1/128 are meant.

    Parameters
    ----------
    rank, size, count, hidden : int
        Of the tokens there are `count` on each rank.
    options : argparse.Namespace
    largest : int
        Of tokens and parameters.
    """

    def __init__(
        self, rank: int, size: int, count: int, hidden: int, options: argparse.Namespace, largest: int
    ) -> None:
        self.size, self.options = size, options
        experts, inner = options.experts, options.inner
        mine, common = np.random.default_rng([rank, count]), np.random.default_rng(hidden)
        self.ids = np.argsort(mine.random((count, experts)), axis=1)[:, : options.k].copy()
        self.weights = np.float32(2) ** -mine.integers(1, 4, self.ids.shape).astype("f4")
        self.x = mine.integers(-largest, largest, (count, hidden), "i1", endpoint=True)
        # Those of each expert are a part of these, at another place.
        self.up = common.integers(-largest, largest, (hidden, inner + experts), "i1", endpoint=True)
        self.down = common.integers(-largest, largest, (inner + 2 * experts, hidden), "i1", endpoint=True)

    def up_of(self, expert: int, whole: Array) -> Array:
        """An expert's first matrix."""
        return whole[:, expert : expert + self.options.inner]

    def down_of(self, expert: int, whole: Array) -> Array:
        """An expert's second matrix."""
        return whole[2 * expert : 2 * expert + self.options.inner]

    def agree(self, result: Array) -> bool:
        """Whether some of this rank's results are right."""
        some = range(0, len(self.x), max(1, len(self.x) // SAMPLES))
        return all(np.array_equal(result[token], self._expected(token)) for token in some)

    def _expected(self, token: int) -> Array:
        """As `combine` adds: the results of each rank, then the ranks."""
        total = np.float32(0)
        for rank in range(self.size):
            part = np.float32(0)
            for expert, weight in zip(self.ids[token], self.weights[token], strict=True):
                if expert * self.size // self.options.experts == rank:
                    part = part + weight * self._expert(int(expert), self.x[token].astype("f4"))
            total = total + rounded(part * np.ones(self.x.shape[1], "f4"))
        return rounded(total)

    def _expert(self, expert: int, x: Array) -> Array:
        up, down = self.up_of(expert, self.up).astype("f4"), self.down_of(expert, self.down).astype("f4")
        return rounded(np.maximum(rounded(x @ up / 2**14), 0) @ down / 2**7)
