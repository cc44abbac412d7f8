"""Barrier of streams over nodes: inside each node, then over the rails.

If MPI moves the data, it is a host exchange only.
"""

from __future__ import annotations

from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.program import SpanningCall
from ...team.base import IntraBase as Intracomm
from ..barrier import Signals, barrier_call

ON_HOST = "a message of each rank to all others"
HOW = "a barrier inside each node, and a byte to each other node"


def barrier(comm: Intracomm, given: Signals) -> SpanningCall:
    """Lower Barrier."""
    return SpanningCall(operation="Barrier", compose=_compose)


def _compose(composition: Composition) -> None:
    places = composition.places
    if composition.spanning.is_short(0):
        composition.share("exchange on the host", 0, 0, to=range(places.size), sources=range(places.size))
        return
    (memory,) = composition.memory(places.count)
    composition.kernel(barrier_call())
    takes_part = places.is_even or places.local_rank == 0
    peers = [(node, places.peer_on(node, places.local_rank)) for node in places.other_nodes if takes_part]
    sends = [Transfer(peer, memory + places.node, 1) for _, peer in peers]
    receives = [Transfer(peer, memory + node, 1) for node, peer in peers]
    composition.exchange("a byte to each node", sends, receives, on_rail=True)
    if not places.is_even:
        composition.kernel(barrier_call())
