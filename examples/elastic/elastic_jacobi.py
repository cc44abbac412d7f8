"""Jacobi's method that continues when ranks die: neighbours keep copies of rows.

    mpirun --with-ft ulfm --mca pml ob1 -n 4 python examples/elastic/elastic_jacobi.py

A plate is divided by rows. Every few steps each rank copies its rows to the memory of the next rank (a checkpoint).
When ranks die, the others shrink the communicator, return to the newest checkpoint that all of them have, divide the
rows again, and continue. The result has the same bits as without failures. Rows are lost only if a rank and the next
one die between two checkpoints. To try it, let a rank die: PYNCCLX_FAULT="rank=1,call=Sendrecv,nth=150,do=kill".
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
from common.program import array_module, read_options, share, to_host
from go_on import FAILURES, begin, without_failed

Array = Any  # NumPy's or CuPy's
_UP, _DOWN, _COPY = range(3)  # tags


@dataclass
class Checkpoint:
    """A state to which the ranks can return.

    Attributes
    ----------
    time : tuple of int
        Number of failures so far, and the step; the same on all ranks.
    ranks, rank : int
        Size and rank in the communicator at that time.
    own, other : array
        The rows of this rank, and those of the previous rank.
    """

    time: tuple[int, int]
    ranks: int
    rank: int
    own: Array
    other: Array

    def rows_of(self, rank: int) -> Array:
        """Return the rows of a rank that are kept here."""
        return self.own if rank == self.rank else self.other


class Plate:
    """One rank's rows, with a halo row above and below and constants on both sides."""

    def __init__(self, comm: Any, xp: Any, options: argparse.Namespace) -> None:
        self.xp, self.options = xp, options
        self.step = self.failures = 0
        self.checkpoints: list[Checkpoint] = []  # the last two, because some ranks may not have completed the last one
        self.has_lost = False
        self._divide(comm)
        self.now[1:-1, 1:-1] = 0
        self._keep()

    def _divide(self, comm: Any) -> None:
        self.comm = comm
        self.first, self.rows = share(self.options.size, comm.size, comm.rank)
        self.now = self.xp.zeros((self.rows + 2, self.options.size + 2))
        if comm.rank == 0:
            self.now[0] = 1  # the hot edge
        self.next = self.now.copy()

    def advance(self) -> float:
        """Run the steps to the next checkpoint; return the last step's largest change."""
        if self.has_lost:
            self._go_back()
        for _ in range(min(self.options.every, self.options.steps - self.step)):
            self._exchange()
            old, inner = self.now, self.next[1:-1, 1:-1]
            inner[:] = (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]) * 0.25
            self.now, self.next = self.next, self.now
            self.step += 1
        own, change = self.xp.abs(self.now - self.next).max().reshape(1), self.xp.zeros(1)
        # This also keeps any rank from being more than one checkpoint ahead.
        self.comm.Allreduce(own, change, MPI.MAX)
        self.comm.synchronize()
        self._keep()
        return float(change[0])

    def _exchange(self) -> None:
        """Receive the neighbours' edges into the halo."""
        last, comm = self.comm.size - 1, self.comm
        above = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
        below = comm.rank + 1 if comm.rank < last else MPI.PROC_NULL
        comm.Sendrecv(self.now[1], above, _UP, self.now[-1], below, _UP)
        comm.Sendrecv(self.now[-2], below, _DOWN, self.now[0], above, _DOWN)

    def _keep(self) -> None:
        """Make a checkpoint: a copy of the rows here, and one in the next rank's memory."""
        comm, columns = self.comm, self.options.size
        before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        own = self.now[1:-1, 1:-1].copy()
        other = self.xp.empty((share(columns, comm.size, before)[1], columns))
        comm.Sendrecv(own, after, _COPY, other, before, _COPY)
        comm.synchronize()
        made = Checkpoint((self.failures, self.step), comm.size, comm.rank, own, other)
        self.checkpoints = [*self.checkpoints[-1:], made]

    def recover(self) -> None:
        """Make a communicator of the living ranks; `advance` then returns to a checkpoint."""
        self.comm = without_failed(self.comm)
        self.failures += 1
        self.has_lost = True

    def _go_back(self) -> None:
        """Divide the rows of the newest common checkpoint among the living ranks."""
        times = [each.time for each in self.checkpoints]
        time = min(self.comm.allgather(times[-1]))
        kept = self.checkpoints[times.index(time)]
        places = _places(self.comm.allgather((kept.rank, (kept.rank - 1) % kept.ranks)), kept.ranks)
        self._divide(self.comm)
        self._move(kept, places)
        self.step = time[1]
        self.has_lost = False
        self._keep()

    def _move(self, kept: Checkpoint, places: dict[int, int]) -> None:
        """Move a checkpoint's rows to their new ranks; `places` maps old ranks to keepers."""
        size, columns = self.comm.size, self.options.size
        olds, news = _parts(columns, kept.ranks), _parts(columns, size)

        def moved(source: int, target: int) -> list[int]:
            """Return the rows to move from one rank to another, in order."""
            parts = (olds[old] for old, place in places.items() if place == source)
            return [row for part in parts for row in part if row in news[target]]

        mine = [kept.rows_of(old) for old, place in places.items() if place == self.comm.rank]
        send = self.xp.concatenate(mine) if mine else self.xp.empty((0, columns))
        arrived = [moved(source, self.comm.rank) for source in range(size)]
        received = self.xp.empty((self.rows, columns))
        sent = [len(moved(self.comm.rank, target)) * columns for target in range(size)]
        self.comm.Alltoallv([send, sent], [received, [len(rows) * columns for rows in arrived]])
        order = np.concatenate([np.array(rows, int) for rows in arrived]) - self.first
        self.now[1:-1, 1:-1][self.xp.asarray(order)] = received
        self.comm.synchronize()


def _parts(length: int, ranks: int) -> list[range]:
    """Return the rows of each rank."""
    shares = (share(length, ranks, rank) for rank in range(ranks))
    return [range(begin, begin + rows) for begin, rows in shares]


def _places(held: list[tuple[int, int]], ranks: int) -> dict[int, int]:
    """Return the rank that keeps each old rank's rows: itself if it lives."""
    copies = {other: rank for rank, (_, other) in enumerate(held)}
    places = copies | {own: rank for rank, (own, _) in enumerate(held)}
    lost = sorted(set(range(ranks)) - places.keys())
    if lost:
        raise SystemExit(f"the rows of ranks {lost} are lost: those that kept them have died, too")
    return dict(sorted(places.items()))


def main() -> int:
    """Run the steps and compare with NumPy; return 1 if the result is wrong."""
    comm, _ = begin()
    options = read_options(comm, parse_options)
    plate = Plate(comm, array_module(comm, "float64"), options)
    while True:
        try:
            while plate.step < options.steps or plate.has_lost:
                change = plate.advance()
            parts = plate.comm.gather((plate.failures, to_host(plate.now[1:-1, 1:-1])))
            break
        except FAILURES:
            plate.recover()
    if parts is None:
        return 0
    whole = np.concatenate([rows for _, rows in parts])
    is_right = bool((whole == reference(options.size, options.steps)).all())
    print(f"{options.steps} steps, {plate.failures} failures, {plate.comm.size} ranks: change {change:.2e}, ", end="")
    print("the bits of one rank" if is_right else "WRONG", flush=True)
    return int(not is_right)


def reference(size: int, steps: int) -> Array:
    """Compute the plate by NumPy, with the same additions in the same order."""
    old = np.zeros((size + 2, size + 2))
    old[0] = 1
    new = old.copy()
    for _ in range(steps):
        new[1:-1, 1:-1] = (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]) * 0.25
        old, new = new, old
    return old[1:-1, 1:-1]


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="elastic_jacobi.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=96, help="elements along an edge of the plate")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
