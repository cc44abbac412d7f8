"""Tensor parallelism whose communication overlaps with its matrix products.

    mpiexec -n 4 python examples/tensor_parallel/tensor_parallel.py [--hidden 4096 8192] [--tokens 1024 4096 16384]

A layer's weights are divided among the ranks, and so are its tokens, except where a product needs all of them. There
are two steps, each a collective and a product. Both can be divided into pieces:

    gather    every rank multiplies all tokens by its columns of the weights. The copy engines put each rank's tokens
              into the other ranks' memory, on a separate stream, followed by a signal. The product of a rank's tokens
              begins when they have arrived; the rank's own tokens are first.
    scatter   every rank has a part of all sums, and keeps the sums of its own tokens. It puts the product for another
              rank's tokens there as soon as it is complete, while the next product runs. Each rank adds the products
              that it has received, in the order of the ranks.

For the gather, large blocks of tokens are sent in pieces. A piece is large enough for its product to fill the GPU. If
the products are too short to hide the cost of pieces, nothing is divided: `overlapped` equals `serial`.

Both are compared with `Allgather` and `Reduce_scatter_block`, bit by bit, and with NumPy. On GPUs, where PyTorch
multiplies, all are replayed from CUDA graphs and timed. The picture also shows product and collective alone. With
PYNCCLX_DEVICE=host it runs without a GPU, for small sizes.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx
from common.overlap import Matrix, device_of, rounded
from common.overlap_report import Times, add_outputs, draw, link_us, warn_if_emulated, write_json
from common.program import read_options
from tensor_parallel_step import Step

REPLAYED = 10  # calls in a graph
WAYS = ("product", "collective", "serial", "overlapped")  # what is timed; also the first fields of `Times`


def main() -> int:
    """Check and time both steps for all sizes; return 1 if a result is wrong."""
    world = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(world, parse)
    world.select_device()
    device, wrong = device_of(world), 0
    points: dict[str, dict[int, Times]] = {}
    rows = []
    for kind, hidden in ((kind, hidden) for kind in (Gather, Scatter) for hidden in options.hidden):
        name = kind.__name__.lower()
        for tokens in options.tokens:
            comm = world.Dup()
            step = kind(comm, device, tokens, hidden)
            wrong += not step.is_right()
            nbytes = 2 * hidden * (tokens - tokens // comm.size)  # bytes that a rank sends, and receives
            microseconds = (1e6 * device.seconds(comm, getattr(step, way), REPLAYED) for way in WAYS)
            times = Times(*microseconds, link_us(comm, nbytes))
            points.setdefault(f"{name}, hidden {hidden}", {})[tokens] = times
            rows.append({"step": name, "hidden": hidden, "tokens": tokens, **times.row()})
            step.free()
            comm.Free()
            if world.rank == 0:
                print(f"{name}, hidden {hidden}, {tokens:5} tokens: {times.line()}", flush=True)
    write_json(options.json, world, rows)
    warn_if_emulated(world)
    if world.rank == 0:
        print(f"check: {'FAILED' if wrong else 'PASSED'}")
        draw(options.output, world, points)
    return int(wrong > 0)


class Putting(Step):
    """A step in which ranks put pieces into each other's windows."""

    def begin(self) -> None:
        """Make the copies wait until all ranks are in this step.

        Then no rank needs the data of the previous step any more.
        """
        self.device.order(self.device.main, self.device.copies)
        with self.device.on(self.device.copies):
            self.comm.Barrier(device=True)

    def end(self) -> None:
        """Make the main stream wait until all data has been sent.

        Then the sources may be overwritten.
        """
        self.device.order(self.device.copies, self.device.signals)
        self.device.order(self.device.signals, self.device.main)

    def send(self, part: Matrix, peer: int, first: int) -> None:
        """Put a piece into another rank's window, and signal, beside the main stream."""
        device = self.device
        device.order(device.main, device.copies)
        with device.on(device.copies):
            self.win.Put(part, peer, self.rows(self.comm.rank, first).start * self.inbox.shape[1])
        device.order(device.copies, device.signals)
        with device.on(device.signals):  # the next copy need not wait for this signal
            self.win.Put_signal(self.nothing, peer, signal=self.comm.rank)


class Gather(Putting):
    """out = all ranks' tokens times w; x has this rank's tokens."""

    def __init__(self, comm: Any, device: Any, tokens: int, hidden: int) -> None:
        share = hidden // comm.size
        super().__init__(
            comm, device, tokens, (tokens // comm.size, hidden), (hidden, share), (tokens, hidden), (tokens, share)
        )

    def collective(self) -> None:
        self.comm.Allgather(self.x, self.inbox)

    def product(self) -> None:
        self.device.multiply(self.inbox, self.w, self.out)

    def serial(self) -> None:
        self.collective()
        self.product()

    def pipelined(self) -> None:
        self.begin()
        for first in self.pieces():
            for peer in self.peers(1):
                rows = slice(first, first + self.piece)
                self.send(self.x[rows], peer, first)
        self.device.multiply(self.x, self.w, self.out[self.own(self.comm.rank)])
        for first in self.pieces():
            for peer in self.peers(-1):  # in the order in which they arrive
                self.win.Wait_signal(peer)
                rows = self.rows(peer, first)
                self.device.multiply(self.inbox[rows], self.w, self.out[rows])
        self.end()

    def agrees(self, result: Matrix) -> bool:
        """Return whether the products of some tokens of each rank are right."""
        x, w = self.values
        tokens = np.concatenate(self.comm.allgather(x[self.some])).astype("f4")
        found = np.concatenate([result[self.own(rank)][self.some] for rank in self.ranks])
        return np.array_equal(found, rounded(tokens @ w.astype("f4") / 2**14))


class Scatter(Putting):
    """out = this rank's tokens of the sum, over all ranks, of x times w."""

    def __init__(self, comm: Any, device: Any, tokens: int, hidden: int) -> None:
        share = hidden // comm.size
        super().__init__(
            comm, device, tokens, (tokens, share), (share, hidden), (tokens, hidden), (tokens // comm.size, hidden)
        )
        self.parts = device.matrix(comm.Alloc((tokens, hidden), "i2"))
        self.piece = max(self.block, 1)  # more copies would cost more than they hide, because the sums come last

    def collective(self) -> None:
        self.comm.Reduce_scatter_block(self.parts, self.out)

    def product(self) -> None:
        self.device.multiply(self.x, self.w, self.parts)

    def serial(self) -> None:
        self.product()
        self.collective()

    def pipelined(self) -> None:
        device = self.device
        self.begin()
        for first in self.pieces():
            for peer in self.peers(1):
                rows = self.rows(peer, first)
                device.multiply(self.x[rows], self.w, self.parts[rows])
                self.send(self.parts[rows], peer, first)
            rows = self.rows(self.comm.rank, first)
            device.multiply(self.x[rows], self.w, self.inbox[rows])
            device.order(device.main, device.sums)
            with device.on(device.sums):
                for peer in self.peers(-1):
                    self.win.Wait_signal(peer)
                device.add(self.comm.size, self.inbox[first:], self.block, self.out[first : first + self.piece])
        device.order(device.sums, device.main)
        self.end()

    def agrees(self, result: Matrix) -> bool:
        """Return whether some of this rank's sums are right.

        Each rank rounds its part of a sum before it sends it.
        """
        x, w = self.values
        parts = [rounded(x[self.own(rank)][self.some].astype("f4") @ w.astype("f4") / 2**14) for rank in self.ranks]
        total = np.float32(0)
        for part in self.comm.alltoall(parts):
            total = total + part
        return np.array_equal(result[self.some], rounded(total))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_host = os.environ.get("PYNCCLX_DEVICE") == "host"
    hidden, tokens = ([96], [48, 96]) if on_host else ([4096, 8192], [1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--hidden", type=int, nargs="+", default=hidden, metavar="N", help="rows of the weights")
    parser.add_argument("--tokens", type=int, nargs="+", default=tokens, metavar="N", help="of all ranks")
    add_outputs(parser, "tensor_parallel.png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
