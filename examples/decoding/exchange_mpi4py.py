"""Exchange by mpi4py through host memory: the host sorts the rows by rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from common.program import to_host
from exchange import Array, Exchange, Shape, experts_of


class Staged(Exchange):
    """`Alltoall` of counts, then `Alltoallv` of rows and of results."""

    name = "mpi4py"
    # The host works in each call.
    is_capturable = False

    def __init__(self, comm: Any, xp: Any, shape: Shape) -> None:
        super().__init__(comm, xp, shape)
        self.mpi = MPI.Intracomm(comm)  # mpi4py's own methods, not those of pyncclx
        self.parts = [experts_of(shape.experts, comm.size, rank) for rank in range(comm.size)]

    def dispatch(self, x: Array, chosen: Array, weights: Array) -> Array:
        ids, self.weights = to_host(chosen).ravel(), to_host(weights)
        self.order = np.argsort(ids, kind="stable")
        counts = np.bincount(ids, minlength=self.shape.experts)
        self.sent = [int(counts[part.start : part.stop].sum()) for part in self.parts]
        arriving = self._exchange_counts(counts)
        self.arriving = arriving.sum(axis=1).tolist()
        rows = self._move(to_host(x)[self.order // self.shape.k], self.sent, self.arriving)
        self.slots = self._slots_of(arriving)
        blocks = np.zeros((len(self.experts) * self.capacity, self.shape.hidden), rows.dtype)
        blocks[self.slots] = rows
        return self.xp.asarray(blocks.reshape(-1, self.capacity, self.shape.hidden))

    def combine(self, results: Array) -> Array:
        rows = to_host(results).reshape(-1, self.shape.hidden)[self.slots]
        returned = np.empty((len(self.order), self.shape.hidden), rows.dtype)
        returned[self.order] = self._move(rows, self.arriving, self.sent)
        weighted = returned.reshape(*self.weights.shape, -1) * self.weights[:, :, None]
        return self.xp.asarray(weighted.sum(axis=1, dtype="f4").astype(rows.dtype))

    def _exchange_counts(self, counts: Array) -> Array:
        """Return the number of rows from each rank for each local expert."""
        lengths = [len(part) for part in self.parts]
        arriving = np.empty((self.comm.size, len(self.experts)), counts.dtype)
        self.mpi.Alltoallv([counts, lengths], [arriving, [len(self.experts)] * self.comm.size])
        return arriving

    def _slots_of(self, arriving: Array) -> Array:
        """Return the slots of the received rows, which are ordered by rank and expert.

        Rows that do not fit share the last slot.
        """
        before = np.cumsum(arriving, axis=0) - arriving  # rows of earlier ranks for the same expert
        pairs = zip(before.flat, arriving.flat, strict=True)
        at = np.concatenate([np.arange(first, first + count) for first, count in pairs])
        expert = np.repeat(np.tile(np.arange(len(self.experts)), self.comm.size), arriving.ravel())
        self.lost += int((at >= self.capacity).sum())
        return expert * self.capacity + np.minimum(at, self.capacity - 1)

    def _move(self, rows: Array, sent: list[int], arriving: list[int]) -> Array:
        """Send rows to each rank, `sent` of them in order; return the received rows."""
        received = np.empty((sum(arriving), self.shape.hidden), rows.dtype)
        width = rows.dtype.itemsize * self.shape.hidden
        counts = [[width * count for count in each] for each in (sent, arriving)]
        self.mpi.Alltoallv([rows, counts[0], MPI.BYTE], [received, counts[1], MPI.BYTE])
        return received
