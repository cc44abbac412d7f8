"""Token shuffle: the words of a text travel to experts on other ranks, and come back.

    mpiexec -n 4 python examples/token_shuffle.py

This is the communication of a mixture-of-experts model, small enough to read. Every rank holds a part of the
text, one row of numbers a word, and a part of the experts. At each step

1. a router chooses the top k experts of every row, and sorts the rows by them;
2. the rows go to the ranks of their experts: an all-to-all whose counts are computed, sent and used on the GPU,
   while the host knows none of them;
3. the experts transform what has arrived;
4. the results go back the same way, and each row adds up its own, weighted.

In the end each rank computes its rows again with NumPy, all experts and no communication, and compares.
On a GPU the arrays are CuPy's; with PYNCCLX_DEVICE=host the same program runs without a GPU, on NumPy arrays.
It needs `pip install 'pyncclx[examples]'`.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import token_shuffle_report as report
from mpi4py import MPI
from tqdm import tqdm

import pyncclx

README = Path(__file__).resolve().parent.parent / "README.md"
LAYERS = 8  # different routers, used in turn: the routing changes from step to step
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
Array = Any  # of NumPy or CuPy, whichever `xp` is


@dataclass
class Model:
    """The part that all ranks know: routers, experts, and which rank has which expert."""

    weight: Array  # (LAYERS, hidden, experts): the routers
    bias: Array  # (experts,): what --skew adds
    scale: Array  # (experts, hidden); expert e makes tanh(scale[e] * row + shift[e])
    shift: Array  # (experts, hidden)
    first_expert: Array  # (ranks + 1,): rank r has the experts first_expert[r] to first_expert[r + 1]

    def to(self, xp: Any) -> Model:
        """The same in arrays of `xp`."""
        return Model(*(xp.asarray(array) for array in vars(self).values()))


@dataclass
class Inbox:
    """What the all-to-alls write to; made once, for the worst case that all rows go to one rank."""

    rows: Array  # (capacity, hidden): arrived, rank 0's first
    experts: Array  # (capacity,): the expert of each of them
    counts: Array  # (ranks,): how many came from each rank …
    displs: Array  # (ranks,): … and where they begin
    total: Array  # (1,): how many came in all
    dropped: Array  # (ranks,): how many found no room
    results: Array  # (own tokens * k, hidden): come back from the experts


def main() -> int:
    """Run the shuffle, check it, report; 1 if the check fails."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    options = parse(comm)
    xp = array_module(comm)
    tokens = read_tokens(comm, options.text)
    model = make_model(options, comm.size)
    own = embed(tokens, options)[slice(*shares(len(tokens), comm.size)[comm.rank : comm.rank + 2])]
    if comm.rank == 0:
        report.print_header(comm, options, len(tokens), len(np.unique(tokens)))

    dtype = np.dtype(options.dtype)
    rows, on_device = xp.asarray(own.astype(dtype)), model.to(xp)
    inbox = make_inbox(xp, comm.size, len(tokens) * options.k, rows, options.k)
    sent, result = xp.zeros(comm.size, "i8"), xp.zeros(rows.shape, "f4")
    seconds = []
    for step in tqdm(range(options.steps), "steps", leave=False, delay=1, disable=comm.rank != 0):
        begin = time.perf_counter()
        counts, output = shuffle(comm, xp, rows, on_device, step, options.k, inbox)
        sent += counts
        result += output
        comm.synchronize()
        seconds.append(time.perf_counter() - begin)
    shuffle_seconds = time_shuffle(comm, xp, rows, counts, inbox, options)

    error = compare(comm, result, own, model, options)
    received = inbox.total, inbox.dropped
    passed = report.write(comm, xp, options, sent, received, seconds, shuffle_seconds, error, tolerance(options))
    return 0 if passed else 1


# One step


def shuffle(comm: Any, xp: Any, rows: Array, model: Model, step: int, k: int, inbox: Inbox) -> tuple[Array, Array]:
    """Send each row through its experts; returns the rows sent to each rank, and the rows' results.

    Nothing in here waits for the device or reads from it: the host only enqueues.
    """
    experts, weights = route(xp, rows, model, step, k)
    order = xp.argsort(experts.ravel(), kind="stable")  # by expert, and so by rank
    back = xp.argsort(order, kind="stable")  # where each (row, choice) is in that order
    experts = experts.ravel()[order].astype("i4")
    counts = xp.diff(xp.searchsorted(experts, model.first_expert)).astype("i8")

    dispatch(comm, rows[order // k], experts, counts, inbox)
    outputs = apply_experts(xp, inbox.rows, inbox.experts, model)
    combine(comm, outputs, inbox)

    results = inbox.results[back].reshape(len(rows), k, -1).astype("f4")
    return counts, (results * weights[:, :, None]).sum(axis=1)


def route(xp: Any, rows: Array, model: Model, step: int, k: int) -> tuple[Array, Array]:
    """The top k experts of every row, and their weights, which add up to 1: two arrays of the shape (rows, k)."""
    scores = rows.astype("f4") @ model.weight[step % LAYERS].astype("f4") + model.bias.astype("f4")
    experts = xp.argsort(-scores, axis=1, kind="stable")[:, :k]
    best = xp.take_along_axis(scores, experts, axis=1) / np.float32(rows.shape[1] ** 0.5)
    weights = xp.exp(best - best[:, :1])
    return experts, weights / weights.sum(axis=1, keepdims=True)


def dispatch(comm: Any, rows: Array, experts: Array, counts: Array, inbox: Inbox) -> None:
    """Send the rows, which are sorted by rank, `counts` of them to each; then the number of each row's expert."""
    comm.Alltoallv(
        [rows, counts],
        [inbox.rows, (inbox.counts, inbox.displs)],
        layout="packed",
        total=inbox.total,
        status=inbox.dropped,
    )
    comm.Alltoallv([experts, counts], inbox.experts, layout="packed")


def apply_experts(xp: Any, rows: Array, experts: Array, model: Model) -> Array:
    """Every row's expert: all of the inbox, for only the device knows how full it is. The rest is never sent."""
    outputs = xp.tanh(rows.astype("f4") * model.scale[experts] + model.shift[experts])
    return outputs.astype(rows.dtype)


def combine(comm: Any, outputs: Array, inbox: Inbox) -> None:
    """Send back what has come: the counts received are the counts to send. Packed again, it is in the old order."""
    comm.Alltoallv([outputs, (inbox.counts, inbox.displs)], inbox.results, layout="packed")


def time_shuffle(comm: Any, xp: Any, rows: Array, counts: Array, inbox: Inbox, options: argparse.Namespace) -> float:
    """Seconds of there and back for the rows of the last step, without router and experts; the slowest rank's."""
    flat = xp.repeat(rows, options.k, axis=0)
    experts = xp.zeros(len(flat), "i4")
    comm.synchronize()
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(options.steps):
        dispatch(comm, flat, experts, counts, inbox)
        combine(comm, inbox.rows, inbox)
    comm.synchronize()
    return comm.allreduce(time.perf_counter() - begin, MPI.MAX) / options.steps


# The check


def compare(comm: Any, result: Array, own: Array, model: Model, options: argparse.Namespace) -> float:
    """The largest error of any rank's result against `reference`."""
    there = np.asarray(result.get() if hasattr(result, "get") else result, "f8")
    error = np.abs(there - reference(own, model, options)).max(initial=0.0)
    return comm.allreduce(float("inf") if np.isnan(error) else float(error), MPI.MAX)


def reference(own: Array, model: Model, options: argparse.Namespace) -> Array:
    """The same by NumPy in double precision: expert by expert, with no sorting and no communication."""
    result = np.zeros(own.shape)
    for step in range(options.steps):
        scores = own @ model.weight[step % LAYERS] + model.bias
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, : options.k]
        best = np.take_along_axis(scores, chosen, axis=1) / own.shape[1] ** 0.5
        weights = np.exp(best - best[:, :1])
        weights /= weights.sum(axis=1, keepdims=True)
        for expert in range(options.experts):
            token, choice = np.nonzero(chosen == expert)
            output = np.tanh(own[token] * model.scale[expert] + model.shift[expert])
            result[token] += weights[token, choice, None] * output
    return result


def tolerance(options: argparse.Namespace) -> float:
    """A step adds a number below 1, right to a few roundings of the dtype."""
    return 4 * EPSILON[options.dtype] * options.steps


# Before the first step


def make_model(options: argparse.Namespace, ranks: int) -> Model:
    """Routers and experts, the same on every rank.

    The router's numbers are multiples of 1/4, as the embeddings are. Their sums of products are exact in single
    precision, in whatever order they are added: every device chooses the same experts.
    """
    random = np.random.default_rng(options.seed)
    hidden, experts = options.hidden, options.experts
    popularity = -options.skew * np.log1p(np.arange(experts)) * hidden**0.5
    return Model(
        weight=quarters(random, (LAYERS, hidden, experts)),
        bias=np.round(4 * popularity) / 4,
        scale=random.standard_normal((experts, hidden)).astype("f4"),
        shift=random.standard_normal((experts, hidden)).astype("f4"),
        first_expert=shares(experts, ranks),
    )


def make_inbox(xp: Any, ranks: int, capacity: int, rows: Array, k: int) -> Inbox:
    """Arrays for all steps."""
    counts, displs, dropped = (xp.zeros(ranks, "i8") for _ in range(3))
    return Inbox(
        rows=xp.zeros((capacity, rows.shape[1]), rows.dtype),
        experts=xp.zeros(capacity, "i4"),
        counts=counts,
        displs=displs,
        total=xp.zeros(1, "i8"),
        dropped=dropped,
        results=xp.zeros((len(rows) * k, rows.shape[1]), rows.dtype),
    )


def embed(tokens: Array, options: argparse.Namespace) -> Array:
    """A row for each token: a random one for its word, plus the one before's: the same word differs by context."""
    random = np.random.default_rng(options.seed + 1)
    table = quarters(random, (int(tokens.max()) + 1, options.hidden))
    return table[tokens] + table[np.roll(tokens, 1)]


def quarters(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normally distributed multiples of 1/4, between -4 and 4."""
    return np.clip(np.round(4 * random.standard_normal(shape)) / 4, -4, 4)


def shares(count: int, ranks: int) -> Array:
    """Divide `count` things: rank r has those from item r to item r + 1 of the result."""
    return np.arange(ranks + 1) * count // ranks


def read_tokens(comm: Any, path: Path) -> Array:
    """Words and punctuation of a file, numbered in the order in which they first appear; rank 0 reads."""
    words = re.findall(r"\w+|[^\w\s]", path.read_text("utf-8", "replace").lower()) if comm.rank == 0 else None
    words = comm.bcast(words)
    if not words:
        stop(comm, f"{path} has no words")
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(word, len(numbers)) for word in words])


def array_module(comm: Any) -> Any:
    """CuPy on a GPU, which becomes this rank's, or NumPy on the host device."""
    try:
        comm.select_device()
        return np if comm.team.device.name == "host" else importlib.import_module("cupy")
    except ImportError as error:
        return stop(comm, f"{error}; without a GPU, set PYNCCLX_DEVICE=host")


def stop(comm: Any, text: str) -> None:
    """End all ranks; rank 0 says why."""
    raise SystemExit(f"token_shuffle: {text}" if comm.rank == 0 else 1)


def parse(comm: Any) -> argparse.Namespace:
    """The command line, read by rank 0 alone, so that help and errors appear once."""
    options: Any = None
    if comm.rank == 0:
        try:
            options = report.parse(README)
        except SystemExit as end:
            options = end.code
    options = comm.bcast(options)
    if not isinstance(options, argparse.Namespace):
        sys.exit(options)
    return options


if __name__ == "__main__":
    sys.exit(main())
