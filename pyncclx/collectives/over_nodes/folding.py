"""Reductions over nodes: the operator's template arguments, and folds of vectors.

Each node folds its contributions in rank order; then the nodes' results are folded in the order of the nodes. A node's
result has the type of the elements, so 16-bit floats are rounded once more than inside one node. A program's own
operator may depend on the order of ranks. With such an operator, and if the ranks of some node are not contiguous, each
rank instead folds a part of all ranks' vectors in rank order.

`RailFold` folds the nodes' pieces over the rails, in the middle of a reduction. Two nodes send each other their pieces,
and both fold both pieces. More than two nodes exchange parts of the piece: each node folds one part and sends the
result to all. So a link carries a piece about twice for any number of nodes.
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
from ...nodes.program import SpanningCall
from ...nodes.rails import NodeMap
from ...operators import bound_op
from ...team.base import IntraBase as Intracomm
from ..reduction import Reduction
from .inside import Span, aligned, allreduce_call, reduce_scatter_call, unit_of
from .movement import exchange

# Pieces up to this length are sent to all nodes whole, in one trip instead of two. Not measured.
WHOLE_NBYTES = 16 << 10


class Folding(NamedTuple):
    """How vectors are folded: the kernel's template, the unit, and NCCL's operator."""

    template: tuple[str, ...]  # template arguments of the last fold, which completes the result
    unit_nbytes: int  # a vector is cut into parts at multiples of this length
    nccl: NcclReduction | None  # NCCL's operator if NCCL can do the whole reduction

    @classmethod
    def of(cls, comm: Intracomm, given: Reduction) -> Folding:
        """Return how the vectors of a reduction are folded."""
        template = given.template
        nccl = nccl_reduction(template, comm.size, deterministic=comm.deterministic)
        return cls(template, unit_of(template, given.send.datatype.itemsize), nccl)

    @property
    def inside(self) -> tuple[str, ...]:
        """Template arguments of folds inside a node: for an average, those of a sum.

        The last fold divides.
        """
        element, operator = self.template
        return (element, "Sum") if operator == "Avg" else self.template

    @property
    def of_records(self) -> bool:
        """Whether elements are records, which only a few kernels accept."""
        operator = bound_op.named(self.template)
        return operator is not None and operator.of_records

    def goes_by_node(self, places: NodeMap) -> bool:
        """Return whether each node may fold its vectors first, before any exchange."""
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
    """The result of a fold of the node's vectors, or this rank's part of that result.

    On a node of one rank, no step folds, and the result is the rank's own vector.

    Attributes
    ----------
    address : int
        Address of the result.
    after : tuple of int
        Steps that must end before the result is used.
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

    `after` are the last steps that have used the slot's memory.
    """
    places = composition.places
    mine = spans[places.local_rank]
    if places.local_size == 1:
        return OfNode(send + mine.begin, after)
    call = reduce_scatter_call(send, spans, slot, mine.nbytes, folding.inside)
    return OfNode(slot, (composition.kernel(call),))


def fold_shared(composition: Composition, folding: Folding, nbytes: int, result: int, *, begin: int = 0) -> None:
    """Add the folds of a part of all ranks' vectors after a host exchange.

    As in the other algorithms, each node's vectors are folded first, then the nodes' results, so the bits are the same.
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
    Return the index of the fold's step.
    """
    places = composition.places
    mine = spans[places.rank].nbytes
    stride = aligned(mine)
    sends = [Transfer(rank, send + span.begin, span.nbytes) for rank, span in enumerate(spans)]
    receives = [Transfer(rank, slots + rank * stride, mine) for rank in range(places.size)]
    moved = exchange(composition, "exchange of contributions", sends, receives)
    return composition.fold(folding.template, Vectors(slots, places.size, stride), mine, result, after=(moved,))


class RailFold:
    """The fold of a rank's piece in segments, at most `at_once` of them in flight."""

    def __init__(self, composition: Composition, folding: Folding, longest: int, *, at_once: int) -> None:
        places = composition.places
        self._composition, self._folding, self._places = composition, folding, places
        self._stride = aligned(longest)
        self._whole = places.count == 2 or longest <= WHOLE_NBYTES
        # The additional vector is for this node's own contribution, which has its own slot if it is cut into parts.
        each = (places.count + 1) * self._stride
        (base,) = composition.memory(at_once * each)
        self._slots = [base + number * each for number in range(at_once)]
        # Address of the node's vector and place of the exchange, by segment in flight.
        self._begun: dict[int, tuple[int, int]] = {}
        # The last step on the slots of each segment.
        self._ended: list[int] = []

    def begin(self, spans: list[Span], send: int, segment: int) -> None:
        """Reduce a segment of the vectors inside the node, and start its exchange.

        The rank with local index r reduces ``spans[r]`` and exchanges it with its peers on the other nodes. `send` is
        the address of this rank's vector, `segment` the segment's number.
        """
        places, slots = self._places, self._slots[segment % len(self._slots)]
        mine = spans[places.local_rank]
        slot = slots + (places.node if self._whole else places.count) * self._stride
        before = segment - len(self._slots)  # segment that used the same slots
        free = (self._ended[before],) if before >= 0 else ()
        own, after = part_of_node(self._composition, self._folding, send, spans, slot, free)
        sends, receives = [], []
        for node, peer in self._peers():
            part = Span(0, mine.nbytes) if self._whole else self._parts(mine)[node]
            length = mine.nbytes if self._whole else self._parts(mine)[places.node].nbytes
            sends.append(Transfer(peer, own + part.begin, part.nbytes))
            receives.append(Transfer(peer, slots + node * self._stride, length))
        exchanged = self._composition.exchange(
            "exchange over the rails", sends, receives, on_rail=True, aside=True, after=after
        )
        self._begun[segment] = own, exchanged

    def end(self, mine: Span, result: int, segment: int) -> int:
        """Fold the received vectors of a segment; return the index of the last step.

        This rank's span goes to `result`.
        """
        composition, places = self._composition, self._places
        slots, (own, begun) = self._slots[segment % len(self._slots)], self._begun.pop(segment)
        if self._whole:
            self._ended.append(self._fold(slots, own, mine.nbytes, result, begun))
            return self._ended[-1]
        parts = self._parts(mine)
        part = parts[places.node]
        folded = self._fold(slots, own + part.begin, part.nbytes, result + part.begin, begun)
        self._ended.append(folded)
        sends = [Transfer(peer, result + part.begin, part.nbytes) for _, peer in self._peers()]
        receives = [Transfer(peer, result + parts[node].begin, parts[node].nbytes) for node, peer in self._peers()]
        return composition.exchange(
            "exchange of results over the rails", sends, receives, on_rail=True, aside=True, after=(folded,)
        )

    def _fold(self, slots: int, own: int, nbytes: int, result: int, begun: int) -> int:
        places = self._places
        count = places.count if places.local_rank < places.lanes else 0
        vectors = Vectors(slots, count, self._stride, (places.node, own))
        return self._composition.fold(self._folding.template, vectors, nbytes, result, after=(begun,))

    def _parts(self, mine: Span) -> list[Span]:
        return Span(0, mine.nbytes).cut(self._places.count, self._folding.unit_nbytes)

    def _peers(self) -> list[tuple[int, int]]:
        """Return each other node with its rank on this rank's rail.

        A rank without a rail has no peers.
        """
        places = self._places
        if places.local_rank >= places.lanes:
            return []
        return [(node, places.peer_on(node, places.local_rank)) for node in places.other_nodes]
