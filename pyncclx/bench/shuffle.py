"""python -m pyncclx bench-shuffle: time dispatch and combine of token shuffles over tokens a rank, beside NCCL.

Every rank has as many tokens, each with k different experts. Times are microseconds of one operation on the slowest
rank. GB/s are bytes that a rank receives from others, by time: a token counts once for each rank that it travels to.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import Communicator
from ..token_layout import GROUP
from ..token_memory import FLOAT8, ITEMSIZE, array_type
from . import shuffle_peers, timing
from .memory import array_module

ROUTINGS = ("uniform", "zipf", "one")
TOKENS = (1, 4, 16, 64, 128, 256, 1024, 4096, 8192)
COLUMNS = f"{'tokens':>7} {'dispatch':>9} {'GB/s':>6} {'again':>8} {'combine':>8} {'GB/s':>6}"


def add_command(commands: Any) -> None:
    """Add `bench-shuffle` to the subcommands of an argument parser."""
    parser = commands.add_parser("bench-shuffle", help="time token shuffles over tokens a rank", description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, metavar="N", help="tokens of each rank")
    parser.add_argument("--hidden", type=int, default=7168, metavar="N", help="elements of a token (default 7168)")
    parser.add_argument("--k", type=int, default=8, metavar="N", help="experts for each token (default 8)")
    parser.add_argument("--experts", type=int, default=256, metavar="N", help="experts of all ranks (default 256)")
    parser.add_argument("--dtype", default="bfloat16", help="of the tokens (default bfloat16)")
    parser.add_argument("--rows-dtype", default=FLOAT8, help=f"of the rows (default {FLOAT8})")
    parser.add_argument("--routing", choices=ROUTINGS, default="uniform", help="who chooses whom (default uniform)")
    parser.add_argument("--layout", choices=("expert", "source"), default="expert", help="of the rows")
    parser.add_argument("--blocks", type=int, help="of the kernels")
    parser.add_argument("-n", "--iters", type=int, default=20, help="operations timed together (default 20)")
    parser.add_argument("-w", "--warmup_iters", type=int, default=5, help="operations before (default 5)")
    parser.add_argument("--against", choices=["nccl"], help="time NCCL too, through PyTorch, in the same dtype")
    parser.add_argument("--graph", action="store_true", help="time replays of a captured CUDA graph")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
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
    if comm.rank == 0:
        mode = "in a replayed graph" if arguments.graph else "eager"
        print(f"# {comm.size} ranks, hidden {arguments.hidden}, top {arguments.k} of {arguments.experts}, {mode}")
        print(f"# {arguments.dtype}, rows {arguments.rows_dtype}, {arguments.routing} routing; times in us")
        print(COLUMNS + (shuffle_peers.COLUMNS if peers else ""), flush=True)
    results = [measure(comm, tokens, arguments, peers) for tokens in arguments.tokens]
    if comm.rank == 0 and arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        setting = {name: str(value) for name, value in vars(arguments).items() if name != "run"}
        about = {"ranks": comm.size, "device": comm.team.device.identity, "date": datetime.date.today().isoformat()}
        arguments.json.write_text(json.dumps({"environment": about | setting, "results": results}, indent=1) + "\n")
    if peers:
        peers.close()


def choose(arguments: argparse.Namespace, tokens: int, rank: int) -> np.ndarray[Any, Any]:
    """Different experts for each token of a rank."""
    random = np.random.default_rng([7, rank, tokens])
    experts = arguments.experts
    score = random.gumbel(size=(tokens, experts))
    if arguments.routing == "zipf":
        score -= np.log1p(np.arange(experts))
    elif arguments.routing == "one":  # all to the first experts, which are on the first rank
        score -= 1e3 * np.arange(experts)
    return np.ascontiguousarray(np.argsort(-score, axis=1)[:, : arguments.k]).astype(np.int64)


def measure(comm: Any, tokens: int, arguments: argparse.Namespace, peers: Any) -> dict[str, Any]:
    """Time one number of tokens, and print a line."""
    xp = array_module(comm)
    ids = [choose(arguments, tokens, rank) for rank in range(comm.size)]
    ranks = [each * comm.size // arguments.experts for each in ids]
    rows = max(sum(int((each == rank).sum()) for each in ranks) for rank in range(comm.size))
    dtype = array_type(arguments.dtype)
    x = xp.asarray(np.random.default_rng(comm.rank).standard_normal((tokens, arguments.hidden), "f4").astype(dtype))
    chosen, weights = xp.asarray(ids[comm.rank]), xp.full((tokens, arguments.k), 1 / arguments.k, "f4")
    out, queue = xp.empty_like(x), timing.queue_of(comm)

    def time(operation: Any) -> float:
        iters = arguments.iters if tokens < 1024 else max(3, arguments.iters // 4)
        return timing.time(comm, queue, operation, iters, arguments.warmup_iters, graph=arguments.graph).most

    with comm.Create_token_shuffle(
        *(arguments.experts, max(rows, 1), arguments.hidden, arguments.dtype),
        k=arguments.k,
        max_tokens=tokens,
        rows_dtype=arguments.rows_dtype,
        layout=arguments.layout,
        blocks=arguments.blocks,
    ) as shuffle:
        _, handle = shuffle.dispatch(x, chosen, weights)
        results = xp.ones((shuffle.capacity, arguments.hidden), dtype)
        row: dict[str, Any] = {"tokens": tokens}
        row["dispatch_us"] = time(lambda: shuffle.dispatch(x, chosen, weights))
        row["again_us"] = time(lambda: shuffle.dispatch(x, handle=handle))
        row["combine_us"] = time(lambda: shuffle.combine(results, handle, out=out))
    groups = -(-arguments.hidden // GROUP) if arguments.rows_dtype == FLOAT8 else 0
    there, back = traffic(ranks)
    row["dispatch_nbytes"] = there * (arguments.hidden * ITEMSIZE[arguments.rows_dtype] + 4 * groups)
    row["combine_nbytes"] = back * arguments.hidden * ITEMSIZE[arguments.dtype]
    if peers:
        row |= peers.measure(x, chosen, weights, ranks, arguments)
    if comm.rank == 0:
        print_row(row)
    return row


def traffic(ranks: list[np.ndarray[Any, Any]]) -> tuple[int, int]:
    """Tokens that the busiest rank receives from others, and parts of results that come back to the busiest one."""
    moves = np.array([[int((each == rank).any(axis=1).sum()) for rank in range(len(ranks))] for each in ranks])
    np.fill_diagonal(moves, 0)
    return int(moves.sum(axis=0).max()), int(moves.sum(axis=1).max())


def print_row(row: dict[str, Any]) -> None:
    """Print one number of tokens; of the peers their times."""
    dispatch, combine = (row[f"{name}_nbytes"] / row[f"{name}_us"] / 1e3 for name in ("dispatch", "combine"))
    text = f"{row['tokens']:>7} {row['dispatch_us']:>9.1f} {dispatch:>6.0f} {row['again_us']:>8.1f} "
    text += f"{row['combine_us']:>8.1f} {combine:>6.0f}"
    print(text + shuffle_peers.in_words(row), flush=True)
