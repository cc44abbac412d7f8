"""Bcast over nodes.

Shortest messages: a host exchange. If each rank is alone on its node, NCCL's broadcast moves longer messages. Short
messages: root sends to one rank of each node, and a kernel copies inside each node. Long messages: root scatters pieces
to its node's ranks, which send them over the rails, and all ranks of a node gather all pieces. With more than two
nodes, each node receives a part of a piece from root's node, and the nodes exchange the parts. So root's links carry a
piece only once.
"""

from __future__ import annotations

from functools import partial

from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.program import SpanningCall
from ...team.base import IntraBase as Intracomm
from ..bcast import Broadcast
from .inside import Span, allgatherv_call, bcast_call, blocks_from, scatterv_call

ON_HOST = {"bcast": "root sends to all ranks"}
HOW_SHORT = {"bcast": "root sends to one rank of each node, and a kernel copies inside each"}
HOW = {"bcast": "a piece for each rank of root's node, over rails to the other nodes, and to all ranks of each"}
SHORT_NBYTES = 64 << 10  # longest short message; not measured
_UNIT = 16


def bcast(comm: Intracomm, given: Broadcast) -> SpanningCall:
    """Return the call of Bcast over several nodes."""
    buffer, root, _ = given
    nbytes = buffer.nbytes
    return SpanningCall(
        operation="Bcast",
        compose=partial(_compose, address=buffer.address, nbytes=nbytes, root=root),
        buffers=(buffer,),
        signature=(nbytes, root),
        empty=nbytes == 0,
    )


def _compose(composition: Composition, *, address: int, nbytes: int, root: int) -> None:
    if composition.spanning.is_short(nbytes):
        _on_host(composition, address, nbytes, root)
    elif composition.has_collectives:
        broadcast_all(composition, address, nbytes, root)
    elif nbytes <= SHORT_NBYTES:
        _short(composition, address, nbytes, root)
    else:
        _long(composition, address, nbytes, root)


def broadcast_all(composition: Composition, address: int, nbytes: int, root: int) -> None:
    """Add NCCL's broadcast of root's bytes to each rank's `address`."""
    peers = () if composition.places.rank == root else (root,)
    composition.collective("broadcast", address, nbytes, root, peers=peers)


def _on_host(composition: Composition, address: int, nbytes: int, root: int) -> None:
    places = composition.places
    at_root = places.rank == root
    to, sources = (range(places.size), ()) if at_root else ((), (root,))
    composition.share("exchange on the host", address, nbytes if at_root else 0, to=to, sources=sources)
    if not at_root:
        composition.copy(address, composition.spanning.host_exchange.address_of(root), nbytes)


def _short(composition: Composition, address: int, nbytes: int, root: int) -> None:
    places = composition.places
    lane, home = places.local_of(root), places.node_of(root)
    own = places.peer_on(places.node, lane)  # rank that receives the message for this node
    to = places.other_nodes if places.rank == root else []
    sends = [Transfer(places.peer_on(node, lane), address, nbytes) for node in to]
    receives = [Transfer(root, address, nbytes)] if places.rank == own and places.node != home else []
    on_rail = lane < places.lanes
    composition.exchange("root sends to each node", sends, receives, on_rail=on_rail)
    if places.local_size > 1:
        composition.kernel(bcast_call(address, nbytes, places.local_of(own)))


def _long(composition: Composition, address: int, nbytes: int, root: int) -> None:
    places = composition.places
    home = places.node_of(root)
    spans = Span(0, nbytes).cut(places.lanes, _UNIT) + [Span(nbytes, 0)] * (places.local_size - places.lanes)
    mine = spans[places.local_rank]
    own = address + mine.begin
    if places.node == home and places.local_size > 1:
        blocks = blocks_from(address, spans) if places.rank == root else None
        composition.kernel(scatterv_call(blocks, own, mine.nbytes, places.local_of(root)))
    _over_the_rails(composition, own, mine, home)
    if places.local_size > 1:
        composition.kernel(allgatherv_call(own, address, spans, places.local_rank))


def _over_the_rails(composition: Composition, own: int, mine: Span, home: int) -> None:
    """Send each node a part of a piece from root's node; then nodes exchange parts."""
    places = composition.places
    others = [node for node in range(places.count) if node != home]
    parts = dict(zip(others, Span(0, mine.nbytes).cut(len(others), _UNIT), strict=True))

    def transfer(node: int, part: Span) -> Transfer:
        return Transfer(places.peer_on(node, places.local_rank), own + part.begin, part.nbytes)

    at_home = places.node == home
    sends = [transfer(node, parts[node]) for node in places.other_nodes] if at_home else []
    receives = [] if at_home else [transfer(home, parts[places.node])]
    composition.exchange("root's node sends to each node", sends, receives, on_rail=True)
    if len(others) > 1:
        peers = [] if at_home else [node for node in places.other_nodes if node != home]
        sends = [transfer(node, parts[places.node]) for node in peers]
        receives = [transfer(node, parts[node]) for node in peers]
        composition.exchange("nodes exchange parts", sends, receives, on_rail=True)
