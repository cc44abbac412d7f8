"""python -m pyncclx bench-shuffle: time dispatch and combine of token shuffles.

Every rank has the same number of tokens, each with k different experts. Times are microseconds of one operation on the
slowest rank. GB/s are the bytes that a rank receives from others, divided by the time; a token counts once for each
rank that it is sent to. "again" is a dispatch with an earlier dispatch's handle. NCCL can be timed in the same run. The
options hidden, k, experts, routing and blocks accept several values. All combinations are timed, or, with
--one-at-a-time, those that differ from the first in one value.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ...tokens.settings import FLOAT8, GROUP, ITEMSIZE, array_type
from . import environment, plot, shuffle_peers, timing
from .environment import Row
from .memory import array_module

ROUTINGS = ("uniform", "zipf", "one", "trace")
TOKENS = (1, 4, 16, 64, 128, 256, 1024, 4096, 8192)
COLUMNS = f"{'tokens':>7} {'blocks':>6} {'dispatch':>9} {'GB/s':>6} {'again':>8} {'combine':>8} {'GB/s':>6}"
# From this number of tokens on, only a quarter of the operations is timed.
_MANY_TOKENS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    add = parser.add_argument
    add("--tokens", type=int, nargs="+", default=TOKENS, metavar="N", help="tokens of each rank")
    add("--hidden", type=int, nargs="+", default=[7168], metavar="N", help="elements of a token")
    add("--k", type=int, nargs="+", default=[8], metavar="N", help="experts for each token (default 8)")
    add("--experts", type=int, nargs="+", default=[256], metavar="N", help="number of experts of all ranks")
    add("--dtype", default="bfloat16", help="type of the tokens (default bfloat16)")
    add("--rows-dtype", default=FLOAT8, help=f"type of the rows (default {FLOAT8})")
    add("--routing", nargs="+", choices=ROUTINGS, default=["uniform"], help="how tokens choose experts")
    add("--trace", type=Path, metavar="FILE", help="choices of --routing trace: .npy, (tokens, k)")
    add(
        "--one-at-a-time",
        type=int,
        nargs="+",
        metavar="N",
        help="all --tokens in the first setting only, these in settings that differ in one option (also in --graph)",
    )
    add("--layout", choices=("expert", "source"), default="expert", help="layout of the rows")
    add("--blocks", type=int, nargs="+", default=[None], metavar="N", help="number of the kernels' blocks")
    add("-n", "--iters", type=int, default=20, help="operations timed together (default 20)")
    add("-w", "--warmup_iters", type=int, default=5, help="operations before (default 5)")
    add("--against", choices=["nccl"], help="time NCCL too, through PyTorch, in the same dtype")
    add("--graph", action="store_true", help="time replays of a captured CUDA graph")
    add("--json", type=Path, metavar="FILE", help="write the results")
    add("--plot", type=Path, metavar="FILE", help="draw times over tokens, GB/s over blocks")


def run(arguments: argparse.Namespace) -> None:
    """Run the measurements of the command line."""
    comm = environment.ranks_on_devices()
    if comm.device == "host" and (arguments.graph or arguments.against):
        raise SystemExit("the host device has neither CUDA graphs nor NCCL; leave --graph and --against out")
    if arguments.dtype == "bfloat16":
        # The import registers the type with NumPy.
        importlib.import_module("ml_dtypes")
    peers = shuffle_peers.Peers(comm) if arguments.against else None
    about = environment.of(comm) | {"mode": "graph" if arguments.graph else "eager"}
    environment.say(comm, f"# {environment.ranks(about)}")
    first, *others = settings_of(arguments)
    bench = _Bench(comm, arguments, peers)
    results = bench.sweep(first, arguments.tokens)
    for setting in others:
        results += bench.sweep(setting, arguments.one_at_a_time or arguments.tokens)
    environment.write_files(comm, arguments, about, results, plot.write_shuffles)
    if peers:
        peers.close()


class Setting(NamedTuple):
    """A token shuffle, and how its tokens choose experts.

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
        Types of the tokens, and of the rows that are sent.
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


def settings_of(arguments: argparse.Namespace) -> list[Setting]:
    """Return all settings of the command line, beginning with the first values."""
    modes = ["graph" if arguments.graph else "eager"]
    if arguments.graph and arguments.one_at_a_time:
        modes.append("eager")
    constant = arguments.dtype, arguments.rows_dtype, arguments.layout
    values = itertools.product(arguments.hidden, arguments.k, arguments.routing, arguments.experts, modes)
    settings = [Setting(hidden, k, routing, experts, *constant, mode) for hidden, k, routing, experts, mode in values]
    if not arguments.one_at_a_time:
        return settings
    return [each for each in settings if sum(a != b for a, b in zip(each, settings[0], strict=True)) < 2]


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
    """Return how many tokens and how many results the busiest rank receives.

    Tokens and partial results within a rank do not count. The busiest rank may be a different one for each number.

    `ranks_chosen` has the ranks of the experts that each rank's tokens choose.
    """
    size = len(ranks_chosen)
    moves = np.array([[int((each == rank).any(axis=1).sum()) for rank in range(size)] for each in ranks_chosen])
    np.fill_diagonal(moves, 0)
    return int(moves.sum(axis=0).max()), int(moves.sum(axis=1).max())


class _Bench:
    """Measurements of token shuffles by the command line's options (collective)."""

    def __init__(self, comm: Any, arguments: argparse.Namespace, peers: shuffle_peers.Peers | None) -> None:
        self._comm, self._arguments, self._peers = comm, arguments, peers
        self._xp, self._queue = array_module(comm), timing.queue_of(comm)

    def sweep(self, setting: Setting, tokens: list[int]) -> list[Row]:
        """Time one setting over numbers of tokens, and print a table."""
        mode = "in a replayed graph" if setting.mode == "graph" else "eager"
        environment.say(
            self._comm,
            f"# hidden {setting.hidden}, top {setting.k} of {setting.experts}, {mode}",
            f"# {setting.dtype}, rows {setting.rows_dtype}, {setting.routing} routing; times in us",
            COLUMNS + (shuffle_peers.COLUMNS if self._peers else ""),
        )
        return [row for number in tokens for row in self._measure(setting, number)]

    def _measure(self, setting: Setting, tokens: int) -> list[Row]:
        """Time a number of tokens for all numbers of blocks; time the peers once.

        Print a line for each number of blocks.
        """
        comm, xp, dtype = self._comm, self._xp, array_type(setting.dtype)
        mine = choose(setting, tokens, comm.rank, self._arguments.trace)
        ranks = [each * comm.size // setting.experts for each in MPI.Comm.allgather(comm, mine)]
        x = xp.asarray(np.random.default_rng(comm.rank).standard_normal((tokens, setting.hidden), "f4").astype(dtype))
        chosen = xp.asarray(mine)
        rows: list[Row] = []
        for blocks in self._arguments.blocks:
            row = setting._asdict() | {"tokens": tokens, "blocks": blocks}
            row |= self._time_shuffle(setting, x, chosen, ranks, blocks)
            row |= traffic_nbytes(setting, ranks)
            if self._peers and not rows:
                row |= self._peers.measure(x, chosen, ranks, setting, self._arguments)
            environment.say(comm, line(row))
            rows.append(row)
        return rows

    def _time_shuffle(self, setting: Setting, x: Any, chosen: Any, ranks: list[Any], blocks: int | None) -> Row:
        """Return the microseconds of a dispatch, a dispatch with a handle, and a combine."""
        comm, weights = self._comm, self._xp.full(chosen.shape, 1 / setting.k, "f4")
        capacity = max(sum(int((each == rank).sum()) for each in ranks) for rank in range(comm.size))
        out, graph = self._xp.empty_like(x), setting.mode == "graph"
        with comm.Create_token_shuffle(
            *(setting.experts, max(capacity, 1), setting.hidden, setting.dtype),
            k=setting.k,
            max_tokens=len(x),
            rows_dtype=setting.rows_dtype,
            layout=setting.layout,
            blocks=blocks,
        ) as shuffle:
            _, handle = shuffle.dispatch(x, chosen, weights)
            results = self._xp.ones((shuffle.capacity, setting.hidden), x.dtype)
            return {
                "dispatch_us": self._time(lambda: shuffle.dispatch(x, chosen, weights), len(x), graph=graph),
                "again_us": self._time(lambda: shuffle.dispatch(x, handle=handle), len(x), graph=graph),
                "combine_us": self._time(lambda: shuffle.combine(results, handle, out=out), len(x), graph=graph),
            }

    def _time(self, call: Callable[[], Any], tokens: int, *, graph: bool) -> float:
        given = self._arguments
        iters = given.iters if tokens < _MANY_TOKENS else max(3, given.iters // 4)
        return timing.time(self._comm, self._queue, call, iters, given.warmup_iters, graph=graph).slowest


def traffic_nbytes(setting: Setting, ranks: list[Any]) -> Row:
    """Return the bytes that the busiest rank receives in a dispatch, and in a combine."""
    rows, results = traffic(ranks)
    groups = -(-setting.hidden // GROUP) if setting.rows_dtype == FLOAT8 else 0
    return {
        "dispatch_nbytes": rows * (setting.hidden * ITEMSIZE[setting.rows_dtype] + 4 * groups),
        "combine_nbytes": results * setting.hidden * ITEMSIZE[setting.dtype],
    }


def line(row: Row) -> str:
    """Format the line of one number of tokens."""
    dispatch, combine = (row[f"{name}_nbytes"] / row[f"{name}_us"] / 1e3 for name in ("dispatch", "combine"))
    text = f"{row['tokens']:>7} {row['blocks'] or '':>6} {row['dispatch_us']:>9.1f} {dispatch:>6.0f} "
    text += f"{row['again_us']:>8.1f} {row['combine_us']:>8.1f} {combine:>6.0f}"
    return text + shuffle_peers.columns_of(row)
