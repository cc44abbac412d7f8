"""Jacobi's method as one kernel, which makes all steps and exchanges the halos.

    mpiexec -n 4 python examples/solvers/jacobi_persistent.py [--size 256 1024 4096] [--steps 400]

The plate and its parts are those of jacobi.py, where a step is an exchange and four operations on arrays. Here a kernel
is launched once. The thread that computes an element at an edge also stores it in the neighbour's halo, through the
link, while other threads compute inner elements. The last block that completes a step signals this to the neighbours,
waits for their signals, and then lets all blocks of its rank continue. So a rank waits for its neighbours only, and the
hosts take no part. Two arrays alternate; a neighbour is at most one step ahead, so it stores into the array that is not
being read.

Both programs begin with the same random numbers, and are compared with NumPy, bit by bit. On GPUs the steps of both are
timed and drawn, and those of the same kernel without neighbours. With PYNCCLX_DEVICE=host it runs without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx
import pyncclx.device as d
from common.overlap_report import add_outputs, warn_if_emulated, write_json
from common.program import figure, read_options, share, sign, to_host
from jacobi import Plate
from solvers import array_module, repeat, synchronize

Array = Any  # NumPy's or CuPy's
Point = tuple[int, float, float, float]
CHECKED = 10  # steps

SOURCE = """
#include "pyncclx.cuh"

struct Side { long long peer, halo; };  // the rank there, or -1; where in its arrays this rank's edge is the halo

// sides: up, down, left, right. plates: two arrays of `plane` elements, rows of `pitch`.
extern "C" __global__ void jacobi(pyncclx_team team, double* plates, const Side* sides, int rows, int columns,
                                  long long pitch, long long plane, long long first, long long steps) {
    constexpr int kGo = 4;  // the signal to this rank's blocks; 0 to 3 are those of the neighbours on its sides
    double* halos[4];
    for (int k = 0; k < 4; ++k) {
        const int peer = sides[k].peer;
        halos[k] = peer < 0 ? nullptr : (double*)pyncclx_peer_pointer(team, plates, peer) + sides[k].halo;
    }
    const int each = (rows + gridDim.x - 1) / gridDim.x;  // rows of a block: most of what it reads, it has read before
    const int begin = min(rows, int(blockIdx.x) * each), end = min(rows, begin + each);
    const int side = threadIdx.x;
    const int peer = side < 4 ? sides[side].peer : -1;  // of one thread for each side

    for (long long step = first + 1; step <= first + steps; ++step) {
        const double* const old = plates + (step + 1) % 2 * plane;
        const long long now = step % 2 * plane;
        for (int row = 1 + begin; row <= end; ++row)
            for (int column = 1 + threadIdx.x; column <= columns; column += blockDim.x) {
                const double* const at = old + row * pitch + column;
                const double value = (at[-pitch] + at[pitch] + at[-1] + at[1]) * 0.25;
                plates[now + row * pitch + column] = value;
                if (row == 1 && halos[0]) halos[0][now + column - 1] = value;
                if (row == rows && halos[1]) halos[1][now + column - 1] = value;
                if (column == 1 && halos[2]) halos[2][now + (row - 1) * pitch] = value;
                if (column == columns && halos[3]) halos[3][now + (row - 1) * pitch] = value;
            }
        if (pyncclx_last_block(team, 0)) {
            // This rank is below the one above it, so it gives that one signal 1, and gets signal 0 from it.
            const bool ok = peer < 0 || (pyncclx_signal_set(team, peer, side ^ 1, step) &&
                                         pyncclx_wait_until(team, side, step));
            if (!__syncthreads_or(!ok) && side == 0) pyncclx_signal_set(team, pyncclx_rank(team), kGo, step);
        }
        if (!pyncclx_wait_until_block(team, kGo, step)) return;
    }
}
"""


def main() -> int:
    """Check and time both programs for all sizes; return 1 if a result is wrong."""
    world = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(world, parse)
    xp = array_module(world)
    cart = world.Create_cart(MPI.Compute_dims(world.size, 2))
    points: list[Point] = []
    passed = True
    for size in options.size:
        plate = Plate(MPI, cart, xp, argparse.Namespace(size=size, mpi4py=False))
        ours = PersistentPlate(cart, xp, size)
        passed &= check(cart, plate, ours, np.random.default_rng(size).random((size + 2, size + 2)))
        arrays = repeat(cart, xp, plate.two_steps, options.steps // 2, graph=xp is not np) / 2
        kernel, alone = (
            repeat(cart, xp, partial(ours.run, options.steps, neighbours), 5, graph=False) / options.steps
            for neighbours in (True, False)
        )
        points.append((size, 1e6 * arrays, 1e6 * kernel, 1e6 * alone))
        ours.team.check()
        plate.free()
        if cart.rank == 0:
            print("{:5} squared: {:.1f} µs a step, {:.1f} in the kernel, {:.1f} without neighbours".format(*points[-1]))
    names = "size", "array_operations_us", "kernel_us", "kernel_alone_us"
    write_json(options.json, cart, [dict(zip(names, point, strict=True)) for point in points])
    warn_if_emulated(world)
    if cart.rank == 0:
        print(f"check: {'PASSED' if passed else 'FAILED'}", flush=True)
        draw(options.output, world, points)
    return int(not passed)


class PersistentPlate:
    """One rank's part of a plate, in two alternating arrays, and the kernel.

    Parameters
    ----------
    cart : pyncclx.Cartcomm
    xp : module
    size : int
        Elements along an edge of the plate.
    """

    def __init__(self, cart: Any, xp: Any, size: int) -> None:
        self.cart, self.xp, self.done = cart, xp, 0
        shares = [share(size, *each) for each in zip(cart.dims, cart.coords, strict=True)]
        self.inside = tuple(slice(begin, begin + length + 2) for begin, length in shares)
        self.rows, self.columns = (length for _, length in shares)
        # All ranks allocate the size of the largest part, so their rows have one pitch; a part is at the upper left.
        most = [share(size, parts, 0)[1] + 2 for parts in cart.dims]
        self.plates = cart.Alloc((2, *most), "f8")
        self.sides = xp.asarray(self._sides(size, most[1]))
        self.no_sides = xp.full_like(self.sides, -1)
        self.kernel = d.kernel(SOURCE, "jacobi")
        threads = min(1024, -(-self.columns // 32) * 32)
        most = self.kernel.most_blocks(threads, cart)  # ranks may share a GPU
        self.grid = (2, 32) if xp is np else (min(_multiprocessors(xp), most), threads)
        self.team = cart.device_team(signals=5, blocks=self.grid[0], counters=1)

    def _sides(self, size: int, pitch: int) -> Array:
        """Return the neighbours up, down, left and right, with offsets in their arrays.

        An offset is where this rank's edge is in the neighbour's halo.
        """
        (up, down), (left, right) = (self.cart.Shift(dimension, 1) for dimension in (0, 1))
        row, column = self.cart.coords
        above = share(size, self.cart.dims[0], row - 1)[1] if up >= 0 else 0
        before = share(size, self.cart.dims[1], column - 1)[1] if left >= 0 else 0
        halos = [(above + 1) * pitch + 1, 1, pitch + before + 1, pitch]
        return np.array([*zip((up, down, left, right), halos, strict=True)], "i8").clip(-1)

    def fill(self, start: Array) -> None:
        """Store this rank's part of a whole plate, with its halo."""
        mine = self.xp.asarray(start[self.inside])
        self.plates[:, : mine.shape[0], : mine.shape[1]] = mine

    def run(self, steps: int, neighbours: bool = True) -> None:
        """Launch the kernel for some steps."""
        sizes = np.int32(self.rows), np.int32(self.columns), self.plates.shape[2], self.plates[0].size
        sides = self.sides if neighbours else self.no_sides
        arguments = [self.team, self.plates, sides, *sizes, self.done, steps]
        self.kernel(*self.grid, arguments)
        self.done += steps

    def result(self) -> Array:
        """Return this rank's part after the last step, without its halo."""
        return to_host(self.plates)[self.done % 2, 1 : self.rows + 1, 1 : self.columns + 1]


def check(cart: Any, plate: Plate, ours: PersistentPlate, start: Array) -> bool:
    """Return whether both programs and NumPy agree after some steps. Collective."""
    for array in (plate.now, plate.next):
        array[...] = plate.xp.asarray(start[ours.inside])
    ours.fill(start)
    synchronize(plate.xp)
    cart.Barrier()
    for _ in range(CHECKED // 2):
        plate.two_steps()
    ours.run(CHECKED - 3)  # a second launch continues where the first ended
    ours.run(3)
    found = [to_host(plate.now)[1:-1, 1:-1], ours.result()]
    ours.team.check()
    expected = reference(start, CHECKED)[ours.inside][1:-1, 1:-1]
    return all(cart.allgather(all(np.array_equal(each, expected) for each in found)))


def reference(start: Array, steps: int) -> Array:
    """Compute the plate by NumPy, with the same additions in the same order."""
    old, new = start.copy(), start.copy()
    for _ in range(steps):
        new[1:-1, 1:-1] = (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]) * 0.25
        old, new = new, old
    return old


def _multiprocessors(xp: Any) -> int:
    return int(xp.cuda.Device().attributes["MultiProcessorCount"])


def draw(path: Path, comm: Any, points: list[Point]) -> None:
    """Draw microseconds of a step over the size of the plate."""
    drawing, axes = figure(1)
    sizes, *times = zip(*points, strict=True)
    names = "exchange and array operations", "one kernel", "bound: the kernel without neighbours"
    for seconds, name, style in zip(times, names, ("o-", "o-", "k:"), strict=True):
        axes.loglog(sizes, seconds, style, base=2, label=name)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(title="A step of Jacobi's iteration", xlabel="elements along an edge", ylabel="µs for a step")
    drawing.legend(loc="outside upper center")
    sign(drawing, comm)
    drawing.savefig(path, dpi=120)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs="+", default=[256, 1024, 4096], metavar="N", help="along an edge")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="to time (default 400)")
    add_outputs(parser, "jacobi_persistent.png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
