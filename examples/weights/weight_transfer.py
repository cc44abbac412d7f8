"""Send new weights from ranks that train a model to ranks that use it.

    mpiexec -n 4 python examples/weights/weight_transfer.py [--hidden 1024 2048 4096] [--versions 100]

In reinforcement learning some GPUs train and others generate, and they divide the model differently. Here half of the
ranks are trainers, each with some rows of every matrix. The generators have rows of some matrices, columns of others,
and all of small ones. The program plans once which bytes go where, as a list of contiguous runs. Then one kernel on
each trainer sends a version: its warps put the runs into the generators' memory, and the last block signals the
version's number. Generators have places for two versions. A kernel on their stream waits until all trainers have
signalled a version. After its use another kernel signals to the trainers that its place is free. No host waits for
another.

Every number of a version depends on the version and on its place in the model. The generators check all numbers on the
device, and so detect numbers that are late, early or misplaced. On GPUs the picture shows the time beside that of an
`Allgatherv` of all weights, of which each generator keeps its part, and that of a plain copy of as many bytes. It also
shows generators that compute matrix products for as long as a transfer takes: with one place they wait for each
version, with two the next version arrives while they compute. PYNCCLX_DEVICE=host runs it without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx
import pyncclx.device as d
from common.overlap_report import add_outputs, warn_if_emulated, write_json
from common.program import array_module, read_options, to_host
from common.weight_plan import ITEM, generator, model, plan, trainer
from weight_ways import Point, draw, measure

Array = Any  # NumPy's or CuPy's
BY_VERSION = 0x9E3779B1  # odd; added to each number from version to version

SOURCE = """
#include "pyncclx.cuh"

struct Run { unsigned long long to, source, nbytes; long long peer; };

// Signal r of a generator: the version that trainer r has sent; `size` + r of a trainer: what generator r has used.
// `version` is the last one that this rank has sent or used. It is in device memory, so that a graph can be replayed.
extern "C" __global__ void send(pyncclx_team team, const Run* runs, long long count, long long place, int places,
                                int generators, unsigned long long* version) {
    const int me = pyncclx_rank(team), size = pyncclx_size(team);
    const unsigned long long next = *version + 1;
    const int peer = size - generators + int(threadIdx.x);  // one thread for each generator
    const bool ok = peer >= size || pyncclx_wait_until(team, size + peer, next - places);  // that was in its place
    if (__syncthreads_or(!ok)) return;
    const long long warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
    for (long long i = warp; i < count; i += warps)
        pyncclx_put_warp(team, runs[i].to + next % places * place, runs[i].source, runs[i].nbytes, runs[i].peer);
    if (pyncclx_last_block(team, 0)) {
        if (peer < size) pyncclx_signal_set(team, peer, me, next);
        if (threadIdx.x == 0) *version = next;
    }
}

extern "C" __global__ void receive(pyncclx_team team, int trainers, const unsigned long long* version) {
    if (threadIdx.x < trainers) pyncclx_wait_until(team, threadIdx.x, *version + 1);
}

extern "C" __global__ void release(pyncclx_team team, int trainers, unsigned long long* version) {
    const int me = pyncclx_rank(team), size = pyncclx_size(team);
    const unsigned long long used = *version + 1;
    __syncthreads();
    if (threadIdx.x < trainers) pyncclx_signal_set(team, threadIdx.x, size + me, used);
    if (threadIdx.x == 0) *version = used;
}
"""


def main() -> int:
    """Check and time transfers of several models; return 1 if a number was wrong."""
    world = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(world, parse)
    xp = array_module(world, "uint32")
    wrong, points = 0, list[Point]()
    for hidden in options.hidden:
        comm = world.Dup()
        transfer = Transfer(comm, xp, model(hidden))
        wrong += sum(transfer.check(options.versions, places) for places in (1, 2))
        points.append(measure(transfer, hidden))
        transfer.free()
        comm.Free()
        if world.rank == 0:
            print(points[-1].line(), flush=True)
    write_json(options.json, world, [point.row() for point in points])
    warn_if_emulated(world)
    if world.rank == 0:
        print(f"check: {'FAILED' if wrong else 'PASSED'}, {wrong} wrong numbers")
        draw(options.output, world, points)
    return int(wrong > 0)


class Transfer:
    """One rank's weights, and their transfer.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    xp : module
        numpy or cupy.
    matrices : list of common.weight_plan.Matrix
    """

    def __init__(self, comm: Any, xp: Any, matrices: Any) -> None:
        self.comm, self.xp, self.version, self.places = comm, xp, 0, 2
        self.trainers = max(1, comm.size // 2)
        self.generators = max(1, comm.size - self.trainers)  # one rank alone is both
        self.first = comm.size - self.generators
        self.trained = [trainer(matrices, self.trainers, part) for part in range(self.trainers)]
        shards = [generator(matrices, self.generators, part) for part in range(self.generators)]
        # A kernel names a peer's memory by this rank's address of it, so each rank allocates weights and two places.
        count, room = (max(shard.count for shard in shards) for shards in (self.trained, shards))
        window = comm.Alloc(count + 2 * room, "u4")
        self.weights, self.memory = window[:count], window[count:].reshape(2, room)
        self.win = pyncclx.Win.Create(window, ITEM, comm=comm)
        self.win.Lock_all()
        self.kernels = d.kernels(SOURCE, "send", "receive", "release")
        most = self.kernels["send"].most_blocks(512, comm)  # ranks may share a GPU
        self.grid = (2, 64) if xp is np else (min(xp.cuda.Device().attributes["MultiProcessorCount"], most), 512)
        self.team = comm.device_team(signals=2 * comm.size, blocks=self.grid[0], counters=1)
        self.trains, self.generates = comm.rank < self.trainers, comm.rank >= self.first
        self.nbytes = 0
        self.sent, self.used = xp.zeros(1, "u8"), xp.zeros(1, "u8")  # version numbers
        if self.trains:
            mine = self.trained[comm.rank]
            runs = plan(mine, shards, address(self.weights), address(self.memory), self.first)
            self.runs, self.count, self.nbytes = xp.asarray(runs.view("u1")), len(runs), int(runs["nbytes"].sum())
            self.positions, self.weights = xp.asarray(mine.positions()), self.weights[: mine.count]
        if self.generates:
            self.shard = shards[comm.rank - self.first]
            self.expected = xp.asarray(self.shard.positions())

    def send(self) -> None:
        """Enqueue a trainer's part in sending a version."""
        numbers = self.memory[0].nbytes, np.int32(self.places), np.int32(self.generators)
        self.kernels["send"](*self.grid, [self.team, self.runs, self.count, *numbers, self.sent])

    def receive(self) -> Array:
        """Enqueue a generator's wait; return the weights, valid until `release`."""
        self.kernels["receive"](1, 32, [self.team, np.int32(self.trainers), self.used])
        return self.memory[self.version % self.places, : self.shard.count]

    def release(self) -> None:
        """Enqueue the signal that the version's place is free."""
        self.kernels["release"](1, 32, [self.team, np.int32(self.trainers), self.used])

    def train(self) -> None:
        """Enqueue the making of a new version of this rank's weights."""
        self.xp.add(self.positions, self.change(), out=self.weights)

    def wrong(self, weights: Array) -> Array:
        """Enqueue a check of a generator's weights; return the number of wrong ones."""
        return self.xp.count_nonzero(weights != self.expected + self.change())

    def change(self) -> np.uint32:
        """Return the difference between a version's numbers and their positions."""
        return np.uint32(self.version * BY_VERSION & 0xFFFFFFFF)

    def check(self, versions: int, places: int = 2) -> int:
        """Transfer and check some versions; return all ranks' wrong numbers. Collective."""
        self.places = places
        wrong = self.xp.zeros((), "i8")
        for _ in range(versions):
            self.version += 1
            if self.trains:
                self.train()
                self.send()
            if self.generates:
                wrong += self.wrong(self.receive())
                self.release()
        found = int(to_host(wrong))
        self.team.check()
        return int(self.comm.allreduce(found))

    def step(self, use: Callable[[], None] = lambda: None) -> None:
        """Enqueue the transfer of a version, and the generators' use of it."""
        if self.trains:
            self.send()
        if self.generates:
            self.receive()
            use()
            self.release()

    def free(self) -> None:
        """Free the window; the communicator frees its memory."""
        self.win.Unlock_all()
        self.win.Free()


def address(array: Array) -> int:
    """Return the address of an array."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[1024, 2048, 4096], metavar="N", help="of the models")
    parser.add_argument("--versions", type=int, default=100, metavar="N", help="to check")
    add_outputs(parser, "weight_transfer.png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
