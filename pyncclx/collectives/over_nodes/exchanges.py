"""Operations over nodes that are one exchange: Gather, Scatter, Alltoallw."""

from __future__ import annotations

from functools import partial

from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.program import SpanningCall
from ...team.base import IntraBase as Intracomm
from ..alltoallw import Sides, with_packed
from ..calls import FixedCounts
from ..rooted import Rooted
from .movement import apart, exchange


def gather(comm: Intracomm, given: Rooted) -> SpanningCall:
    """Lower Gather, Gatherv, Scatter and Scatterv."""
    root, own, each = given.root, Transfer(given.root, given.address, given.nbytes), []
    if given.blocks is not None:
        # Root's own block may be shorter than the place for it.
        own = own._replace(nbytes=min(given.nbytes, given.blocks.nbytes[root]))
        each = [Transfer(rank, given.blocks.address(rank), nbytes) for rank, nbytes in enumerate(given.blocks.nbytes)]
        each[root] = each[root]._replace(nbytes=own.nbytes)
    sends, receives = ([own], each) if given.gathers else (each, [own])
    return SpanningCall(
        operation=given.operation,
        compose=partial(_compose_rooted, sends=sends, receives=receives),
        buffers=given.buffers,
        signature=(given.nbytes, root) if given.equal else (root,),
    )


gatherv = scatter = scatterv = gather


def _compose_rooted(composition: Composition, *, sends: list[Transfer], receives: list[Transfer]) -> None:
    rank = composition.places.rank
    stays = {each for each in sends if each.peer == rank} & {each for each in receives if each.peer == rank}
    leaving, coming = ([each for each in side if each not in stays] for side in (sends, receives))
    exchange(composition, "exchange with root", leaving, coming)


def alltoallw(comm: Intracomm, given: Sides) -> SpanningCall:
    """Lower Alltoallw and neighbourhood collectives."""
    return with_packed(comm, given, to_each)


neighbors = alltoallw


def to_each(operation: str, given: FixedCounts) -> SpanningCall:
    """Return the call that sends bytes to every rank."""
    compose = partial(_compose, given=given)
    return SpanningCall(operation=operation, compose=compose, buffers=(given.send, given.recv), signature=("static",))


def _compose(composition: Composition, *, given: FixedCounts) -> None:
    sent = list(zip(given.send_displs, given.send_counts, strict=True))
    received = zip(given.recv_displs, given.recv_counts, strict=True)
    spans = [(displ, displ + count) for displ, count in sent if count]
    begin, end = min(spans, default=(0, 0))[0], max((end for _, end in spans), default=0)
    address, after = apart(composition, given.send.address, given.recv.address, begin, end)
    sends = [Transfer(rank, address + displ, count) for rank, (displ, count) in enumerate(sent)]
    receives = [Transfer(rank, given.recv.address + displ, count) for rank, (displ, count) in enumerate(received)]
    exchange(composition, "exchange between nodes", sends, receives, after)
