"""Cases of reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from .case import OPS, Case


class Reduction(Case):
    """Reduction in a fixed order, so that results are compared bit by bit."""

    reduces = True

    @property
    def op(self) -> Any:
        return OPS[self.options.op]

    def spec(self, array: Any) -> Any:
        return self.elements.spec(array)

    def further(self) -> tuple[Any, ...]:
        return self.op, *super().further()

    def expected(self) -> Any:
        return self.folded()

    def folded(self, first: int = 0, count: int | None = None) -> Any:
        """Return the fold of all ranks' contributions in rank order.

        Over several nodes, the fold is inside each node first, and then in the order of nodes.
        """
        spanning = self.comm.spanning
        if spanning is None:
            return self.in_order(range(self.size), first, count)
        nodes = map(spanning.places.ranks_of, range(spanning.places.count))
        inside = "sum" if self.options.op == "avg" else self.options.op
        results = [self.in_order(ranks, first, count, inside) for ranks in nodes]
        return self.elements.fold(self.xp, self.options.op, results, self.size)

    def in_order(self, ranks: Sequence[int], first: int = 0, count: int | None = None, op: str | None = None) -> Any:
        """Return the fold of some ranks' contributions, by `op` if given."""
        contributions = [self.own(rank, first, count) for rank in ranks]
        return self.elements.fold(self.xp, op or self.options.op, contributions)


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
    """Reduce-scatter; in place, MPI's result is at the beginning of the buffer."""

    method, kind = "Reduce_scatter_block", "reduce_scatter"
    receives_all = False

    def source(self, in_place: bool) -> Any:
        return self.send

    def target(self, in_place: bool) -> Any:
        return self.part(self.send, 0) if in_place else self.recv

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        return (MPI.IN_PLACE, self.spec(self.send), *self.further()) if in_place else super().arguments(in_place)

    def expected(self) -> Any:
        return self.folded(self.rank * self.block, self.block)


class ReduceScatter(ReduceScatterBlock):
    """Equal counts, passed to an operation that takes any counts."""

    method = "Reduce_scatter"

    def further(self) -> tuple[Any, ...]:
        return [self.block] * self.size, *super().further()


class Scan(Reduction):
    method, kind = "Scan", "scan"
    blocks = False

    def expected(self) -> Any:
        return self.in_order(range(self.rank + 1))


class Exscan(Scan):
    method, kind = "Exscan", "exscan"

    def target(self, in_place: bool) -> Any:
        return self.recv if self.rank else None

    def expected(self) -> Any:
        return self.in_order(range(self.rank))
