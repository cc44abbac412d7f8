"""A step of tensor parallelism: its matrices, windows and pieces, and its check."""

from __future__ import annotations

from typing import Any

import numpy as np

import pyncclx

Shape = tuple[int, int]
FULL = 1 << 22  # elements of a product that fills a large GPU: a tile of 128 by 256 for each multiprocessor
WORTH = 1 << 32  # multiplications of one block's product that take as long as dividing it into pieces costs
SAMPLES = 8  # tokens of each rank that NumPy checks


class Step:
    """Common part of both steps: the ranks' blocks of tokens, and a window for puts.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    device : overlap.Gpu or overlap.Cpu
    tokens, hidden : int
        Tokens of all ranks; length of a token.
    x, w, out, inbox : tuple of int
        Shapes.
    """

    def __init__(self, comm: Any, device: Any, tokens: int, x: Shape, w: Shape, inbox: Shape, out: Shape) -> None:
        self.comm, self.device, self.block = comm, device, tokens // comm.size
        self.is_worth = self.block * w[1] >= FULL // 4 and self.block * w[0] * w[1] >= WORTH
        self.piece = max(self.block // max(1, self.block * w[1] // FULL), 1)
        random = np.random.default_rng([comm.rank, tokens, *w])
        self.values = [random.integers(-100, 101, shape, "i1") for shape in (x, w)]
        self.x, self.w = map(device.put, self.values)
        memory = comm.Alloc(inbox, "i2")  # an element of type bfloat16 has 16 bits
        self.ranks, self.some = range(comm.size), slice(None, None, max(1, self.block // SAMPLES))
        self.win = pyncclx.Win.Create(memory, 2, comm=comm)
        self.win.Lock_all()
        self.nothing = memory[:0]
        self.inbox, self.out = device.matrix(memory), device.matrix(comm.Alloc(out, "i2"))

    def overlapped(self) -> None:
        """Run the faster of both ways."""
        self.pipelined() if self.is_worth else self.serial()

    def pieces(self) -> range:
        """Return the first token of each piece of a rank's block.

        A piece has `self.piece` tokens.
        """
        return range(0, self.block, self.piece)

    def own(self, rank: int) -> slice:
        """Return the slice of a rank's tokens among all."""
        return slice(rank * self.block, (rank + 1) * self.block)

    def rows(self, rank: int, first: int) -> slice:
        """Return the slice of a piece of a rank's tokens among all."""
        return slice(rank * self.block + first, rank * self.block + min(first + self.piece, self.block))

    def peers(self, way: int) -> list[int]:
        """Return the other ranks, beginning with the next (1) or the previous one (-1).

        In this order each rank receives from one rank at a time.
        """
        return [(self.comm.rank + way * j) % self.comm.size for j in range(1, self.comm.size)]

    def is_right(self) -> bool:
        """Return whether both ways agree, and agree with NumPy. Collective.

        NumPy checks some tokens of each rank.
        """
        results = []
        for version in (self.serial, self.pipelined, self.pipelined):
            with self.device.on(self.device.main):
                self.inbox[...] = self.out[...] = 0
                version()
            results.append(self.device.get(self.out))
        equal = all(np.array_equal(result, results[0]) for result in results)
        return all(self.comm.allgather(equal and self.agrees(results[0])))

    def free(self) -> None:
        """Free the window; the communicator frees its memory."""
        self.win.Unlock_all()
        self.win.Free()
