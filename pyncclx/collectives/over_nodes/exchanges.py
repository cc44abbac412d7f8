"""Exchanges in which every rank sends bytes to every rank, over nodes."""

from __future__ import annotations

from functools import partial

from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.places import Places
from ...nodes.program import SpanningCall
from ...team.base import IntraBase as Intracomm
from ..alltoallw import Sides, with_packed
from ..calls import FixedCounts
from .movement import HOW, apart, exchange


def alltoallw(comm: Intracomm, given: Sides) -> SpanningCall:
    """Lower Alltoallw and neighbourhood collectives."""
    return with_packed(comm, given, to_each)


neighbors = alltoallw


def explain(places: Places, nbytes: int) -> str:
    """Describe how these operations run, for `Comm.explain`."""
    return HOW


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
