"""Scan and Exscan over nodes.

Each rank sends its vector to all higher ranks, which fold the received vectors in rank order.
"""

from __future__ import annotations

from ...nodes.composition import Composition, Vectors
from ...nodes.engine import Transfer
from ...nodes.program import SpanningCall
from ...team.base import IntraBase as Intracomm
from ..reduction import Reduction
from .folding import Folding, reduction_call
from .inside import aligned
from .movement import exchange

HOW = {"scan": "each vector goes to all ranks above its own, which fold; memory and traffic grow with the ranks"}


def scan(comm: Intracomm, given: Reduction) -> SpanningCall:
    """Return the call of Scan or Exscan over several nodes."""
    return reduction_call(comm, given, _compose, nbytes=given.nbytes, inclusive=given.operation == "Scan")


def _compose(
    composition: Composition, *, folding: Folding, send: int, recv: int, nbytes: int, inclusive: bool
) -> None:
    places, stride = composition.places, aligned(nbytes)
    count = places.rank + inclusive
    (slots,) = composition.memory(count * stride)
    sends = [Transfer(rank, send, nbytes) for rank in range(places.rank + (not inclusive), places.size)]
    receives = [Transfer(rank, slots + rank * stride, nbytes) for rank in range(count)]
    moved = exchange(composition, "exchange of contributions", sends, receives)
    vectors, length = Vectors(slots, count, stride), nbytes if count else 0
    composition.fold(folding.template, vectors, length, recv, finish_as=max(count, 1), after=(moved,))
