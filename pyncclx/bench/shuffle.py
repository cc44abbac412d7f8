"""python -m pyncclx bench-shuffle: time dispatch and combine of token shuffles over tokens a rank, beside NCCL.

Every rank has as many tokens, each with k different experts. Times are microseconds of one operation on the slowest
rank. GB/s are bytes that a rank receives from others, by time: a token counts once for each rank that it travels to.
"again" is a dispatch with the handle of an earlier one. Of hidden, k, experts, routing and blocks several can be given:
all combinations are timed, or, with --one-at-a-time, what differs from the first of each in one.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from ..communicator.communicator import Communicator
from ..tokens.row_types import FLOAT8, GROUP, ITEMSIZE, array_type
from . import environment, shuffle_peers, shuffle_plot, timing
from .memory import array_module

ROUTINGS = ("uniform", "zipf", "one", "trace")
TOKENS = (1, 4, 16, 64, 128, 256, 1024, 4096, 8192)
COLUMNS = f"{'tokens':>7} {'blocks':>6} {'dispatch':>9} {'GB/s':>6} {'again':>8} {'combine':>8} {'GB/s':>6}"


@dataclass(frozen=True)
class Setting:
    """What is timed over tokens: a shuffle, and who chooses whom."""

    hidden: int
    k: int
    routing: str
    experts: int
    dtype: str
    rows_dtype: str
    layout: str
    mode: str  # graph or eager

    def varies(self) -> tuple[Any, ...]:
        """What the command line can give several of."""
        return self.hidden, self.k, self.experts, self.routing, self.mode


def add_command(commands: Any) -> None:
    """Add `bench-shuffle` to the subcommands of an argument parser."""
    parser = commands.add_parser("bench-shuffle", help="time token shuffles over tokens a rank", description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, metavar="N", help="tokens of each rank")
    parser.add_argument("--hidden", type=int, nargs="+", default=[7168], metavar="N", help="elements of a token")
    parser.add_argument("--k", type=int, nargs="+", default=[8], metavar="N", help="experts for each token (default 8)")
    parser.add_argument("--experts", type=int, nargs="+", default=[256], metavar="N", help="of all ranks")
    parser.add_argument("--dtype", default="bfloat16", help="of the tokens (default bfloat16)")
    parser.add_argument("--rows-dtype", default=FLOAT8, help=f"of the rows (default {FLOAT8})")
    parser.add_argument("--routing", nargs="+", choices=ROUTINGS, default=["uniform"], help="who chooses whom")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="choices of --routing trace: .npy, (tokens, k)")
    parser.add_argument(
        "--one-at-a-time",
        type=int,
        nargs="+",
        metavar="N",
        help="all --tokens in the first setting only, these in settings that differ in one option (also in --graph)",
    )
    parser.add_argument("--layout", choices=("expert", "source"), default="expert", help="of the rows")
    parser.add_argument("--blocks", type=int, nargs="+", default=[None], metavar="N", help="of the kernels")
    parser.add_argument("-n", "--iters", type=int, default=20, help="operations timed together (default 20)")
    parser.add_argument("-w", "--warmup_iters", type=int, default=5, help="operations before (default 5)")
    parser.add_argument("--against", choices=["nccl"], help="time NCCL too, through PyTorch, in the same dtype")
    parser.add_argument("--graph", action="store_true", help="time replays of a captured CUDA graph")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw times over tokens, GB/s over blocks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Time what the command line asks for."""
    comm = Communicator(MPI.COMM_WORLD)
    comm.select_device()
    if comm.device == "host" and (arguments.graph or arguments.against):
        raise SystemExit("the host device has neither CUDA graphs nor NCCL; leave --graph and --against out")
    if arguments.dtype == "bfloat16":
        importlib.import_module("ml_dtypes")  # which tells NumPy of it
    peers = shuffle_peers.Peers(comm) if arguments.against else None
    about = environment.of(comm) | {"mode": "graph" if arguments.graph else "eager"}
    if comm.rank == 0:
        print(f"# {environment.ranks(about)}")
    first, *others = settings(arguments)
    few = arguments.one_at_a_time
    results = sweep(comm, first, arguments.tokens, arguments, peers)
    results += [row for each in others for row in sweep(comm, each, few or arguments.tokens, arguments, peers)]
    if comm.rank == 0:
        environment.write_json(arguments.json, about, {"results": results})
        if arguments.plot:
            shuffle_plot.write(arguments.plot, about, results)
    if peers:
        peers.close()


def settings(arguments: argparse.Namespace) -> list[Setting]:
    """All that the command line asks for; the first of each option first."""
    modes = (
        ["graph", "eager"] if arguments.graph and arguments.one_at_a_time else ["graph" if arguments.graph else "eager"]
    )
    constant = arguments.dtype, arguments.rows_dtype, arguments.layout
    asked = itertools.product(arguments.hidden, arguments.k, arguments.routing, arguments.experts, modes)
    every = [Setting(hidden, k, routing, experts, *constant, mode) for hidden, k, routing, experts, mode in asked]
    first = every[0].varies()
    differing = [sum(a != b for a, b in zip(each.varies(), first, strict=True)) for each in every]
    return [each for each, number in zip(every, differing, strict=True) if number < 2 or not arguments.one_at_a_time]


def sweep(
    comm: Any, setting: Setting, tokens: list[int], arguments: argparse.Namespace, peers: Any
) -> list[dict[str, Any]]:
    """Time one setting, and print a table."""
    if comm.rank == 0:
        mode = "in a replayed graph" if setting.mode == "graph" else "eager"
        print(f"# hidden {setting.hidden}, top {setting.k} of {setting.experts}, {mode}")
        print(f"# {setting.dtype}, rows {setting.rows_dtype}, {setting.routing} routing; times in us")
        print(COLUMNS + (shuffle_peers.COLUMNS if peers else ""), flush=True)
    return [row for number in tokens for row in measure(comm, number, setting, arguments, peers)]


def choose(setting: Setting, tokens: int, rank: int, trace: Path | None = None) -> np.ndarray[Any, Any]:
    """Different experts for each token of a rank.

    Raises
    ------
    ValueError
        If a trace has less choices for a token, or other experts.
    """
    random = np.random.default_rng([7, rank, tokens])
    if setting.routing == "trace":
        recorded = np.load(trace)[:, : setting.k] if trace else np.empty((0, 0))
        if recorded.shape[1:] != (setting.k,) or recorded.max() >= setting.experts:
            raise ValueError(f"--routing trace wants --trace with {setting.k} of {setting.experts} experts a token")
        return np.ascontiguousarray(recorded[(rank * tokens + np.arange(tokens)) % len(recorded)], np.int64)
    if setting.routing == "one":  # all to the first experts, which are on the first rank
        return np.tile(np.arange(setting.k), (tokens, 1))
    score = random.gumbel(size=(tokens, setting.experts))
    if setting.routing == "zipf":
        score -= np.log1p(np.arange(setting.experts))
    return np.ascontiguousarray(np.argsort(-score, axis=1)[:, : setting.k]).astype(np.int64)


def measure(
    comm: Any, tokens: int, setting: Setting, arguments: argparse.Namespace, peers: Any
) -> list[dict[str, Any]]:
    """Time one number of tokens with all numbers of blocks, and print their lines; the peers once."""
    xp, dtype = array_module(comm), array_type(setting.dtype)
    mine = choose(setting, tokens, comm.rank, arguments.trace)
    ranks = [each * comm.size // setting.experts for each in MPI.Comm.allgather(comm, mine)]
    x = xp.asarray(np.random.default_rng(comm.rank).standard_normal((tokens, setting.hidden), "f4").astype(dtype))
    chosen, weights = xp.asarray(mine), xp.full((tokens, setting.k), 1 / setting.k, "f4")
    rows = []
    for blocks in arguments.blocks:
        row = asdict(setting) | {"tokens": tokens, "blocks": blocks}
        row |= time_shuffle(comm, (x, chosen, weights), ranks, setting, arguments, blocks)
        if peers and blocks == arguments.blocks[0]:
            row |= peers.measure(x, chosen, ranks, setting, arguments)
        if comm.rank == 0:
            print_row(row)
        rows.append(row)
    return rows


def time_shuffle(
    comm: Any, arrays: Any, ranks: list[Any], setting: Setting, arguments: argparse.Namespace, blocks: int | None
) -> dict[str, float]:
    """Microseconds of a dispatch, of one on known ways, and of a combine; and what they move."""
    (x, chosen, weights), queue = arrays, timing.queue_of(comm)
    most = max(sum(int((each == rank).sum()) for each in ranks) for rank in range(comm.size))
    out = array_module(comm).empty_like(x)

    def time(operation: Any) -> float:
        iters = arguments.iters if len(x) < 1024 else max(3, arguments.iters // 4)
        return timing.time(comm, queue, operation, iters, arguments.warmup_iters, graph=setting.mode == "graph").most

    with comm.Create_token_shuffle(
        *(setting.experts, max(most, 1), setting.hidden, setting.dtype),
        k=setting.k,
        max_tokens=len(x),
        rows_dtype=setting.rows_dtype,
        layout=setting.layout,
        blocks=blocks,
    ) as shuffle:
        _, handle = shuffle.dispatch(x, chosen, weights)
        results = array_module(comm).ones((shuffle.capacity, setting.hidden), x.dtype)
        row = {"dispatch_us": time(lambda: shuffle.dispatch(x, chosen, weights))}
        row["again_us"] = time(lambda: shuffle.dispatch(x, handle=handle))
        row["combine_us"] = time(lambda: shuffle.combine(results, handle, out=out))
    groups = -(-setting.hidden // GROUP) if setting.rows_dtype == FLOAT8 else 0
    there, back = traffic(ranks)
    row["dispatch_nbytes"] = there * (setting.hidden * ITEMSIZE[setting.rows_dtype] + 4 * groups)
    row["combine_nbytes"] = back * setting.hidden * ITEMSIZE[setting.dtype]
    return row


def traffic(ranks: list[np.ndarray[Any, Any]]) -> tuple[int, int]:
    """Tokens that the busiest rank receives from others, and parts of results that come back to the busiest one."""
    moves = np.array([[int((each == rank).any(axis=1).sum()) for rank in range(len(ranks))] for each in ranks])
    np.fill_diagonal(moves, 0)
    return int(moves.sum(axis=0).max()), int(moves.sum(axis=1).max())


def print_row(row: dict[str, Any]) -> None:
    """Print one number of tokens; of the peers their times."""
    dispatch, combine = (row[f"{name}_nbytes"] / row[f"{name}_us"] / 1e3 for name in ("dispatch", "combine"))
    text = f"{row['tokens']:>7} {row['blocks'] or '':>6} {row['dispatch_us']:>9.1f} {dispatch:>6.0f} "
    text += f"{row['again_us']:>8.1f} {row['combine_us']:>8.1f} {combine:>6.0f}"
    print(text + shuffle_peers.in_words(row), flush=True)
