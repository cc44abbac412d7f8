"""Jacobi's method for Laplace's equation: temperatures of a plate with a hot edge.

    mpiexec -n 4 python examples/solvers/jacobi.py [--messages] [--graph] [--mpi4py]

The plate is divided among the ranks in two dimensions. A rank's array has a halo of one element around its part. In
each step one `Neighbor_alltoallw` copies the neighbours' edges to all four sides of the halo. The left and right edges
are columns, which are not contiguous: their datatypes are subarrays, and kernels pack and unpack them. At the end rank
0 makes the same steps alone with NumPy, and compares. On GPUs the arrays are CuPy's; with PYNCCLX_DEVICE=host the same
program runs without a GPU, on NumPy arrays. With `--messages`, persistent messages exchange the edges instead: one
`Startall` starts all eight sends and receives. `--graph` captures two steps, from one array to the other and back, in a
CUDA graph.
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


def main() -> int:
    """Run the steps, compare and draw; return 1 if the result is wrong."""
    options = read_options(COMM_WORLD, parse_options)
    MPI = import_mpi(options.mpi4py)
    xp = array_module(MPI.COMM_WORLD)
    cart = MPI.COMM_WORLD.Create_cart(MPI.Compute_dims(MPI.COMM_WORLD.size, 2))
    plate = Plate(MPI, cart, xp, options, options.messages)
    seconds = repeat(cart, xp, plate.two_steps, options.steps // 2, options.graph) / 2

    parts = cart.gather((plate.begin, to_host(plate.now)[1:-1, 1:-1]))
    code = 0
    if cart.rank == 0:
        whole = np.empty((options.size, options.size))
        for (row, column), part in parts:
            whole[row : row + part.shape[0], column : column + part.shape[1]] = part
        expected = reference(options.size, options.steps // 2 * 2)
        error = float(np.abs(whole - expected[1:-1, 1:-1]).max())
        size, grid = f"{options.size} by {options.size}", " by ".join(map(str, cart.dims))
        lines = [
            ("plate", f"{size} elements on {grid} ranks"),
            ("step", f"{1e6 * seconds:.1f} µs"),
            ("error", f"{error:.1e}"),
        ]
        draw(options, MPI.COMM_WORLD, whole)
        code = print_results(options, f"Jacobi's method, {options.steps // 2 * 2} steps", lines, error < 1e-12)
    plate.free()
    cart.Free()
    return int(COMM_WORLD.bcast(code))


class Plate:
    """One rank's part of the plate, with a halo; `now` is the current state.

    Parameters
    ----------
    MPI, xp : module
    cart : Cartcomm
    options : argparse.Namespace
    messages : bool, default False
        Whether persistent messages exchange the edges.
    """

    def __init__(self, MPI: Any, cart: Any, xp: Any, options: argparse.Namespace, messages: bool = False) -> None:
        self.cart, self.xp = usable(cart, xp, options.mpi4py), xp
        shares = [share(options.size, *each) for each in zip(cart.dims, cart.coords, strict=True)]
        self.begin = tuple(begin for begin, _ in shares)
        rows, columns = (length for _, length in shares)
        self.now = xp.zeros((rows + 2, columns + 2))
        if cart.coords[0] == 0:
            self.now[0] = 1  # the hot edge, which no exchange overwrites
        self.next = self.now.copy()
        # First dimension: lower and upper side; then the second. For each: the edge to send, the halo to receive.
        edges = [((1, columns), (1, 1)), ((1, columns), (rows, 1)), ((rows, 1), (1, 1)), ((rows, 1), (1, columns))]
        halos = [(0, 1), (rows + 1, 1), (1, 0), (1, columns + 1)]
        shape = self.now.shape
        self.sends = [MPI.DOUBLE.Create_subarray(shape, edge, start).Commit() for edge, start in edges]
        receives = [(edge, start) for (edge, _), start in zip(edges, halos, strict=True)]
        self.receives = [MPI.DOUBLE.Create_subarray(shape, edge, start).Commit() for edge, start in receives]
        self.MPI, self.requests = MPI, [self._requests(array) if messages else [] for array in (self.now, self.next)]

    def _requests(self, array: Array) -> list[Any]:
        """Return persistent messages that exchange an array's edges.

        The tag is the side of the sender's edge.
        """
        sides = [neighbour for dimension in (0, 1) for neighbour in self.cart.Shift(dimension, 1)]
        receives = [(each, side, side ^ 1) for side, each in enumerate(sides)]
        return [
            *(self.cart.Recv_init([array, 1, self.receives[side]], peer, tag) for peer, side, tag in receives),
            *(self.cart.Send_init([array, 1, self.sends[side]], peer, side) for side, peer in enumerate(sides)),
        ]

    def exchange(self, array: Array) -> None:
        """Receive the neighbours' edges into an array's halo."""
        requests = self.requests[array is self.next]
        if requests:
            self.MPI.Prequest.Startall(requests)
            self.MPI.Request.Waitall(requests)
        else:
            self.cart.Neighbor_alltoallw([array, self.sends], [array, self.receives])

    def two_steps(self) -> None:
        """Make a step from one array to the other, and one back."""
        self.step(self.now, self.next)
        self.step(self.next, self.now)

    def step(self, old: Array, new: Array) -> None:
        """Set each element to the mean of its four neighbours.

        A step allocates no array, so a graph can contain it.
        """
        add, inner = self.xp.add, new[1:-1, 1:-1]
        self.exchange(old)
        add(old[:-2, 1:-1], old[2:, 1:-1], out=inner)
        add(inner, old[1:-1, :-2], out=inner)
        add(inner, old[1:-1, 2:], out=inner)
        self.xp.multiply(inner, 0.25, out=inner)

    def free(self) -> None:
        """Free the requests and the datatypes."""
        for each in (*self.requests[0], *self.requests[1], *self.sends, *self.receives):
            each.Free()


def reference(size: int, steps: int) -> Array:
    """Compute the plate by NumPy, with the same additions in the same order."""
    old = np.zeros((size + 2, size + 2))
    old[0] = 1
    new = old.copy()
    for _ in range(steps):
        new[1:-1, 1:-1] = (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]) * 0.25
        old, new = new, old
    return old


def draw(options: argparse.Namespace, comm: Any, whole: Array) -> None:
    """Draw the temperature of the plate."""
    drawing, axes = figure(1)
    image = axes.imshow(whole, cmap="inferno", vmin=0, vmax=1)
    axes.set(title=f"Heat in a plate after {options.steps // 2 * 2} steps", xlabel="column", ylabel="row")
    drawing.colorbar(image, label="temperature (upper edge: 1)")
    sign(drawing, comm)
    drawing.savefig(options.output, dpi=120)


def parse_options() -> argparse.Namespace:
    """Parse and check the command line."""
    numbers = [("size", 96, "elements along an edge of the plate"), ("steps", 400, "steps")]
    parser = flags("jacobi.py", "Solve Laplace's equation by Jacobi's method.", *numbers, graph=True)
    parser.add_argument("--messages", action="store_true", help="exchange edges by persistent messages")
    options = parse(parser, "size", "steps")
    if options.messages and options.mpi4py:
        raise SystemExit("jacobi.py: --messages is for arrays on a GPU, --mpi4py copies them to the host: choose one")
    return options


if __name__ == "__main__":
    end(main())
