"""Two galaxies pass each other: particles change rank when they cross a border.

    mpiexec -n 4 python examples/particles/particles.py

The periodic box is divided into a grid of domains, one for each rank. A rank has the particles in its domain. In a step

1. the rank moves them: each particle is attracted by two centres, which move on given orbits (after Toomre and Toomre,
1972); 2. it sorts them by the domain that they are in now, and counts on the device how many go to each rank; 3.
`Alltoallv` moves them to their new ranks by these counts. The number of particles on a rank also stays on the device,
so the host waits for nothing in a step.

Every few steps all ranks add up the number, the ids and the momentum of the particles before and after the exchange, to
detect lost particles. At the end one process moves all of them again by NumPy. Every position must have the same bits,
because a particle's arithmetic does not depend on its rank. In the picture a colour stands for a rank. On GPUs the
arrays are CuPy's; with PYNCCLX_DEVICE=host the same program runs without a GPU, on NumPy arrays.
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
from common.program import array_module, read_options, stop, to_host
from particles_model import Frame, advance, draw, make_galaxies, orbit

FRAMES = 6  # pictures of the box; the first is of the start, the last of the end
MOMENTUM_UNIT = 2.0**-32  # sums of multiples of this are exact, in any order
Array = Any  # NumPy's or CuPy's, like `xp`


def main() -> int:
    """Move the particles, compare with one process, draw; return 1 if wrong."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(comm, parse)
    xp = array_module(comm, "float64")
    centres, galaxies = orbit(options.steps), make_galaxies(options.particles, options.seed)
    domain = Domain(comm, xp, galaxies, options.capacity or options.particles)
    shown = set(np.linspace(0, options.steps, FRAMES, dtype=int).tolist())
    frames = [Frame(0, domain.gather())]
    comm.Barrier()
    begin, kept = time.perf_counter(), True
    for step in tqdm(range(options.steps), "steps", leave=False, delay=1, disable=comm.rank != 0):
        advance(xp, domain.particles, centres[step])
        check = step % options.every == 0 or step + 1 == options.steps
        before = domain.tally() if check else None
        domain.exchange()
        if check:
            kept = kept and np.array_equal(before, domain.tally()) and before[0] == options.particles
        if step + 1 in shown:
            frames.append(Frame(step + 1, domain.gather()))
    comm.synchronize()
    seconds = time.perf_counter() - begin
    moved, busiest = comm.allreduce(int(domain.moved[0])), comm.allreduce(int(domain.most[0]), MPI.MAX)
    passed = 0
    if comm.rank == 0:
        for centre in centres:
            advance(np, galaxies, centre)
        same = is_same(galaxies, frames[-1])
        passed = int(same and kept)
        print_results(comm, options, seconds, [moved, busiest, kept, same])
        draw(options, domain.grid, frames, centres)
    return 0 if comm.bcast(passed) else 1


class Domain:
    """One rank's part of the box, and the particles in it.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    xp : module
        numpy or cupy.
    particles : array, shape (n, 5)
        All particles: x, y, their velocities, id. This rank takes those in its domain.
    capacity : int
        Number of particles that fit on a rank.
    """

    def __init__(self, comm: Any, xp: Any, particles: Array, capacity: int) -> None:
        self.comm, self.xp = comm, xp
        self.grid = MPI.Compute_dims(comm.size, 2)
        own = particles[self.rank_of(np, particles) == comm.rank]
        self.particles = xp.zeros((max(capacity, len(own)), particles.shape[1]))  # the first `total` rows are valid
        self.particles[: len(own)] = xp.asarray(own)
        self.total, self.counts = xp.full(1, len(own), "i8"), xp.zeros(comm.size, "i8")
        self.dropped = xp.zeros(comm.size, "i8")  # rows of each rank in the last exchange that did not fit
        # Totals so far: particles that did not fit, particles from other ranks, and the largest number at a time.
        self.lost, self.moved, self.most = xp.zeros(1, "i8"), xp.zeros(1, "i8"), self.total.copy()

    def rank_of(self, xp: Any, particles: Array) -> Array:
        """Return the rank of the domain that each particle is in.

        Ranks are numbered from bottom to top, column by column.
        """
        columns, rows = self.grid
        column = xp.minimum(xp.floor(particles[:, 0] * columns), columns - 1)
        row = xp.minimum(xp.floor(particles[:, 1] * rows), rows - 1)
        return (column * rows + row).astype("i8")

    def exchange(self) -> None:
        """Move every particle to the rank of its domain. The host does not wait."""
        xp, size = self.xp, self.comm.size
        rank = xp.where(self.alive(), self.rank_of(xp, self.particles), size)  # unused rows are sorted to the end
        order = xp.argsort(rank, kind="stable")
        leaving = self.particles[order]
        counts = xp.diff(xp.searchsorted(rank[order], xp.arange(size + 1)))
        self.comm.Alltoallv(
            [leaving, counts], [self.particles, self.counts], layout="packed", total=self.total, status=self.dropped
        )
        self.lost += self.dropped.sum()
        self.moved += self.total - self.counts[self.comm.rank]
        self.most[...] = xp.maximum(self.most, self.total)

    def alive(self) -> Array:
        """Return which rows are particles."""
        return self.xp.arange(len(self.particles)) < self.total

    def tally(self) -> Array:
        """Return number, sum of ids, and momentum of all particles, exactly.

        End the program if particles did not fit.
        """
        xp, alive = self.xp, self.alive()
        wanted = xp.stack([xp.ones(len(alive)), self.particles[:, 4], *(self.particles[:, 2:4] / MOMENTUM_UNIT).T])
        sums = xp.where(alive, wanted, 0).astype("i8").sum(axis=1)
        self.comm.Allreduce(MPI.IN_PLACE, sums)
        if self.comm.allreduce(int(self.lost[0])):
            room = f"a rank has room for {len(self.particles)} particles"
            stop(self.comm, f"{room}, and more came to one; give a larger --capacity")
        return to_host(sums)

    def gather(self) -> list[Array] | None:
        """Return the particles of each rank, on rank 0."""
        parts: list[Array] | None = self.comm.gather(to_host(self.particles[: int(self.total[0])]).copy())
        return parts


def is_same(expected: Array, frame: Frame) -> bool:
    """Return whether every position and velocity equals that of one process."""
    found = np.concatenate(frame.parts)
    return np.array_equal(found[np.argsort(found[:, 4])], expected)


def print_results(comm: Any, options: argparse.Namespace, seconds: float, found: list[Any]) -> None:
    """Print a summary of the run and its outcome."""
    moved, busiest, kept, same = found
    rate = options.particles * options.steps / seconds / 1e6
    print(f"Particles: {options.particles} in {options.steps} steps on {comm.size} ranks, {comm.device}")
    print(f"  speed       {rate:.2f} M particles moved a second, with pictures and checks")
    print(f"  exchange    {moved} times a particle changed rank; at most {busiest} were on one rank")
    print(f"  kept        number, ids and momentum {'the same' if kept else 'NOT THE SAME'} before and after exchanges")
    print(f"  positions   {'those' if same else 'NOT THOSE'} of one process, to the last bit")
    print(f"  picture     {options.output}")
    print(f"  check       {'PASSED' if same and kept else 'FAILED'}", flush=True)


def parse() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(
        prog="particles.py",
        description="Move particles of two galaxies through the domains of all ranks; check that none is lost; draw.",
        epilog="Start it with mpiexec, one rank a GPU; PYNCCLX_DEVICE=host runs it without a GPU.",
    )
    parser.add_argument("--particles", type=int, default=50_000, metavar="N", help="on all ranks (default: 50000)")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="of time (default: 300)")
    parser.add_argument("--every", type=int, default=20, metavar="N", help="steps between checks (default: 20)")
    parser.add_argument("--capacity", type=int, metavar="N", help="particles that a rank has room for (default: all)")
    parser.add_argument("--output", type=Path, default="particles.png", metavar="FILE", help="picture to write")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the galaxies (default: 0)")
    options = parser.parse_args()
    for name in ("particles", "steps", "every"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be 1 or more")
    if options.capacity is not None and options.capacity < 1:
        parser.error(f"--capacity is {options.capacity}; it must be 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
