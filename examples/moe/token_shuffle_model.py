"""The model of token_shuffle.py: words to rows, routers, experts, and a reference."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

LAYERS = 8  # different routers, used in turn, so that the routing changes from step to step
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
Array = Any  # NumPy's or CuPy's


@dataclass
class Model:
    """The part that all ranks have: routers, experts, and the experts of each rank."""

    routers: Array  # (LAYERS, hidden, experts)
    popularity: Array  # (experts,): what --skew adds to the routers' scores
    scale: Array  # (experts, hidden): expert e makes tanh(scale[e] * row + shift[e]) of a row
    shift: Array  # (experts, hidden)
    first_expert: Array  # (ranks + 1,): rank r has the experts from first_expert[r] to before first_expert[r + 1]

    def to(self, xp: Any) -> Model:
        """Return the model in arrays of the module `xp`."""
        return Model(*(xp.asarray(array) for array in vars(self).values()))


def make_model(options: argparse.Namespace, ranks: int) -> Model:
    """Make routers and experts from the seed, the same on every rank.

    The routers' numbers are multiples of 1/4, and the rows' too. Sums of their products are exact in single
    precision, in whatever order they are added, so every device chooses the same experts as the comparison.
    """
    random = np.random.default_rng(options.seed)
    hidden, experts = options.hidden, options.experts
    popularity = -options.skew * np.log1p(np.arange(experts)) * hidden**0.5
    return Model(
        routers=quarters(random, (LAYERS, hidden, experts)),
        popularity=np.round(popularity).astype("f4"),
        scale=random.standard_normal((experts, hidden), "f4"),
        shift=random.standard_normal((experts, hidden), "f4"),
        first_expert=shares(experts, ranks),
    )


def tokenize(text: str) -> Array:
    """Number words and punctuation in the order of their first appearance."""
    numbers: dict[str, int] = {}
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return np.array([numbers.setdefault(word, len(numbers)) for word in words], "i8")


def embed(tokens: Array, options: argparse.Namespace) -> Array:
    """Make a row for each token: its word's row plus the previous word's."""
    random = np.random.default_rng(options.seed + 1)
    table = quarters(random, (int(tokens.max()) + 1, options.hidden))
    return table[tokens] + table[np.roll(tokens, 1)]


def quarters(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normally distributed multiples of 1/4, between -4 and 4."""
    return np.clip(np.round(4 * random.standard_normal(shape, "f4")) / 4, -4, 4)


def shares(count: int, ranks: int) -> Array:
    """Divide `count` things: rank r has those from result[r] up to result[r + 1]."""
    return np.arange(ranks + 1) * count // ranks


def reference(rows: Array, model: Model, options: argparse.Namespace) -> Array:
    """Return results of some rows by NumPy in double precision, without communication."""
    rows = rows.astype("f8")
    result = np.zeros(rows.shape)
    for step in range(options.steps):
        scores = rows @ model.routers[step % LAYERS] + model.popularity
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, : options.k]
        best = np.take_along_axis(scores, chosen, axis=1) / options.hidden**0.5
        weights = np.exp(best - best[:, :1])
        weights /= weights.sum(axis=1, keepdims=True)
        for expert in range(options.experts):
            row, choice = np.nonzero(chosen == expert)
            output = np.tanh(rows[row] * model.scale[expert] + model.shift[expert])
            result[row] += weights[row, choice, None] * output
    return result


def tolerance(options: argparse.Namespace) -> float:
    """Return the allowed error: each step adds a number below 1, and a few roundings."""
    return 8 * EPSILON[options.dtype] * options.steps
