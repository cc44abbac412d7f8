"""Token shuffle: words of a text go to experts on other ranks; results return.

    mpiexec -n 4 python examples/moe/token_shuffle.py

This is the communication of a mixture-of-experts model, small enough to read. Every rank has a part of the text, one
row of numbers for each word, and some of the experts. In each step

1. a router chooses the k best experts for every row;
2. the rows go to the ranks of their experts; the GPUs compute, exchange and use the counts, and the host never reads
   them;
3. the experts transform the rows that have arrived;
4. the results return by the same routing, and each row adds up its k results, weighted.

At the end every rank computes its rows again with NumPy, with all experts and no communication, and compares.
On GPUs the arrays are CuPy's; with PYNCCLX_DEVICE=host the same program runs without a GPU, on NumPy arrays.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx
import token_shuffle_report as report
from common.program import array_module, read_options, stop, to_host
from token_shuffle_model import EPSILON, LAYERS, Model, embed, make_model, reference, shares, tokenize, tolerance

README = Path(__file__).resolve().parents[2] / "README.md"
Array = Any  # NumPy's or CuPy's, like `xp`


def main() -> int:
    """Run the steps, report, compare; return 1 if the result is wrong."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(comm, parse)
    xp = array_module(comm, options.dtype)
    tokens = tokenize(read_text(comm, options.text))
    first = shares(len(tokens), comm.size)
    own = embed(tokens, options)[first[comm.rank] : first[comm.rank + 1]]
    model = make_model(options, comm.size)
    report.print_header(comm, options, tokens)

    shuffle = Shuffle(comm, xp, xp.asarray(own.astype(options.dtype)), model.to(xp), options.k, len(tokens))
    result, received, seconds = run(comm, shuffle, options.steps)
    moving = time_moving(comm, shuffle, options.steps)
    if options.routing:
        save_routing(comm, shuffle, options.routing)

    matrix = xp.zeros((comm.size, comm.size), "i8")
    comm.Allgather(received, matrix)
    rows_moved = to_host(matrix).T / options.steps
    report.print_results(comm, options, first, rows_moved, seconds, moving, shuffle.mover.explain())
    error = comm.allreduce(largest(to_host(result) - reference(own, model, options)), MPI.MAX)
    fate = int(shuffle.arrived.total[0]), int(shuffle.arrived.dropped.sum())
    passed = report.print_verdict(comm, error, tolerance(options), *fate)
    if comm.rank == 0:
        report.draw(options, comm, rows_moved)
    return 0 if passed else 1


def run(comm: Any, shuffle: Shuffle, steps: int) -> tuple[Array, Array, list[float]]:
    """Return the steps' summed results, rows from each rank, and seconds of each step."""
    result, received = shuffle.xp.zeros(shuffle.rows.shape, "f4"), shuffle.xp.zeros(comm.size, "i8")
    seconds = []
    for number in tqdm(range(steps), "steps", leave=False, delay=1, disable=comm.rank != 0):
        begin = time.perf_counter()
        output, counts = shuffle.step(number)
        result += output
        received += counts
        comm.synchronize()
        seconds.append(comm.allreduce(time.perf_counter() - begin, MPI.MAX))
    return result, received, seconds


class Shuffle:
    """One rank's rows and experts, and what moves rows between ranks.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    xp : module
        numpy or cupy.
    rows : array, shape (own tokens, hidden)
    model : Model
        In arrays of `xp`.
    k : int
        Experts for each row.
    tokens : int
        Tokens of all ranks. There is room for the worst case, in which all tokens come to this rank k times.
    """

    def __init__(self, comm: Any, xp: Any, rows: Array, model: Model, k: int, tokens: int) -> None:
        self.comm, self.xp, self.rows, self.model, self.k = comm, xp, rows, model, k
        experts, hidden = len(model.scale), rows.shape[1]
        most = -(-tokens // comm.size)
        self.mover = comm.Create_token_shuffle(
            experts, tokens * k, hidden, rows.dtype, k=k, max_tokens=most, layout="source"
        )
        self.local_experts = xp.asarray(self.mover.local_experts or [0])

    def step(self, number: int) -> tuple[Array, Array]:
        """Return results of the rows, and the rows from each rank; all stay on the device."""
        self.arrived, handle = self.mover.dispatch(self.rows, *self.route(number))
        results = self.xp.empty(self.rows.shape, "f4")
        self.mover.combine(self.apply_experts(), handle, out=results)
        return results, self.arrived.counts

    def route(self, number: int) -> tuple[Array, Array]:
        """Return every row's k best experts and their weights; both of shape (rows, k)."""
        xp, model = self.xp, self.model
        scores = self.rows.astype("f4") @ model.routers[number % LAYERS] + model.popularity
        experts = xp.ascontiguousarray(xp.argsort(-scores, axis=1, kind="stable")[:, : self.k])
        best = xp.take_along_axis(scores, experts, axis=1) / np.float32(self.rows.shape[1] ** 0.5)
        weights = xp.exp(best - best[:, :1])
        return experts, weights / weights.sum(axis=1, keepdims=True)

    def apply_experts(self) -> Array:
        """Return results for the whole capacity, because the host does not know how much of it is used."""
        experts = self.local_experts[self.arrived.experts]
        scale, shift = self.model.scale[experts], self.model.shift[experts]
        return self.xp.tanh(self.arrived.data.astype("f4") * scale + shift).astype(self.rows.dtype)


def time_moving(comm: Any, shuffle: Shuffle, steps: int) -> tuple[float, int]:
    """Time the last step's shuffle alone; return seconds and rows that changed rank."""
    choices, results = shuffle.route(steps - 1), shuffle.apply_experts()
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        _, handle = shuffle.mover.dispatch(shuffle.rows, *choices)
        shuffle.mover.combine(results, handle)
    comm.synchronize()
    seconds = comm.allreduce(time.perf_counter() - begin, MPI.MAX) / steps
    counts = to_host(shuffle.arrived.counts)
    return seconds, comm.allreduce(int(counts.sum() - counts[comm.rank]))


def save_routing(comm: Any, shuffle: Shuffle, path: Path) -> None:
    """Write the experts of each word, in the order of the words; shape (words, k)."""
    choices = comm.gather(to_host(shuffle.route(0)[0]))
    if comm.rank == 0:
        np.save(path, np.concatenate(choices).astype("i4"))


# Before and after


def parse() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(
        prog="token_shuffle.py",
        description="Send the words of a text to experts on all ranks and back, check the result, time it.",
        epilog="Start it with mpiexec, one rank a GPU; PYNCCLX_DEVICE=host runs it without a GPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--text", type=Path, default=README, metavar="FILE", help="what to read")
    parser.add_argument("--hidden", type=int, default=256, metavar="N", help="numbers in a row")
    parser.add_argument("--experts", type=int, default=8, metavar="N", help="experts on all ranks together")
    parser.add_argument("--k", type=int, default=2, metavar="N", help="experts for each word")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="shuffles there and back")
    parser.add_argument("--skew", type=float, default=0.5, metavar="X", help="preference for the first experts")
    parser.add_argument("--dtype", choices=list(EPSILON), default="float32", help="of the rows on their way")
    parser.add_argument("--routing", type=Path, metavar="FILE", help="write the choices of the first step: .npy")
    parser.add_argument("--output", type=Path, default="token_shuffle.png", metavar="FILE", help="picture to write")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of rows, routers and experts")
    options = parser.parse_args()
    for name in ("hidden", "experts", "k", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be 1 or more")
    if options.hidden % 16:
        parser.error(f"--hidden is {options.hidden}; it must be a multiple of 16")
    if options.k > options.experts:
        parser.error(f"--k is {options.k}, but there are {options.experts} experts")
    if not options.text.is_file():
        parser.error(f"--text: there is no file {options.text}")
    return options


def read_text(comm: Any, path: Path) -> str:
    """Return the file's text, read by rank 0."""
    text: str = comm.bcast(path.read_text("utf-8", "replace") if comm.rank == 0 else None)
    if not text.strip():
        stop(comm, f"there are no words in {path}")
    return text


def largest(errors: Array) -> float:
    """Return the largest error; infinite if a result is NaN."""
    return float(np.nan_to_num(np.abs(errors), nan=np.inf).max(initial=0.0))


if __name__ == "__main__":
    sys.exit(main())
