"""Cases of reductions."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..elements import OPS
from .case import Case


class Reduction(Case):
    """Elements are folded in rank order, so results are compared bit by bit."""

    reduces = True

    @property
    def op(self) -> Any:
        return OPS[self.options.op]

    def spec(self, array: Any) -> Any:
        return self.elements.spec(array)

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        return MPI.IN_PLACE if in_place else self.spec(self.send), self.spec(self.recv), self.op

    def folded(self, ranks: int, first: int = 0, count: int | None = None) -> Any:
        """Fold the contributions of the first ranks."""
        return self.elements.fold(self.xp, self.options.op, [self.own(rank, first, count) for rank in range(ranks)])


class Allreduce(Reduction):
    method, kind = "Allreduce", "allreduce"
    blocks = False
    same_everywhere = True

    @property
    def bus_factor(self) -> float:
        return 2 - 2 / self.size

    def expected(self) -> Any:
        return self.folded(self.size)


class Reduce(Reduction):
    method, kind = "Reduce", "reduce"
    blocks = False
    rooted = True

    def source(self, in_place: bool) -> Any:
        return self.recv if in_place and self.is_root else self.send

    def target(self, in_place: bool) -> Any:
        return self.recv if self.is_root else None

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        if not self.is_root:
            return self.spec(self.send), None, self.op, self.root
        return (*super().arguments(in_place), self.root)

    def expected(self) -> Any:
        return self.folded(self.size)


class ReduceScatterBlock(Reduction):
    """In place, MPI's result is at the beginning of the buffer."""

    method, kind = "Reduce_scatter_block", "reduce_scatter"

    def lengths(self) -> tuple[int, int]:
        return self.count, self.block

    def source(self, in_place: bool) -> Any:
        return self.send

    def target(self, in_place: bool) -> Any:
        return self.part(self.send, 0) if in_place else self.recv

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        if in_place:
            return MPI.IN_PLACE, self.spec(self.send), self.op
        return self.spec(self.send), self.spec(self.recv), self.op

    def expected(self) -> Any:
        return self.folded(self.size, self.rank * self.block, self.block)


class ReduceScatter(ReduceScatterBlock):
    """Equal counts, by the operation that takes any."""

    method = "Reduce_scatter"

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        send, recv, op = super().arguments(in_place)
        return send, recv, [self.block] * self.size, op


class Scan(Reduction):
    method, kind = "Scan", "scan"
    blocks = False

    def expected(self) -> Any:
        return self.folded(self.rank + 1)


class Exscan(Scan):
    method, kind = "Exscan", "exscan"

    def target(self, in_place: bool) -> Any:
        return self.recv if self.rank else None

    def expected(self) -> Any:
        return self.folded(self.rank)
