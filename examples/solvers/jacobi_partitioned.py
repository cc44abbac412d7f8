"""Jacobi's method whose kernel sends its edges in parts, by partitioned messages.

    mpiexec -n 4 python examples/solvers/jacobi_partitioned.py [--messages] [--graph]

The plate of jacobi.py is divided among the ranks by rows. A step is one kernel. Its first blocks compute the rows at
the edges, in several pieces, and send each piece to the neighbour as soon as it is complete, while other blocks compute
the inner rows. A block that needs a piece of a halo waits for it. Start and Wait only count rounds, on the device. With
`--messages`, persistent messages exchange whole rows before the kernel instead, as MPI programs do. `--graph` captures
two steps, from one array to the other and back, in a CUDA graph. At the end rank 0 makes the same steps with NumPy, and
compares the bits. With PYNCCLX_DEVICE=host it runs without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py.MPI import COMM_WORLD

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx.device as d
from common.program import read_options, share, to_host
from jacobi import draw, reference
from solvers import array_module, end, import_mpi, parse, print_results, repeat

Array = Any  # NumPy's or CuPy's
BLOCKS, THREADS = 32, 128

SOURCE = """
#include "pyncclx.cuh"

// Edges are made first, for a neighbour waits for them. A handle that is 0 has nothing to be done.
extern "C" __global__ void step(const double* old, double* now, long long rows, long long columns, long long parts,
                                pyncclx_partitions from_above, pyncclx_partitions from_below,
                                pyncclx_partitions to_above, pyncclx_partitions to_below) {
    const long long pitch = columns + 2, width = columns / parts;
    for (long long piece = blockIdx.x; piece < rows * parts; piece += gridDim.x) {
        const long long number = piece / parts, part = piece % parts;
        const long long row = number == 0 ? 1 : number == 1 ? rows : number;
        if (row == 1) pyncclx_await_partition_block(from_above, part);
        if (row == rows) pyncclx_await_partition_block(from_below, part);
        for (long long i = threadIdx.x; i < width; i += blockDim.x) {
            const long long at = row * pitch + 1 + part * width + i;
            now[at] = (old[at - pitch] + old[at + pitch] + old[at - 1] + old[at + 1]) * 0.25;
        }
        if (row == 1) pyncclx_pready_block(to_above, part);
        if (row == rows) pyncclx_pready_block(to_below, part);
    }
}
"""


class Plate:
    """One rank's rows of the plate, with a halo.

    After every two steps `arrays[0]` is the current state.

    Parameters
    ----------
    MPI, xp : module
    comm : Intracomm
    size : int
        Elements along an edge of the plate, a multiple of `parts`.
    parts : int
        Partitions: pieces of each row at an edge.
    messages : bool
        Whether persistent messages exchange the edges instead of partitioned ones.
    """

    def __init__(self, MPI: Any, comm: Any, xp: Any, size: int, parts: int, messages: bool) -> None:
        self.MPI, self.size, self.parts, self.messages = MPI, size, parts, messages
        self.begin, self.rows = share(size, comm.size, comm.rank)
        above = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
        below = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
        self.arrays = [comm.Alloc((self.rows + 2, size + 2), "f8") for _ in range(2)]
        for array in self.arrays:
            array[...] = 0
            if comm.rank == 0:
                array[0] = 1  # the hot edge, which no exchange overwrites
        self.requests = [self._requests(comm, array, above, below) for array in self.arrays]
        self.step_kernel = d.kernel(SOURCE, "step")
        if not messages:
            self._send_first_edges()

    def _requests(self, comm: Any, array: Array, above: int, below: int) -> list[Any]:
        """Return receives into the halo and sends of the edges, above and below.

        The tag is the direction.
        """
        halo_above, edge_above, edge_below, halo_below = (array[row, 1:-1] for row in (0, 1, self.rows, self.rows + 1))
        sides = [(halo_above, above, 1), (halo_below, below, 0)], [(edge_above, above, 0), (edge_below, below, 1)]
        if self.messages:
            return [
                *(comm.Recv_init(halo, peer, tag) for halo, peer, tag in sides[0]),
                *(comm.Send_init(edge, peer, tag) for edge, peer, tag in sides[1]),
            ]
        return [
            *(comm.Precv_init(halo, self.parts, peer, tag) for halo, peer, tag in sides[0]),
            *(comm.Psend_init(edge, self.parts, peer, tag) for edge, peer, tag in sides[1]),
        ]

    def _send_first_edges(self) -> None:
        """Send the edges of the first array, which no kernel has computed."""
        self.MPI.Prequest.Startall(self.requests[0])
        for send in self.requests[0][2:]:
            send.Pready_range(0, self.parts - 1)

    def two_steps(self) -> None:
        """Make a step from one array to the other, and one back."""
        self.step(0, 1)
        self.step(1, 0)

    def step(self, old: int, new: int) -> None:
        """Compute each element from its neighbours, and send the edges."""
        if self.messages:
            self.MPI.Prequest.Startall(self.requests[old])
            self.MPI.Request.Waitall(self.requests[old])
            self._launch(old, new, [0, 0, 0, 0])
        else:
            self.MPI.Prequest.Startall(self.requests[new])
            receives, sends = self.requests[old][:2], self.requests[new][2:]
            self._launch(old, new, [request.pointer for request in (*receives, *sends)])
            self.MPI.Request.Waitall(self.requests[old])  # the kernel has already waited for the data

    def _launch(self, old: int, new: int, pointers: list[int]) -> None:
        sizes = self.rows, self.size, self.parts
        arguments = [self.arrays[old], self.arrays[new], *sizes, *map(np.uint64, pointers)]
        self.step_kernel(BLOCKS, THREADS, arguments)

    def free(self) -> None:
        """Complete an exchange that is in progress, and free the requests."""
        self.MPI.Request.Waitall(self.requests[0])
        for request in (*self.requests[0], *self.requests[1]):
            request.Free()


def main() -> int:
    """Run the steps, compare and draw; return 1 if the result is wrong."""
    options = read_options(COMM_WORLD, parse_options)
    MPI = import_mpi(mpi4py=False)
    comm = MPI.COMM_WORLD
    xp = array_module(comm)
    plate = Plate(MPI, comm, xp, options.size, options.parts, options.messages)
    seconds = repeat(comm, xp, plate.two_steps, options.steps // 2, options.graph) / 2

    rows = comm.gather(to_host(plate.arrays[0])[1:-1, 1:-1])
    code = 0
    if comm.rank == 0:
        whole, steps = np.concatenate(rows), options.steps // 2 * 2
        right = np.array_equal(whole, reference(options.size, steps)[1:-1, 1:-1])
        how = "persistent messages" if options.messages else f"{options.parts} partitions of each edge, by the kernel"
        lines = [
            ("plate", f"{options.size} by {options.size} elements on {comm.size} ranks"),
            ("exchange", how),
            ("step", f"{1e6 * seconds:.1f} µs"),
        ]
        draw(options, comm, whole)
        code = print_results(options, f"Jacobi's method, {steps} steps", lines, right)
    plate.free()
    return int(COMM_WORLD.bcast(code))


def parse_options() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(
        prog="jacobi_partitioned.py",
        description="Solve Laplace's equation by a kernel that sends its edges.",
        epilog="Start it with mpiexec, one rank a GPU; PYNCCLX_DEVICE=host runs it without a GPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--size", type=int, default=96, metavar="N", help="elements along an edge of the plate")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="steps")
    parser.add_argument("--parts", type=int, default=4, metavar="N", help="partitions of an edge")
    parser.add_argument("--messages", action="store_true", help="exchange edges by persistent messages")
    parser.add_argument("--graph", action="store_true", help="capture a step in a CUDA graph and replay it")
    output = Path("jacobi_partitioned.png")
    parser.add_argument("--output", type=Path, default=output, metavar="FILE", help="picture to write")
    parser.set_defaults(mpi4py=False)
    options = parse(parser, "size", "steps", "parts")
    if options.size % options.parts or options.size < COMM_WORLD.size:
        parser.error(f"--size is {options.size}; it must be a multiple of --parts, and {COMM_WORLD.size} or more")
    return options


if __name__ == "__main__":
    end(main())
