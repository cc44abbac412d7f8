"""Tensor parallelism whose communication hides behind its matrix products.

    mpiexec -n 4 python examples/tensor_parallel.py [--hidden 4096 8192] [--tokens 1024 4096 16384]

A layer's weights are divided among the ranks, and so are its tokens where nothing needs them all. That takes two steps,
each a collective and a product, which need not wait for each other:

    gather    every rank multiplies all tokens by its columns of the weights. The copy engines put each rank's tokens
              into the others' memory, on a second stream, with a signal behind. The product of a rank's tokens begins
              when they are there; its own go first.
    scatter   every rank has a part of all sums, and keeps the sums of its own tokens. The product for another rank's
              tokens is put there as soon as it is done, while the next one is computed. In the end each rank adds what
              it got, in the order of the ranks.

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
from overlap import Matrix, Signals, device_of, rounded
from solvers import figure
from token_shuffle import read_options

import pyncclx

Shape = tuple[int, int]
WAYS = ("product", "collective", "serial", "overlapped")
REPLAYED = 10  # calls in a graph
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
        self.comm, self.device, self.signals, self.block = comm, device, Signals(comm), tokens // comm.size
        random = np.random.default_rng([comm.rank, tokens, *w])
        self.values = [random.integers(-100, 101, shape, "i1") for shape in (x, w)]
        self.x, self.w = map(device.put, self.values)
        memory = comm.Alloc(inbox, "i2")  # a number of type bfloat16 has 16 bits
        self.ranks, self.some = range(comm.size), slice(None, None, max(1, self.block // SAMPLES))
        self.win = pyncclx.Win.Create(memory, 2, comm=comm)
        self.win.Lock_all()
        self.inbox, self.out = device.matrix(memory), device.matrix(comm.Alloc(out, "i2"))

    def rows(self, rank: int) -> slice:
        """A rank's tokens among all."""
        return slice(rank * self.block, (rank + 1) * self.block)

    def peers(self, way: int) -> list[int]:
        """The other ranks, from the next one (1) or the one before (-1) on: so each receives from one at a time."""
        return [(self.comm.rank + way * j) % self.comm.size for j in range(1, self.comm.size)]

    def put(self, part: Matrix, peer: int) -> None:
        """Copy a block into this rank's place in another rank's window, and tell it."""
        self.win.Put(part, peer, self.comm.rank * self.block * self.inbox.shape[1])
        self.signals.tell(peer)

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
        device, main, side, mine = self.device, self.device.main, self.device.side, self.rows(self.comm.rank)
        device.order(main, side)
        with device.on(side):
            self.comm.Barrier(device=True)  # nobody needs what was gathered before any more
            for peer in self.peers(1):
                self.put(self.x, peer)
        device.multiply(self.x, self.w, self.out[mine])
        for peer in self.peers(-1):  # as they arrive
            self.signals.wait(peer)
            device.multiply(self.inbox[self.rows(peer)], self.w, self.out[self.rows(peer)])
        device.order(side, main)

    def agrees(self, result: Matrix) -> bool:
        """Whether the products of some tokens of each rank are right."""
        x, w = self.values
        tokens = np.concatenate(self.comm.allgather(x[self.some])).astype("f4")
        found = np.concatenate([result[self.rows(rank)][self.some] for rank in self.ranks])
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
        device, main, side, mine = self.device, self.device.main, self.device.side, self.rows(self.comm.rank)
        device.order(main, side)
        with device.on(side):
            self.comm.Barrier(device=True)  # everybody has added what came before
        for peer in self.peers(1):
            device.multiply(self.x[self.rows(peer)], self.w, self.parts[self.rows(peer)])
            device.order(main, side)
            with device.on(side):
                self.put(self.parts[self.rows(peer)], peer)
        device.multiply(self.x[mine], self.w, self.inbox[mine])
        for peer in self.peers(-1):
            self.signals.wait(peer)
        self.signals.add_rows(self.inbox.reshape(self.comm.size, self.block, -1), self.out)
        device.order(side, main)

    def agrees(self, result: Matrix) -> bool:
        """Whether some of this rank's sums are right; each rank's part of them is rounded before it travels."""
        x, w = self.values
        parts = [rounded(x[self.rows(rank)][self.some].astype("f4") @ w.astype("f4") / 2**14) for rank in self.ranks]
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
