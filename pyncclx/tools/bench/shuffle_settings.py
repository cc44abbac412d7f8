"""Settings of bench-shuffle, and the experts that tokens choose in each."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .environment import mode

ROUTINGS = ("uniform", "zipf", "one", "trace")


@dataclass(frozen=True)
class Setting:
    """Token shuffle, and how its tokens choose experts.

    Attributes
    ----------
    hidden : int
        Elements of a token.
    k : int
        Experts of a token.
    routing : {"uniform", "zipf", "one", "trace"}
    experts : int
        Experts of all ranks.
    dtype, rows_dtype : str
        Types of the tokens, and of the rows that travel.
    layout : {"expert", "source"}
        Layout of the rows.
    mode : {"graph", "eager"}
    """

    hidden: int
    k: int
    routing: str
    experts: int
    dtype: str
    rows_dtype: str
    layout: str
    mode: str

    def varies(self) -> tuple[Any, ...]:
        """Return the values that the command line can vary."""
        return self.hidden, self.k, self.experts, self.routing, self.mode


def settings_of(arguments: argparse.Namespace) -> list[Setting]:
    """Return all settings of the command line; first the options' first values."""
    modes = ["graph", "eager"] if arguments.graph and arguments.one_at_a_time else [mode(graph=arguments.graph)]
    constant = arguments.dtype, arguments.rows_dtype, arguments.layout
    values = itertools.product(arguments.hidden, arguments.k, arguments.routing, arguments.experts, modes)
    settings = [Setting(hidden, k, routing, experts, *constant, mode) for hidden, k, routing, experts, mode in values]
    if not arguments.one_at_a_time:
        return settings
    first = settings[0].varies()
    return [each for each in settings if sum(a != b for a, b in zip(each.varies(), first, strict=True)) < 2]


def choose(setting: Setting, tokens: int, rank: int, trace: Path | None = None) -> np.ndarray[Any, Any]:
    """Return different experts for each token of a rank: int64, shape (tokens, k).

    Raises
    ------
    ValueError
        If a trace has fewer choices for a token, or experts that do not exist.
    """
    if setting.routing == "trace":
        recorded = np.load(trace)[:, : setting.k] if trace else np.empty((0, 0))
        if recorded.shape[1:] != (setting.k,) or recorded.max() >= setting.experts:
            raise ValueError(f"--routing trace needs --trace with {setting.k} of {setting.experts} experts a token")
        return np.ascontiguousarray(recorded[(rank * tokens + np.arange(tokens)) % len(recorded)], np.int64)
    # All tokens choose the first experts, which are on the first rank.
    if setting.routing == "one":
        return np.tile(np.arange(setting.k), (tokens, 1))
    score = np.random.default_rng([7, rank, tokens]).gumbel(size=(tokens, setting.experts))
    if setting.routing == "zipf":
        score -= np.log1p(np.arange(setting.experts))
    return np.ascontiguousarray(np.argsort(-score, axis=1)[:, : setting.k]).astype(np.int64)


def traffic(ranks_chosen: list[np.ndarray[Any, Any]]) -> tuple[int, int]:
    """Return the tokens that the busiest rank receives, and the results it gets back.

    Tokens and partial results within a rank do not count. Two ranks may be the busiest ones.

    `ranks_chosen` has the ranks of the experts that each rank's tokens choose.
    """
    size = len(ranks_chosen)
    moves = np.array([[int((each == rank).any(axis=1).sum()) for rank in range(size)] for each in ranks_chosen])
    np.fill_diagonal(moves, 0)
    return int(moves.sum(axis=0).max()), int(moves.sum(axis=1).max())
