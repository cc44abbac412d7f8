"""Reduce_scatter and Reduce_scatter_block over nodes.

For each node, a kernel folds the blocks for its ranks. Each local rank folds the block for the rank of the same local
index and sends it there. The receiver folds the results of all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...nodes.composition import Composition, Vectors
from ...nodes.engine import Transfer
from ...nodes.nccl_engine import NcclEngine
from ...nodes.nccl_library import NcclReduction
from ...nodes.places import Places
from ...nodes.program import SpanningCall
from ...team.base import IntraBase as Intracomm
from ..reduction import Reduction
from .allgather import gather_all
from .folding import Folding, fold_from_all, fold_shared, part_of_node, reduction_call
from .pieces import Span, aligned, blocks, spans_of

ON_HOST = "each rank's vector goes to all others, which fold those of each node, and then of the nodes"
GATHERED_NBYTES = 4 << 10  # longest vector that NCCL's allgather moves whole
# Longest vector for NCCL's reduce-scatter instead of sends, receives and a fold. The former took 0.70 times as long as
# the latter for 8 KB, 1.10 times for 32 KB. Two nodes of one H200 each, 27 November 2026.
WHOLE_NBYTES = 16 << 10


def reduce_scatter(comm: Intracomm, given: Reduction) -> SpanningCall:
    """Lower Reduce_scatter and Reduce_scatter_block."""
    spans = blocks(given.nbytes, comm.size) if given.blocks is None else spans_of(given.blocks)
    return reduction_call(comm, given, _compose, spans=spans)


reduce_scatter_block = reduce_scatter


def explain(places: Places, nbytes: int) -> str:
    """Describe how a reduce-scatter runs, for `Comm.explain`."""
    return "a fold inside the node for each node, whose ranks get the results over rails and fold them"


def is_gathered(places: Places, nbytes: int) -> bool:
    """Return whether NCCL's allgather, if available, moves whole vectors to all ranks.

    It takes less time than NCCL's sends and receives for few bytes. `nbytes` is the length of the longest block.
    """
    return nbytes * places.size <= GATHERED_NBYTES


def is_of_nccl(places: Places, nbytes: int) -> bool:
    """Return whether NCCL does a call with blocks of `nbytes`, if it can."""
    return nbytes * places.size <= WHOLE_NBYTES


def _compose(composition: Composition, *, folding: Folding, send: int, recv: int, spans: list[Span]) -> None:
    places = composition.places
    mine, nbytes = spans[places.rank], sum(span.nbytes for span in spans)
    if folding.goes_by_node(places) and composition.spanning.is_short(nbytes):
        everyone = range(places.size)
        composition.share("exchange of vectors on the host", send, nbytes, to=everyone, sources=everyone)
        fold_shared(composition, folding, mine.nbytes, recv, begin=mine.begin)
        return
    engine = composition.spanning.rails.collectives()
    is_whole = is_of_nccl(places, mine.nbytes) and all(span.nbytes == mine.nbytes for span in spans)
    if engine is not None and is_whole and folding.nccl is not None:
        _by_nccl(composition, engine, folding.nccl, send, recv, mine.nbytes)
        return
    if engine is not None and is_gathered(places, max(span.nbytes for span in spans)):
        (vectors,) = composition.memory(places.size * nbytes)
        gather_all(composition, engine, send, vectors, nbytes)
        block = vectors + mine.begin
        composition.fold(folding.template, Vectors(block, places.size, nbytes), mine.nbytes, recv)
        return
    if folding.goes_by_node(places) and not folding.of_records:
        _ByNode(composition, folding, send, spans).add(mine, recv)
        return
    (slots,) = composition.memory(places.size * aligned(mine.nbytes))
    fold_from_all(composition, folding, send, spans, recv, slots)


def _by_nccl(
    composition: Composition, engine: NcclEngine, reduction: NcclReduction, send: int, recv: int, nbytes: int
) -> None:
    size = composition.places.size
    (apart,) = composition.memory(size * nbytes)
    # The result would overwrite data that NCCL still reads.
    if send < recv + nbytes and recv < send + size * nbytes:
        composition.copy(apart, send, size * nbytes)
        send = apart
    composition.collective(engine.reduce_scatter, send, recv, nbytes, reduction, sent_nbytes=nbytes * (size - 1))


@dataclass
class _ByNode:
    """The steps of a reduce-scatter that folds the nodes' results."""

    composition: Composition
    folding: Folding
    send: int
    spans: list[Span]

    def add(self, mine: Span, recv: int) -> None:
        """Add the steps; this rank's block of the result goes to `recv`."""
        composition, places = self.composition, self.composition.places
        nodes = range(places.count)
        outgoing = [(node, turn, self._of_turn(node, turn)) for node in nodes for turn in self._turns(node)]
        longest = aligned(max(span.nbytes for _, _, spans in outgoing for span in spans))
        stride = aligned(mine.nbytes)
        slots, parts = composition.memory(places.count * stride, len(outgoing) * longest)
        sends, receives, own = [], [], 0
        for number, (node, turn, spans) in enumerate(outgoing):
            if not any(span.nbytes for span in spans):
                continue
            part, _ = part_of_node(composition, self.folding, self.send, spans, parts + number * longest)
            peer = self._receiver(node, turn)
            if node == places.node:
                own = self._apart(part, mine.nbytes, recv, slots + node * stride)
            elif peer is not None:
                sends.append(Transfer(peer, part, spans[places.local_rank].nbytes))
        for node in places.other_nodes:
            ranks = places.ranks_of(node)
            receives.append(Transfer(ranks[places.local_rank % len(ranks)], slots + node * stride, mine.nbytes))
        composition.exchange("exchange of the nodes' results", sends, receives, on_rail=places.is_even)
        vectors = Vectors(slots, places.count, stride, (places.node, own))
        composition.fold(self.folding.template, vectors, mine.nbytes, recv)

    def _apart(self, own: int, nbytes: int, recv: int, slot: int) -> int:
        """Copy this rank's vector if the result partly overlaps it; return its address."""
        if own == recv or abs(own - recv) >= nbytes:
            return own
        self.composition.copy(slot, own, nbytes)
        return slot

    def _turns(self, node: int) -> range:
        """Return the turns in which this node's ranks fold the blocks for a node.

        There are several if that node has more ranks.
        """
        places = self.composition.places
        return range(-(-len(places.ranks_of(node)) // places.local_size))

    def _of_turn(self, node: int, turn: int) -> list[Span]:
        """Return the blocks for a node's ranks that this node's ranks fold in a turn."""
        places = self.composition.places
        ranks = places.ranks_of(node)[turn * places.local_size : (turn + 1) * places.local_size]
        return [self.spans[rank] for rank in ranks] + [Span(0, 0)] * (places.local_size - len(ranks))

    def _receiver(self, node: int, turn: int) -> int | None:
        """Return the rank whose block this rank folds in a turn."""
        places = self.composition.places
        ranks, index = places.ranks_of(node), turn * places.local_size + places.local_rank
        return ranks[index] if index < len(ranks) else None
