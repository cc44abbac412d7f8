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

    def further(self) -> tuple[Any, ...]:
        return self.op, *super().further()

    def expected(self) -> Any:
        return self.folded(self.size)

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


class Reduce(Reduction):
    method, kind = "Reduce", "reduce"
    blocks = False
    rooted = to_root = True


class ReduceScatterBlock(Reduction):
    """In place, MPI's result is at the beginning of the buffer."""

    method, kind = "Reduce_scatter_block", "reduce_scatter"
    receives_all = False

    def source(self, in_place: bool) -> Any:
        return self.send

    def target(self, in_place: bool) -> Any:
        return self.part(self.send, 0) if in_place else self.recv

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        return (MPI.IN_PLACE, self.spec(self.send), *self.further()) if in_place else super().arguments(in_place)

    def expected(self) -> Any:
        return self.folded(self.size, self.rank * self.block, self.block)


class ReduceScatter(ReduceScatterBlock):
    """Equal counts, by the operation that takes any."""

    method = "Reduce_scatter"

    def further(self) -> tuple[Any, ...]:
        return [self.block] * self.size, *super().further()


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
