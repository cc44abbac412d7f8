"""Reduce_scatter and Reduce_scatter_block over nodes.

For each node, every local rank folds its node's contributions to the block of the rank with the same local index there,
and sends it the result. The receiver folds the results of all nodes.
"""

from __future__ import annotations

from array import array

from ...nodes.composition import Composition, Vectors
from ...nodes.engine import Transfer
from ...nodes.program import SpanningCall
from ...nodes.rails import NodeMap
from ...team.base import IntraBase as Intracomm
from ..reduction import Reduction
from .folding import Folding, fold_from_all, fold_shared, part_of_node, reduction_call
from .inside import Span, aligned, blocks, spans_of

ON_HOST = {
    "reduce_scatter": "each rank's vector goes to all others, which fold those of each node, and then of the nodes"
}
HOW = {"reduce_scatter": "a fold inside the node for each node, whose ranks get the results over rails and fold them"}
GATHERED_NBYTES = 4 << 10  # longest vector that NCCL's allgather moves whole
# Longest vector for NCCL's reduce-scatter instead of NCCL's sends, receives and a fold. The reduce-scatter took 0.70
# times as long as the other way for 8 KB, 1.10 times for 32 KB (two nodes of one H200 each, 27 November 2026).
WHOLE_NBYTES = 16 << 10


def reduce_scatter(comm: Intracomm, given: Reduction) -> SpanningCall:
    """Return the call of Reduce_scatter or Reduce_scatter_block over several nodes."""
    spans = blocks(given.nbytes, comm.size) if given.blocks is None else spans_of(given.blocks)
    return reduction_call(comm, given, _compose, spans=spans)


def is_gathered(places: NodeMap, nbytes: int) -> bool:
    """Return whether NCCL's allgather, if available, moves whole vectors to all ranks.

    For few bytes the allgather takes less time than NCCL's sends and receives. `nbytes` is the length of the longest
    block.
    """
    return nbytes * places.size <= GATHERED_NBYTES


def is_of_nccl(places: NodeMap, nbytes: int) -> bool:
    """Return whether NCCL, if it supports the call, runs it for blocks of `nbytes`."""
    return nbytes * places.size <= WHOLE_NBYTES


def _compose(composition: Composition, *, folding: Folding, send: int, recv: int, spans: list[Span]) -> None:
    places = composition.places
    mine, nbytes = spans[places.rank], sum(span.nbytes for span in spans)
    if folding.goes_by_node(places) and composition.spanning.is_short(nbytes):
        everyone = range(places.size)
        composition.share("exchange of vectors on the host", send, nbytes, to=everyone, sources=everyone)
        fold_shared(composition, folding, mine.nbytes, recv, begin=mine.begin)
        return
    is_whole = is_of_nccl(places, mine.nbytes) and all(span.nbytes == mine.nbytes for span in spans)
    if composition.has_collectives and is_whole and folding.nccl is not None:
        _by_nccl(composition, folding, send, recv, mine.nbytes)
        return
    if composition.has_collectives and is_gathered(places, max(span.nbytes for span in spans)):
        (vectors,) = composition.memory(places.size * nbytes)
        composition.collective("allgather", send, vectors, nbytes)
        block = vectors + mine.begin
        composition.fold(folding.template, Vectors(block, places.size, nbytes), mine.nbytes, recv)
        return
    if folding.goes_by_node(places) and not folding.of_records:
        _by_node(composition, folding, send, spans, recv)
        return
    (slots,) = composition.memory(places.size * aligned(mine.nbytes))
    fold_from_all(composition, folding, send, spans, recv, slots)


def _by_nccl(composition: Composition, folding: Folding, send: int, recv: int, nbytes: int) -> None:
    size = composition.places.size
    (apart,) = composition.memory(size * nbytes)
    # If the buffers overlap, the result would overwrite data that NCCL still reads.
    if send < recv + nbytes and recv < send + size * nbytes:
        composition.copy(apart, send, size * nbytes)
        send = apart
    composition.collective("reduce_scatter", send, recv, nbytes, folding.nccl)


def _by_node(composition: Composition, folding: Folding, send: int, spans: list[Span], recv: int) -> None:
    """Fold the nodes' results; this rank's block of the result goes to `recv`."""
    places = composition.places
    mine = spans[places.rank]
    # This node folds the blocks for a node with more ranks in several rounds.
    turns = [(node, ranks) for node in range(places.count) for ranks in _turns(places, node)]
    outgoing = [(node, ranks, [spans[rank] for rank in ranks]) for node, ranks in turns]
    longest, stride = aligned(max(span.nbytes for span in spans)), aligned(mine.nbytes)
    slots, parts = composition.memory(places.count * stride, len(outgoing) * longest)
    sends, own = [], 0
    for number, (node, ranks, of_turn) in enumerate(outgoing):
        if not any(span.nbytes for span in of_turn):
            continue
        padded = of_turn + [Span(0, 0)] * (places.local_size - len(ranks))
        part, _ = part_of_node(composition, folding, send, padded, parts + number * longest)
        if node == places.node:
            own = _apart(composition, part, mine.nbytes, recv, slots + node * stride)
        elif places.local_rank < len(ranks):
            sends.append(Transfer(ranks[places.local_rank], part, of_turn[places.local_rank].nbytes))
    receives = []
    for node in places.other_nodes:
        ranks = places.ranks_of(node)
        receives.append(Transfer(ranks[places.local_rank % len(ranks)], slots + node * stride, mine.nbytes))
    composition.exchange("exchange of the nodes' results", sends, receives, on_rail=places.is_even)
    vectors = Vectors(slots, places.count, stride, (places.node, own))
    composition.fold(folding.template, vectors, mine.nbytes, recv)


def _turns(places: NodeMap, node: int) -> list[array[int]]:
    """Divide a node's ranks into groups of as many ranks as this node has."""
    ranks, size = places.ranks_of(node), places.local_size
    return [ranks[begin : begin + size] for begin in range(0, len(ranks), size)]


def _apart(composition: Composition, own: int, nbytes: int, recv: int, slot: int) -> int:
    """Copy this rank's vector if the result partly overlaps it; return its address."""
    if own == recv or abs(own - recv) >= nbytes:
        return own
    composition.copy(slot, own, nbytes)
    return slot
