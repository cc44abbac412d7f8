"""Reduce over nodes.

Each node folds its vectors in pieces. Root's node receives the pieces, folds them, and sends the results to root.
"""

from __future__ import annotations

from ...nodes.composition import Composition, Vectors
from ...nodes.engine import Transfer
from ...nodes.program import SpanningCall
from ...nodes.rails import NodeMap
from ...team.base import IntraBase as Intracomm
from ..reduction import Reduction
from .bcast import broadcast_all
from .folding import Folding, fold_in_rank_order, fold_shared, part_of_node, reduction_call, whole_of_node
from .inside import Span, aligned, blocks_from, gatherv_call

ON_HOST = {"reduce": "each rank's vector goes to root, which folds those of each node, and then of the nodes"}
HOW = {
    "reduce": "a fold of pieces inside each node, which go over rails to root's node, are folded there, and go to root",
}


def reduce(comm: Intracomm, given: Reduction) -> SpanningCall:
    """Return the call of Reduce over several nodes."""
    return reduction_call(comm, given, _compose, nbytes=given.nbytes, root=given.root)


def _compose(composition: Composition, *, folding: Folding, send: int, recv: int, nbytes: int, root: int) -> None:
    places = composition.places
    if not folding.goes_by_node(places):
        fold_in_rank_order(composition, folding, send, recv, nbytes, to=(root,), name="results go to root")
    elif composition.spanning.is_short(nbytes):
        sources = range(places.size) if places.rank == root else ()
        composition.share("exchange of vectors on the host", send, nbytes, to=(root,), sources=sources)
        fold_shared(composition, folding, nbytes if places.rank == root else 0, recv)
    elif composition.has_collectives and folding.nccl is not None:
        peers = None if places.rank == root else ()
        composition.collective("reduce", send, recv, nbytes, folding.nccl, root, peers=peers)
    elif composition.has_collectives and is_broadcast(places):
        _from_other(composition, folding, send, recv, nbytes, root)
    else:
        _by_node(composition, folding, send, recv, nbytes, root)


def is_broadcast(places: NodeMap) -> bool:
    """Return whether NCCL's broadcast, if available, moves a vector to root.

    NCCL's broadcast takes less time than its send.
    """
    return places.count == 2


def _from_other(composition: Composition, folding: Folding, send: int, recv: int, nbytes: int, root: int) -> None:
    is_root = composition.places.rank == root
    (vector,) = composition.memory(nbytes) if is_root else (send,)
    broadcast_all(composition, vector, nbytes, 1 - root)
    if is_root:
        # The fold reads the vectors in rank order, except root's own, which it reads from `send`.
        vectors = vector - (1 - root) * nbytes
        composition.fold(folding.template, Vectors(vectors, 2, nbytes, (root, send)), nbytes, recv)


def _by_node(composition: Composition, folding: Folding, send: int, recv: int, nbytes: int, root: int) -> None:
    places = composition.places
    lanes = 1 if folding.of_records else places.lanes
    spans = Span(0, nbytes).cut(lanes, folding.unit_nbytes) + [Span(nbytes, 0)] * (places.local_size - lanes)
    mine, stride = spans[places.local_rank], aligned(spans[0].nbytes)
    slots, whole = composition.memory(places.count * stride, stride)
    slot = slots + places.node * stride
    # Records are folded on the ranks of one rail; the results of other ranks are ignored.
    if folding.of_records:
        own = whole_of_node(composition, folding, send, nbytes, slot).address
    else:
        own = part_of_node(composition, folding, send, spans, slot).address
    at_root, to = places.node == places.node_of(root), places.peer_on(places.node_of(root), places.local_rank)
    on_rail = mine.nbytes > 0
    sends = [Transfer(to, own, mine.nbytes)] if on_rail and not at_root else []
    receives = [
        Transfer(places.peer_on(node, places.local_rank), slots + node * stride, mine.nbytes)
        for node in places.other_nodes
        if on_rail and at_root
    ]
    composition.exchange("exchange with root's node", sends, receives, on_rail=True)
    if not at_root:
        return
    is_root = places.rank == root
    result = recv + mine.begin if is_root else whole
    vectors = Vectors(slots, places.count, stride, (places.node, own))
    composition.fold(folding.template, vectors, mine.nbytes, result)
    if places.local_size > 1:
        blocks = blocks_from(recv, spans) if is_root else None
        composition.kernel(gatherv_call(result, mine.nbytes, blocks, places.local_of(root)))
