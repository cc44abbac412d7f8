"""Allreduce over nodes.

Shortest vectors: a host exchange over MPI sends all vectors to each rank, which folds them in the usual order. Short
vectors: all ranks of a node fold their vectors, exchange the results over their rails, and fold these, in one trip
between nodes. Long vectors: each rank folds a piece for its node, exchanges it over its rail and folds the received
pieces. Then all ranks of the node gather all pieces. Several segments of the vector are in flight, in different steps.
"""

from __future__ import annotations

from ...nodes.composition import Composition, Vectors
from ...nodes.engine import Transfer
from ...nodes.program import SpanningCall
from ...nodes.rails import NodeMap
from ...team.base import IntraBase as Intracomm
from ..reduction import Reduction
from .folding import Folding, RailFold, fold_in_rank_order, fold_shared, reduction_call, whole_of_node
from .inside import Span, aligned, allgatherv_call, bcast_call

ON_HOST = {"allreduce": "each rank's vector goes to all others, which fold those of each node, and then of the nodes"}
HOW_SHORT = {"allreduce": "a fold inside each node, an exchange of the nodes' results, a fold of these"}
HOW = {
    "allreduce": "a fold of pieces inside each node, an exchange and a fold over rails, pieces to all ranks of the node"
}
SHORT_NBYTES = 32 << 10  # longest short vector; not measured
# Shortest vector for which NCCL's allreduce replaces NCCL's allgather and a fold. For 2 MB the allreduce took 1.16
# times as long as allgather and fold, for 8 MB 0.92 times (two nodes of one H200 each, 26 November 2026).
WHOLE_NBYTES = 4 << 20
SEGMENT_NBYTES = 1 << 20  # segment of one rank's piece; not measured
# Segment of a vector if each rank is alone on its node. Then no work overlaps with the exchanges, and each exchange
# costs its latency, so the segments are longer.
ALONE_SEGMENT_NBYTES = 32 << 20


def allreduce(comm: Intracomm, given: Reduction) -> SpanningCall:
    """Return the call of Allreduce over several nodes."""
    return reduction_call(comm, given, compose, nbytes=given.nbytes)


def compose(composition: Composition, *, folding: Folding, send: int, recv: int, nbytes: int) -> None:
    """Add an Allreduce's steps to a composition; `send` and `recv` are addresses."""
    everyone = range(composition.places.size)
    if not folding.goes_by_node(composition.places):
        fold_in_rank_order(composition, folding, send, recv, nbytes, to=everyone, name="exchange of results")
    elif composition.spanning.is_short(nbytes):
        composition.share("exchange of vectors on the host", send, nbytes, to=everyone, sources=everyone)
        fold_shared(composition, folding, nbytes, recv)
    else:
        is_short = nbytes <= SHORT_NBYTES or folding.of_records
        alone = composition.has_collectives
        if alone and folding.nccl is not None and is_of_nccl(composition.places, nbytes):
            composition.collective("allreduce", send, recv, nbytes, folding.nccl)
        elif alone and (is_short or is_gathered(composition.places, nbytes)):
            _gathered(composition, folding, send, recv, nbytes)
        elif is_short:
            _short(composition, folding, send, recv, nbytes)
        else:
            _long(composition, folding, send, recv, nbytes)


def is_gathered(places: NodeMap, nbytes: int) -> bool:
    """Return whether NCCL's allgather, if available, moves whole vectors to all ranks."""
    return nbytes <= SHORT_NBYTES or places.count == 2


def is_of_nccl(places: NodeMap, nbytes: int) -> bool:
    """Return whether NCCL's allreduce, if it supports the call, runs all of it."""
    return nbytes >= WHOLE_NBYTES or not is_gathered(places, nbytes)


def _short(composition: Composition, folding: Folding, send: int, recv: int, nbytes: int) -> None:
    places, stride = composition.places, aligned(nbytes)
    (slots,) = composition.memory(places.count * stride)
    own = whole_of_node(composition, folding, send, nbytes, slots + places.node * stride).address
    takes_part = places.is_even or places.local_rank == 0
    peers = [(node, places.peer_on(node, places.local_rank)) for node in places.other_nodes if takes_part]
    sends = [Transfer(peer, own, nbytes) for _, peer in peers]
    receives = [Transfer(peer, slots + node * stride, nbytes) for node, peer in peers]
    composition.exchange("exchange of the nodes' results", sends, receives, on_rail=True)
    vectors = Vectors(slots, places.count if takes_part else 0, stride, (places.node, own))
    composition.fold(folding.template, vectors, nbytes if takes_part else 0, recv)
    if not places.is_even and places.local_size > 1:
        composition.kernel(bcast_call(recv, nbytes, 0))


def _gathered(composition: Composition, folding: Folding, send: int, recv: int, nbytes: int) -> None:
    """Add NCCL's allgather of whole vectors, then their fold.

    For ranks that are each alone on their nodes. The allgather takes less time than NCCL's sends and receives.
    """
    size = composition.places.size
    spans = Span(0, nbytes).cut(-(-nbytes // ALONE_SEGMENT_NBYTES), folding.unit_nbytes)
    (vectors,) = composition.memory(size * spans[0].nbytes)
    for begin, length in spans:
        if length:
            composition.collective("allgather", send + begin, vectors, length)
            composition.fold(folding.template, Vectors(vectors, size, length), length, recv + begin)


def _long(composition: Composition, folding: Folding, send: int, recv: int, nbytes: int) -> None:
    places = composition.places
    lanes = places.lanes
    pieces = Span(0, nbytes).cut(lanes, folding.unit_nbytes)
    pieces += [Span(nbytes, 0)] * (places.local_size - lanes)
    segment_nbytes = ALONE_SEGMENT_NBYTES if places.count == places.size else SEGMENT_NBYTES
    segments = max(1, min(8, pieces[0].nbytes // segment_nbytes))
    parts = [piece.cut(segments, folding.unit_nbytes) for piece in pieces]
    fold = RailFold(composition, folding, max(part.nbytes for part in parts[0]), at_once=min(2, segments))
    for segment in range(segments + 1):
        if segment < segments:
            fold.begin([part[segment] for part in parts], send, segment)
        if segment > 0:
            _end(composition, fold, [part[segment - 1] for part in parts], recv, segment - 1)


def _end(composition: Composition, fold: RailFold, spans: list[Span], recv: int, segment: int) -> None:
    """Fold this rank's span of a segment, and send it to all ranks of the node."""
    places = composition.places
    mine = spans[places.local_rank]
    folded = fold.end(mine, recv + mine.begin, segment)
    if places.local_size > 1:
        call = allgatherv_call(recv + mine.begin, recv, spans, places.local_rank)
        composition.kernel(call, after=(folded,))
