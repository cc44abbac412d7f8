"""Allgather and Allgatherv over nodes.

A rank sends its block over its rail to each node, where a kernel copies it to all ranks. The kernels for one node's
blocks run while the next node's blocks are in flight. Short blocks go through a host exchange. If each rank is alone on
its node, NCCL's allgather moves blocks of equal length.
"""

from __future__ import annotations

from functools import partial

from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.host_exchange import Block
from ...nodes.program import SpanningCall
from ...nodes.rails import NodeMap
from ...team.base import IntraBase as Intracomm
from ..allgather import Gathering
from ..transformed import Arguments
from .inside import Span, allgatherv_call, blocks, spans_of

ON_HOST = {"allgather": "each rank's block goes to all others"}
HOW = {
    "allgather": (
        "each rank's block goes over its rail to every node, and a kernel for each node gives it to the ranks there"
    )
}


def allgather(comm: Intracomm, given: Gathering | Arguments) -> SpanningCall:
    """Return the call of Allgather or Allgatherv over several nodes."""
    if isinstance(given, Arguments):
        return _transformed(comm.size, given)
    recv, lengths, _ = given.blocks
    return SpanningCall(
        operation=given.operation,
        compose=partial(compose, own=given.address, recv=recv.address, spans=spans_of(given.blocks)),
        buffers=(given.send, recv),
        signature=tuple(lengths),
        empty=not any(lengths),
    )


def _transformed(size: int, given: Arguments) -> SpanningCall:
    """Return a call with a transform: write this rank's rows to recvbuf, then gather."""
    recv, nbytes = given.recv.address, given.recv.nbytes

    def compose_both(composition: Composition) -> None:
        own = recv + composition.places.rank * nbytes
        made = composition.transform(given.applied.template, given.rows(own, nbytes))
        compose(composition, own=own, recv=recv, spans=blocks(nbytes, size), after=(made,))

    return SpanningCall(
        operation="Allgather",
        compose=compose_both,
        buffers=given.buffers,
        signature=given.signature,
        empty=nbytes == 0,
    )


def compose(composition: Composition, *, own: int, recv: int, spans: list[Span], after: tuple[int, ...] = ()) -> None:
    """Add steps that copy each rank's bytes at `own` to its span of all ranks' `recv`.

    `own` may be the address of this rank's own span. `after` are the steps that write the bytes to send.
    """
    if composition.spanning.is_short(max(span.nbytes for span in spans)):
        _on_host(composition, own, recv, spans)
    elif composition.has_collectives and _are_blocks(spans):
        composition.collective("allgather", own, recv + spans[0].begin, spans[0].nbytes)
    else:
        _by_node(composition, own, recv, spans, after)


def _are_blocks(spans: list[Span]) -> bool:
    """Return whether spans are contiguous, in rank order and of equal length."""
    first = spans[0]
    return all(span == Span(first.begin + rank * first.nbytes, first.nbytes) for rank, span in enumerate(spans))


def _on_host(composition: Composition, own: int, recv: int, spans: list[Span]) -> None:
    places, exchange = composition.places, composition.spanning.host_exchange
    mine, everyone = spans[places.rank], range(places.size)
    blocks = [Block(rank, 0, span.nbytes) for rank, span in enumerate(spans)]
    name = "exchange of blocks on the host"
    composition.share(name, own, mine.nbytes, to=everyone, sources=everyone, blocks=blocks)
    place = 0
    for begin, nbytes in _runs(spans):
        composition.copy(recv + begin, exchange.gathered + place, nbytes)
        place += nbytes


def _runs(spans: list[Span]) -> list[Span]:
    """Join adjacent spans."""
    runs: list[Span] = []
    for span in spans:
        if runs and runs[-1].begin + runs[-1].nbytes == span.begin:
            runs[-1] = Span(runs[-1].begin, runs[-1].nbytes + span.nbytes)
        elif span.nbytes:
            runs.append(span)
    return runs


def _by_node(composition: Composition, own: int, recv: int, spans: list[Span], after: tuple[int, ...]) -> None:
    places = composition.places
    mine = spans[places.rank]
    arrived = []
    for step in range(1, places.count):
        to, source = (places.node + step) % places.count, (places.node - step) % places.count
        sends = [Transfer(_holder(places, to, places.local_rank), own, mine.nbytes)]
        receives = [
            Transfer(rank, recv + spans[rank].begin, spans[rank].nbytes)
            for index, rank in enumerate(places.ranks_of(source))
            if _holder(places, places.node, index) == places.rank
        ]
        name = "each rank's block to every node"
        # With several ranks on the node, kernels run beside the exchange.
        aside = places.local_size > 1
        place = composition.exchange(name, sends, receives, on_rail=places.is_even, aside=aside, after=after)
        arrived.append((source, place))
    _spread(composition, places.node, own, recv, spans, after=())
    for source, place in arrived:
        _spread(composition, source, None, recv, spans, after=(place,))


def _holder(places: NodeMap, node: int, index: int) -> int:
    """Return the rank of a node that receives the blocks of other nodes' rank `index`."""
    ranks = places.ranks_of(node)
    return ranks[index % len(ranks)]


def _spread(
    composition: Composition, node: int, own: int | None, recv: int, spans: list[Span], after: tuple[int, ...]
) -> None:
    """Copy a node's blocks to all local ranks, from the local ranks that hold them.

    This rank's own block is at `own`, if given.
    """
    places = composition.places
    ranks, size = places.ranks_of(node), places.local_size
    if size == 1:
        if own is not None and own != recv + spans[places.rank].begin:
            composition.copy(recv + spans[places.rank].begin, own, spans[places.rank].nbytes)
        return
    for first in range(0, len(ranks), size):
        held = [spans[rank] for rank in ranks[first : first + size]]
        held += [Span(0, 0)] * (size - len(held))
        address = recv + held[places.local_rank].begin if own is None else own
        if any(span.nbytes for span in held):
            composition.kernel(allgatherv_call(address, recv, held, places.local_rank), after=after)
