"""The data and the picture of moe_layer.py, and its layer in one process."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from common.program import sign
from token_shuffle_model import quarters

Array = Any  # NumPy's or CuPy's


class Parameters(NamedTuple):
    """Learned parameters: expert e computes max(x @ up[e], 0) @ down[e] of a token x."""

    router: Array  # (hidden, experts)
    up: Array  # (experts, hidden, inner)
    down: Array  # (experts, inner, hidden)


class Gradients(NamedTuple):
    """Gradients of the tokens and of the parameters."""

    x: Array
    router: Array
    up: Array
    down: Array


def make_parameters(options: argparse.Namespace) -> Parameters:
    """Make the parameters from the seed, the same on every rank.

    The router's numbers are multiples of 1/64 and the tokens' of 1/4, so that the scores of the first step are exact:
    every device chooses the same experts.
    """
    random = np.random.default_rng(options.seed)
    hidden, inner, experts = options.hidden, options.inner, options.experts
    up = random.standard_normal((experts, hidden, inner)) / hidden**0.5
    down = random.standard_normal((experts, inner, hidden)) / inner**0.5
    router = quarters(random, (hidden, experts)) / 16
    return Parameters(router, up.astype("f4"), down.astype("f4"))


def make_tokens(options: argparse.Namespace, ranks: int) -> tuple[Array, Array]:
    """Return all ranks' tokens and the targets: for each a wave of a random direction."""
    random = np.random.default_rng(options.seed + 1)
    tokens = quarters(random, (ranks * options.tokens, options.hidden))
    directions = random.standard_normal((options.hidden, options.hidden)) / options.hidden**0.5
    return tokens, np.sin(tokens @ directions).astype("f4")


def reference(tokens: Array, targets: Array, parameters: Parameters, k: int) -> tuple[Array, Gradients]:
    """Return results and gradients by NumPy, in double precision, on one rank."""
    x, y = tokens.astype("f8"), targets.astype("f8")
    router, up, down = (array.astype("f8") for array in parameters)
    scores = x @ router
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(scores, ids, axis=1)
    weights = np.exp(best - best.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    chosen = [np.nonzero(ids == expert) for expert in range(len(up))]
    hidden = [np.maximum(x[token] @ up[expert], 0) for expert, (token, _) in enumerate(chosen)]
    results = np.zeros((*ids.shape, x.shape[1]))
    for expert, (token, choice) in enumerate(chosen):
        results[token, choice] = hidden[expert] @ down[expert]
    out = (weights[:, :, None] * results).sum(axis=1)

    d_out = (out - y) / len(x)
    d_x, d_up, d_down = np.zeros_like(x), np.zeros_like(up), np.zeros_like(down)
    for expert, (token, choice) in enumerate(chosen):
        d_result = weights[token, choice, None] * d_out[token]
        d_hidden = (d_result @ down[expert].T) * (hidden[expert] > 0)
        d_down[expert], d_up[expert] = hidden[expert].T @ d_result, x[token].T @ d_hidden
        np.add.at(d_x, token, d_hidden @ up[expert].T)
    d_weights = (results * d_out[:, None]).sum(axis=2)
    d_best = weights * (d_weights - (weights * d_weights).sum(axis=1, keepdims=True))
    d_scores = np.zeros_like(scores)
    np.put_along_axis(d_scores, ids, d_best, axis=1)
    return out, Gradients(d_x + d_scores @ router.T, x.T @ d_scores, d_up, d_down)


def as_shown(options: argparse.Namespace, ranks: int) -> str:
    """Return the setting as text."""
    return f"{options.experts} experts and {ranks * options.tokens} tokens on {ranks} ranks, {options.k} for each token"


def draw(options: argparse.Namespace, comm: Any, losses: list[float], loads: Array) -> None:
    """Draw how the error falls, and how many rows each expert computes."""
    import matplotlib  # noqa: PLC0415  only rank 0 draws

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    figure.suptitle(f"Mixture-of-experts layer: {as_shown(options, comm.size)}", fontsize=13)
    left.plot(losses, color="#2171b5")
    left.set(title="Error while it learns", xlabel="step", ylabel="mean squared error / 2", yscale="log")
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, loads.shape[1]))
    right.stackplot(range(len(loads)), loads.T, colors=colours)
    right.set(title="Rows of each expert, first expert below", xlabel="step", ylabel="rows", xlim=(0, len(loads) - 1))
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    sign(figure, comm)
    figure.savefig(options.output, dpi=130)
    plt.close(figure)
