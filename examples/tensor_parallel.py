"""Tensor parallelism whose communication hides behind its matrix products.

    mpiexec -n 4 python examples/tensor_parallel.py [--hidden 4096 8192] [--tokens 1024 4096 16384]

A layer's weights are divided among the ranks, and so are its tokens where nothing needs them all. That takes two steps,
each a collective and a product, which need not wait for each other:

    gather    every rank multiplies all tokens by its columns of the weights. The copy engines put each rank's tokens
              into the others' memory, on a stream of their own, with a signal behind. The product of a rank's tokens
              begins when they are there; the own ones go first.
    scatter   every rank has a part of all sums, and keeps the sums of its own tokens. The product for another rank's
              tokens is put there as soon as it is done, while the next one is computed. Each rank adds what it got, in
              the order of the ranks.

Large blocks of tokens go in pieces, which are still large enough for the product of each to fill the GPU.

Both are compared with the same by `Allgather` and `Reduce_scatter_block`, bit by bit, and with NumPy. On GPUs, where
PyTorch multiplies, all is replayed from CUDA graphs, timed, and drawn beside product and collective alone. With
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
from overlap import Matrix, device_of, rounded
from solvers import figure
from token_shuffle import read_options

import pyncclx

Shape = tuple[int, int]
WAYS = ("product", "collective", "serial", "overlapped")
REPLAYED = 10  # calls in a graph
FULL = 1 << 22  # numbers of a product that keeps a large GPU busy: a tile of 128 by 256 for each multiprocessor
SAMPLES = 8  # of the tokens of each rank, for NumPy


def main() -> int:
    """Check and time both steps for all sizes; 1 if a result is wrong."""
    world = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(world, parse)
    device, wrong = device_of(world), 0
    points: dict[str, list[list[float]]] = {}
    for kind, hidden in ((kind, hidden) for kind in (Gather, Scatter) for hidden in options.hidden):
        title = f"{kind.__name__.lower()}, hidden {hidden}"
        for tokens in options.tokens:
            comm = world.Dup()
            step = kind(comm, device, tokens, hidden)
            wrong += not step.is_right()
            times = [1e6 * device.seconds(comm, getattr(step, way), REPLAYED) for way in WAYS]
            points.setdefault(title, []).append([tokens, *times])
            step.free()
            comm.Free()
            if world.rank == 0:
                print(line(title, tokens, *times), flush=True)
    if world.rank == 0:
        print(f"check: {'FAILED' if wrong else 'PASSED'}")
        draw(options.output, points)
    return int(wrong > 0)


def line(title: str, tokens: int, product: float, collective: float, serial: float, overlapped: float) -> str:
    """What is printed of one size."""
    share, hidden = 1 - product / serial, (serial - overlapped) / (serial - product)
    return (
        f"{title}, {tokens:5} tokens: {product:7.1f} µs + {collective:6.1f} = {serial:7.1f} serial, {overlapped:7.1f} "
        f"overlapped, {serial / overlapped:.2f}x; communication {share:.0%}, {hidden:.0%} of it hidden"
    )


class Step:
    """What both steps have: the ranks' blocks of tokens, and a window that the other ranks put into.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    device : overlap.Gpu or overlap.Cpu
    tokens, hidden : int
        Of all ranks; length of a token.
    x, w, out, inbox : tuple of int
        Shapes.
    """

    def __init__(self, comm: Any, device: Any, tokens: int, x: Shape, w: Shape, inbox: Shape, out: Shape) -> None:
        self.comm, self.device, self.block = comm, device, tokens // comm.size
        self.piece = max(self.block // max(1, self.block * w[1] // FULL), 1)
        random = np.random.default_rng([comm.rank, tokens, *w])
        self.values = [random.integers(-100, 101, shape, "i1") for shape in (x, w)]
        self.x, self.w = map(device.put, self.values)
        memory = comm.Alloc(inbox, "i2")  # a number of type bfloat16 has 16 bits
        self.ranks, self.some = range(comm.size), slice(None, None, max(1, self.block // SAMPLES))
        self.win = pyncclx.Win.Create(memory, 2, comm=comm)
        self.win.Lock_all()
        self.nothing = memory[:0]
        self.inbox, self.out = device.matrix(memory), device.matrix(comm.Alloc(out, "i2"))

    def pieces(self) -> range:
        """The first token of each piece of a rank's block; a piece has `self.piece` tokens."""
        return range(0, self.block, self.piece)

    def own(self, rank: int) -> slice:
        """A rank's tokens among all."""
        return slice(rank * self.block, (rank + 1) * self.block)

    def rows(self, rank: int, first: int) -> slice:
        """A piece of a rank's tokens, among all."""
        return slice(rank * self.block + first, rank * self.block + min(first + self.piece, self.block))

    def peers(self, way: int) -> list[int]:
        """The other ranks, from the next one (1) or the one before (-1) on: so each receives from one at a time."""
        return [(self.comm.rank + way * j) % self.comm.size for j in range(1, self.comm.size)]

    def begin(self) -> None:
        """Let the copies wait until all ranks are here: nobody needs any more what was put before."""
        self.device.order(self.device.main, self.device.copies)
        with self.device.on(self.device.copies):
            self.comm.Barrier(device=True)

    def send(self, part: Matrix, peer: int, first: int) -> None:
        """Put a piece into this rank's place in another rank's window and tell it, beside what the main stream does."""
        device = self.device
        device.order(device.main, device.copies)
        with device.on(device.copies):
            self.win.Put(part, peer, self.rows(self.comm.rank, first).start * self.inbox.shape[1])
        device.order(device.copies, device.signals)
        with device.on(device.signals):  # the next copy need not wait for this
            self.win.Put_signal(self.nothing, peer, signal=self.comm.rank)

    def is_right(self) -> bool:
        """Whether both versions give the same, and what NumPy gives for some tokens of each rank. Collective."""
        results = []
        for version in (self.serial, self.overlapped, self.overlapped):
            with self.device.on(self.device.main):
                self.inbox[...] = self.out[...] = 0
                version()
            results.append(self.device.get(self.out))
        equal = all(np.array_equal(result, results[0]) for result in results)
        return all(self.comm.allgather(equal and self.agrees(results[0])))

    def free(self) -> None:
        """Give the window back; its memory goes with the communicator."""
        self.win.Unlock_all()
        self.win.Free()


class Gather(Step):
    """out = the tokens of all ranks times w, where x are this rank's tokens."""

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

    def overlapped(self) -> None:
        self.begin()
        for first in self.pieces():
            for peer in self.peers(1):
                rows = slice(first, first + self.piece)
                self.send(self.x[rows], peer, first)
        self.device.multiply(self.x, self.w, self.out[self.own(self.comm.rank)])
        for first in self.pieces():
            for peer in self.peers(-1):  # as they arrive
                self.win.Wait_signal(peer)
                rows = self.rows(peer, first)
                self.device.multiply(self.inbox[rows], self.w, self.out[rows])
        self.device.order(self.device.signals, self.device.main)

    def agrees(self, result: Matrix) -> bool:
        """Whether the products of some tokens of each rank are right."""
        x, w = self.values
        tokens = np.concatenate(self.comm.allgather(x[self.some])).astype("f4")
        found = np.concatenate([result[self.own(rank)][self.some] for rank in self.ranks])
        return np.array_equal(found, rounded(tokens @ w.astype("f4") / 2**14))


class Scatter(Step):
    """out = this rank's tokens of the sum, over all ranks, of x times w."""

    def __init__(self, comm: Any, device: Any, tokens: int, hidden: int) -> None:
        share = hidden // comm.size
        super().__init__(
            comm, device, tokens, (tokens, share), (share, hidden), (tokens, hidden), (tokens // comm.size, hidden)
        )
        self.parts = device.matrix(comm.Alloc((tokens, hidden), "i2"))

    def collective(self) -> None:
        self.comm.Reduce_scatter_block(self.parts, self.out)

    def product(self) -> None:
        self.device.multiply(self.x, self.w, self.parts)

    def serial(self) -> None:
        self.product()
        self.collective()

    def overlapped(self) -> None:
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
        device.order(device.signals, device.main)

    def agrees(self, result: Matrix) -> bool:
        """Whether some of this rank's sums are right; each rank's part of them is rounded before it travels."""
        x, w = self.values
        parts = [rounded(x[self.own(rank)][self.some].astype("f4") @ w.astype("f4") / 2**14) for rank in self.ranks]
        total = np.float32(0)
        for part in self.comm.alltoall(parts):
            total = total + part
        return np.array_equal(result[self.some], rounded(total))


def draw(path: Path, points: dict[str, list[list[float]]]) -> None:
    """For each step and hidden size the times over the tokens, as multiples of the product's."""
    drawing, panels = figure(len(points))
    for panel, (title, rows) in zip(np.atleast_1d(panels), points.items(), strict=True):
        tokens, *times = zip(*rows, strict=True)
        for name, style, each in zip(WAYS, ("k--", "k:", "o-", "o-"), times, strict=True):
            panel.loglog(tokens, each, style, base=2, label=name)
        panel.set(title=title, xlabel="tokens", ylabel="µs")
    np.atleast_1d(panels)[0].legend()
    drawing.savefig(path, dpi=120)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_host = os.environ.get("PYNCCLX_DEVICE") == "host"
    hidden, tokens = ([96], [48, 96]) if on_host else ([4096, 8192], [1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--hidden", type=int, nargs="+", default=hidden, metavar="N", help="rows of the weights")
    parser.add_argument("--tokens", type=int, nargs="+", default=tokens, metavar="N", help="of all ranks")
    parser.add_argument("--output", type=Path, default=Path("tensor_parallel.png"), metavar="FILE", help="picture")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
