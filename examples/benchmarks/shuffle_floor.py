"""Time the parts of a token shuffle of few tokens, each alone: its lower bound.

    mpiexec -n 4 python -m mpi4py examples/benchmarks/shuffle_floor.py [--json results.json]

launch       a kernel that does nothing
trip         an Alltoall of 16 bytes to each rank: a kernel, and one packet to each rank and from each rank
copy         a copy by the driver, on this GPU, of as many bytes as the tokens' rows have
alone        the dispatch and combine of a communicator with only this rank, which has all experts: all that a kernel
             reads, counts and copies, without packets to other ranks
dispatch …   among all ranks; "again" with the handle of an earlier one, which reads no choices and counts nothing

Times are microseconds of one operation on the slowest rank, in replayed graphs of one run. Without GPUs the program
shows that it works, but its times mean nothing.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI

import pyncclx
from pyncclx.tools.bench import environment, shuffle, timing
from pyncclx.tools.bench.memory import array_module

TOKENS = (1, 16, 128)
HIDDEN, K, EXPERTS = 7168, 8, 256
NOTHING = 'extern "C" __global__ void nothing() {}'
COLUMNS = ("launch", "trip", "copy", "dispatch_alone", "combine_alone", "dispatch", "again", "combine")


class Bench:
    """Timer of operations of all ranks, and of this rank alone."""

    def __init__(self) -> None:
        self.comm, self.alone = (pyncclx.Communicator(comm) for comm in (MPI.COMM_WORLD, MPI.COMM_SELF))
        self.comm.select_device()
        self.gpu = self.comm.device != "host"
        self.xp, self.queue = array_module(self.comm), timing.queue_of(self.comm)

    def time(self, call: Callable[[], Any]) -> float:
        """Return the microseconds of a call on the slowest rank."""
        return round(timing.time(self.comm, self.queue, call, 20 if self.gpu else 1, 3, graph=self.gpu).slowest, 2)

    def measure(self, tokens: int, hidden: int) -> dict[str, Any]:
        """Time all parts for one number of tokens. Collective."""
        send, recv = (self.xp.zeros((self.comm.size, 4), "f4") for _ in range(2))
        row: dict[str, Any] = {"tokens": tokens, "launch": self.time(self.nothing())}
        row["trip"] = self.time(lambda: self.comm.Alltoall(send, recv))
        rows, copied = (self.xp.zeros((tokens * K, hidden), "u1") for _ in range(2))
        row["copy"] = self.time(lambda: self.copy(copied, rows))
        times = self.shuffled(self.alone, tokens, hidden)
        row |= {f"{name}_alone": time for name, time in times.items() if name != "again"}
        return row | self.shuffled(self.comm, tokens, hidden)

    def nothing(self) -> Callable[[], Any]:
        """Launch a kernel that does nothing."""
        if not self.gpu:
            return lambda: None
        kernel = self.xp.RawKernel(NOTHING, "nothing")
        return lambda: kernel((1,), (32,), ())

    def copy(self, to: Any, array: Any) -> None:
        """Copy an array by the driver."""
        if self.gpu:
            to.data.copy_from_device_async(array.data, array.nbytes)
        else:
            to[...] = array

    def shuffled(self, comm: Any, tokens: int, hidden: int) -> dict[str, float]:
        """Return a token shuffle's operations: 8-bit floats sent, bfloat16 sent back."""
        setting = shuffle.Setting(hidden, K, "uniform", EXPERTS, "bfloat16", "float8_e4m3", "expert", "graph")
        chosen = self.xp.asarray(shuffle.choose(setting, tokens, self.comm.rank))
        weights = self.xp.full((tokens, K), 1 / K, "f4")
        x = self.xp.asarray(np.ones((tokens, hidden), ml_dtypes.bfloat16))
        capacity, out = tokens * K * comm.size, self.xp.empty_like(x)
        with comm.Create_token_shuffle(
            EXPERTS, capacity, hidden, k=K, max_tokens=tokens, rows_dtype="float8_e4m3"
        ) as shuffled:
            _, handle = shuffled.dispatch(x, chosen, weights)
            results = self.xp.ones((capacity, hidden), x.dtype)
            return {
                "dispatch": self.time(lambda: shuffled.dispatch(x, chosen, weights)),
                "again": self.time(lambda: shuffled.dispatch(x, handle=handle)),
                "combine": self.time(lambda: shuffled.combine(results, handle, out=out)),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, metavar="N", help="of each rank")
    parser.add_argument("--hidden", type=int, default=HIDDEN, metavar="N", help="of a token (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    options, bench = parser.parse_args(), Bench()
    results = []
    for tokens in options.tokens:
        results.append(bench.measure(tokens, options.hidden))
        if bench.comm.rank == 0:
            print("  ".join(f"{name} {value}" for name, value in results[-1].items()), flush=True)
    if bench.comm.rank == 0:
        about = environment.of(bench.comm) | {"hidden": options.hidden}
        environment.write_json(options.json, about, {"results": results})


if __name__ == "__main__":
    main()
