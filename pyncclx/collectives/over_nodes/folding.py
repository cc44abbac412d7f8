"""Reductions over nodes: the operator's template arguments, and folds of vectors.

Each node folds its contributions in rank order; then the nodes' results are folded in the order of the nodes. A node's
result has the type of the elements, so 16-bit floats are rounded once more than inside one node. A program's own
operator may depend on the order of ranks. If the operator is such a one, and the ranks of some node are not contiguous,
each rank folds a part of all ranks' vectors in rank order instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...nodes.composition import Composition, Vectors
from ...nodes.engine import Transfer
from ...nodes.host_exchange import STRIDE_NBYTES
from ...nodes.nccl_library import NcclReduction, nccl_reduction
from ...nodes.places import Places
from ...nodes.program import SpanningCall
from ...operators import bound_op
from ...team.base import IntraBase as Intracomm
from ..reduction import Reduction
from .inside import allreduce_call, reduce_scatter_call
from .movement import exchange
from .pieces import Span, aligned, unit_of


class Folding(NamedTuple):
    """The operator of a reduction on its elements."""

    template: tuple[str, ...]  # template arguments of the last fold, which completes the result
    unit_nbytes: int  # parts are multiples of it
    nccl: NcclReduction | None  # NCCL's operator if NCCL can do the whole reduction

    @classmethod
    def of(cls, comm: Intracomm, given: Reduction) -> Folding:
        """Return the folding of a reduction."""
        template = given.template
        nccl = nccl_reduction(template, comm.size, deterministic=comm.deterministic)
        return cls(template, unit_of(template, given.send.datatype.itemsize), nccl)

    @property
    def inside(self) -> tuple[str, ...]:
        """The template arguments inside a node, where an average is only summed."""
        element, operator = self.template
        return (element, "Sum") if operator == "Avg" else self.template

    @property
    def of_records(self) -> bool:
        """Whether elements are records, which only a few kernels accept."""
        operator = bound_op.named(self.template)
        return operator is not None and operator.of_records

    def goes_by_node(self, places: Places) -> bool:
        """Return whether nodes may fold first; otherwise all ranks' vectors are exchanged."""
        return places.in_rank_order or bound_op.named(self.template) is None


def reduction_call(comm: Intracomm, given: Reduction, compose: Callable[..., None], **sizes: Any) -> SpanningCall:
    """Return the call of a reduction.

    `compose` is called with the composition, `folding`, the addresses `send` and `recv`, and `sizes`.
    """
    folding, send, recv = Folding.of(comm, given), given.send, given.recv
    order = () if comm.deterministic else ("not deterministic",)
    return SpanningCall(
        operation=given.operation,
        compose=partial(compose, folding=folding, send=send.address, recv=recv.address, **sizes),
        buffers=(send, recv),
        signature=(*given.signature, *order),
        empty=given.nbytes == 0,
    )


class OfNode(NamedTuple):
    """This rank's part of its node's fold, and the step that makes it.

    On a node of one rank, it is the rank's own vector.
    """

    address: int
    after: tuple[int, ...]


def whole_of_node(composition: Composition, folding: Folding, send: int, nbytes: int, slot: int) -> OfNode:
    """Add a fold of the node's vectors at `send`, with the result on all its ranks.

    If the node has several ranks, the result is in `slot`.
    """
    if composition.places.local_size == 1:
        return OfNode(send, ())
    return OfNode(slot, (composition.kernel(allreduce_call(send, slot, nbytes, folding.inside)),))


def part_of_node(
    composition: Composition,
    folding: Folding,
    send: int,
    spans: list[Span],
    slot: int,
    after: tuple[int, ...] = (),
) -> OfNode:
    """Add a fold of the node's vectors in parts: local rank r gets ``spans[r]``.

    `after` are the steps that used the slot's memory last.
    """
    places = composition.places
    mine = spans[places.local_rank]
    if places.local_size == 1:
        return OfNode(send + mine.begin, after)
    call = reduce_scatter_call(send, spans, slot, mine.nbytes, folding.inside)
    return OfNode(slot, (composition.kernel(call),))


def fold_shared(composition: Composition, folding: Folding, nbytes: int, result: int, *, begin: int = 0) -> None:
    """Add the folds of a part of all ranks' vectors after a host exchange.

    Like the other algorithms, they fold each node's vectors, then the nodes' results, so the result has the same bits.
    No rank waits for others to prepare the kernels, because the host exchange finds ranks whose calls differ.
    """
    places, vectors = composition.places, composition.spanning.host_exchange.address + begin
    ends = list(itertools.accumulate(len(places.ranks_of(node)) for node in range(places.count)))
    stride = STRIDE_NBYTES
    if ends[-1] > places.count:
        stride_of_results = aligned(nbytes)
        (results,) = composition.memory(places.count * stride_of_results)
        for node, (first, end) in enumerate(itertools.pairwise([0, *ends])):
            of_node = Vectors(vectors + first * stride, end - first, stride)
            composition.fold(folding.inside, of_node, nbytes, results + node * stride_of_results, alone=True)
        vectors, stride = results, stride_of_results
    composition.fold(folding.template, Vectors(vectors, places.count, stride), nbytes, result, alone=True)


def fold_in_rank_order(
    composition: Composition, folding: Folding, send: int, recv: int, nbytes: int, *, to: Sequence[int], name: str
) -> None:
    """Add a fold of all ranks' vectors in rank order, a part on each rank.

    The results go to the ranks `to`, in an exchange called `name`.
    """
    places = composition.places
    spans = Span(0, nbytes).cut(places.size, folding.unit_nbytes)
    mine = spans[places.rank]
    slots, result = composition.memory(places.size * aligned(mine.nbytes), mine.nbytes)
    folded = fold_from_all(composition, folding, send, spans, result, slots)
    sends = [Transfer(rank, result, mine.nbytes) for rank in to]
    receives = [Transfer(rank, recv + span.begin, span.nbytes) for rank, span in enumerate(spans) if places.rank in to]
    exchange(composition, name, sends, receives, after=(folded,))


def fold_from_all(
    composition: Composition, folding: Folding, send: int, spans: list[Span], result: int, slots: int
) -> int:
    """Add a fold of all ranks' vectors, in rank order.

    Rank r folds part ``spans[r]``; this rank's result goes to `result`. `slots` are aligned vectors, one for each rank.
    Return the fold's place in the composition.
    """
    places = composition.places
    mine = spans[places.rank].nbytes
    stride = aligned(mine)
    sends = [Transfer(rank, send + span.begin, span.nbytes) for rank, span in enumerate(spans)]
    receives = [Transfer(rank, slots + rank * stride, mine) for rank in range(places.size)]
    moved = exchange(composition, "exchange of contributions", sends, receives)
    return composition.fold(folding.template, Vectors(slots, places.size, stride), mine, result, after=(moved,))
