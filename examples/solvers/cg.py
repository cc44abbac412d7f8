"""Conjugate gradients for Poisson's equation: two sums over all ranks in a step.

    mpiexec -n 4 python examples/solvers/cg.py [--graph] [--mpi4py]

The unknowns are the inner points of a square, whose rows are divided among the ranks. In each step a rank applies the
five-point stencil to its rows, for which it needs a row of each neighbour (`Neighbor_alltoallv`), and all ranks add up
two scalar products of one number each (`Allreduce`). The sums stay on the device, which also divides by them, so the
host waits in no step. At the end the solution is compared with a direct one by NumPy, in the stencil's eigenvectors,
which are sines. On GPUs the arrays are CuPy's; with PYNCCLX_DEVICE=host the same program runs without a GPU, on NumPy
arrays. `--graph` captures a step in a CUDA graph.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py.MPI import COMM_WORLD

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
from common.program import figure, read_options, share, sign, to_host
from solvers import array_module, end, flags, import_mpi, parse, print_results, repeat, usable

Array = Any  # NumPy's or CuPy's
TOLERANCE = 1e-8  # relative to the largest number


def main() -> int:
    """Run the steps, compare and draw; return 1 if the result is wrong."""
    options = read_options(COMM_WORLD, parse_options)
    MPI = import_mpi(options.mpi4py)
    xp = array_module(MPI.COMM_WORLD)
    line = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.size])
    begin, rows = share(options.size, line.size, line.rank)
    right = sources(options.size)
    solver = Solver(MPI, usable(line, xp, options.mpi4py), xp, xp.asarray(right[begin : begin + rows]))
    seconds = repeat(line, xp, solver.step, options.steps, options.graph)

    parts = line.gather(to_host(solver.x))
    residual = float(to_host(solver.rr)[0]) ** 0.5 / float(np.linalg.norm(right))
    code = 0
    if line.rank == 0:
        found, expected = np.concatenate(parts), direct(right)
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        lines = [
            ("unknowns", f"{options.size} by {options.size} on {line.size} ranks"),
            ("step", f"{1e6 * seconds:.1f} µs"),
            ("residual", f"{residual:.1e}"),
            ("error", f"{error:.1e} ({TOLERANCE:.0e} allowed)"),
            *([] if error < TOLERANCE else [("failure", "not converged: give more --steps")]),
        ]
        draw(options, MPI.COMM_WORLD, right, found)
        code = print_results(options, f"Conjugate gradients, {options.steps} steps", lines, error < TOLERANCE)
    line.Free()
    return int(COMM_WORLD.bcast(code))


class Solver:
    """One rank's rows of the unknowns `x`, and the method's other vectors.

    Parameters
    ----------
    MPI, xp : module
    line : Cartcomm
        A communicator of one dimension.
    right : array, shape (rows, size)
        This rank's rows of the right-hand side.
    """

    def __init__(self, MPI: Any, line: Any, xp: Any, right: Array) -> None:
        self.MPI, self.line, self.xp = MPI, line, xp
        rows, size = right.shape
        self.x, self.r = xp.zeros_like(right), right.copy()
        self.q, self.product = xp.empty_like(right), xp.empty_like(right)
        self.halo = xp.zeros((rows + 2, size + 2))  # the direction with a halo, for the stencil
        self.p = self.halo[1:-1, 1:-1]
        self.p[...] = right
        width = size + 2
        self.edges = [self.halo, ([width, width], [width, rows * width])]
        self.outside = [self.halo, ([width, width], [0, (rows + 1) * width])]
        self.part, self.rr, self.before, self.pq, self.factor = (xp.zeros(1) for _ in range(5))
        self.dot(self.r, self.r, self.rr)

    def step(self) -> None:
        """Make one step of the method.

        A step allocates no array, so a graph can contain it.
        """
        xp = self.xp
        self.apply()
        self.dot(self.p, self.q, self.pq)
        xp.maximum(self.pq, np.finfo("f8").tiny, out=self.pq)  # once the residual is 0, it stays 0
        xp.divide(self.rr, self.pq, out=self.factor)
        xp.multiply(self.p, self.factor, out=self.product)
        xp.add(self.x, self.product, out=self.x)
        xp.multiply(self.q, self.factor, out=self.product)
        xp.subtract(self.r, self.product, out=self.r)
        xp.maximum(self.rr, np.finfo("f8").tiny, out=self.before)
        self.dot(self.r, self.r, self.rr)
        xp.divide(self.rr, self.before, out=self.factor)
        xp.multiply(self.p, self.factor, out=self.p)
        xp.add(self.p, self.r, out=self.p)

    def apply(self) -> None:
        """Apply the five-point stencil to the direction."""
        xp, h, q = self.xp, self.halo, self.q
        self.line.Neighbor_alltoallv(self.edges, self.outside)
        xp.multiply(self.p, 4.0, out=q)
        for shifted in (h[:-2, 1:-1], h[2:, 1:-1], h[1:-1, :-2], h[1:-1, 2:]):
            xp.subtract(q, shifted, out=q)

    def dot(self, a: Array, b: Array, out: Array) -> None:
        """Compute a scalar product over all ranks."""
        self.xp.multiply(a, b, out=self.product)
        self.xp.sum(self.product.reshape(1, -1), axis=1, out=self.part)
        self.line.Allreduce(self.part, out, self.MPI.SUM)


def sources(size: int) -> Array:
    """Return the right-hand side: several charges of both signs."""
    random, right = np.random.default_rng(1), np.zeros((size, size))
    for charge in (1, -1, 1, -1, 1):
        right[tuple(random.integers(0, size, 2))] += charge
    return right


def direct(right: Array) -> Array:
    """Return the solution by the stencil's eigenvectors."""
    numbers = np.arange(1, len(right) + 1)
    sines = np.sin(np.pi * np.outer(numbers, numbers) / (len(right) + 1)) * (2 / (len(right) + 1)) ** 0.5
    values = 2 - 2 * np.cos(np.pi * numbers / (len(right) + 1))
    return sines @ (sines @ right @ sines / (values[:, None] + values)) @ sines


def draw(options: argparse.Namespace, comm: Any, right: Array, found: Array) -> None:
    """Draw the charges and the potential."""
    drawing, axes = figure(2)
    for each, values, title in zip(axes, (right, found), ("Charges", "Potential"), strict=True):
        most = np.abs(values).max()
        image = each.imshow(values, cmap="RdBu_r", vmin=-most, vmax=most)
        each.set(title=title, xlabel="column", ylabel="row")
        drawing.colorbar(image, ax=each, shrink=0.75)
    drawing.suptitle("Poisson's equation by conjugate gradients (charge and grid spacing 1)")
    sign(drawing, comm)
    drawing.savefig(options.output, dpi=120)


def parse_options() -> argparse.Namespace:
    """Parse and check the command line."""
    numbers = [("size", 64, "unknowns in a row, and rows"), ("steps", 200, "steps; about three times the size")]
    parser = flags("cg.py", "Solve Poisson's equation by conjugate gradients.", *numbers, graph=True)
    return parse(parser, "size", "steps")


if __name__ == "__main__":
    end(main())
