"""Operations over nodes that are one exchange, such as Gather and Alltoall.

A Barrier of streams is a barrier inside each node, then an exchange over the rails. Short blocks of Alltoall go through
a host exchange. NCCL's alltoall moves long ones if each rank is alone on its node. Otherwise an engine moves data
between nodes, and kernels move data inside the node.
"""

from __future__ import annotations

from functools import partial

from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.host_exchange import Block
from ...nodes.program import SpanningCall
from ...team.base import IntraBase as Intracomm
from ..alltoall import Exchange
from ..alltoallw import Sides, with_packed
from ..barrier import Signals, barrier_call
from ..calls import FixedCounts
from ..rooted import Rooted
from ..transformed import Arguments
from .movement import apart, blocks_at, exchange

ON_HOST = {
    "alltoall": "all of each rank's blocks go to all others",
    "barrier": "a message of each rank to all others",
}
HOW = {"barrier": "a barrier inside each node, and a byte to each other node"}


def barrier(comm: Intracomm, given: Signals) -> SpanningCall:
    """Return the call of Barrier over several nodes."""
    return SpanningCall(operation="Barrier", compose=_compose_barrier)


def _compose_barrier(composition: Composition) -> None:
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


def rooted(comm: Intracomm, given: Rooted) -> SpanningCall:
    """Return the call of a Gather, Gatherv, Scatter or Scatterv over several nodes."""
    root, own, each = given.root, Transfer(given.root, given.address, given.nbytes), []
    if given.blocks is not None:
        # Root's own data may be shorter than its block.
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


def _compose_rooted(composition: Composition, *, sends: list[Transfer], receives: list[Transfer]) -> None:
    rank = composition.places.rank
    stays = {each for each in sends if each.peer == rank} & {each for each in receives if each.peer == rank}
    leaving, coming = ([each for each in side if each not in stays] for side in (sends, receives))
    exchange(composition, "exchange with root", leaving, coming)


def alltoall(comm: Intracomm, given: Exchange | Arguments) -> SpanningCall:
    """Return the call of Alltoall over several nodes."""
    if isinstance(given, Arguments):
        return _transformed(comm.size, given)
    send, recv, _ = given
    return SpanningCall(
        operation="Alltoall",
        compose=partial(_compose_alltoall, send=send.address, recv=recv.address, nbytes=recv.nbytes),
        buffers=(send, recv),
        signature=(recv.nbytes,),
    )


def _compose_alltoall(composition: Composition, *, send: int, recv: int, nbytes: int) -> None:
    """Add the exchange of blocks of equal length."""
    size = composition.places.size
    if nbytes and composition.spanning.is_short(size * nbytes):
        _alltoall_on_host(composition, send, recv, nbytes)
        return
    send, after = apart(composition, send, recv, 0, size * nbytes)
    if not composition.has_collectives:
        sends, receives = (blocks_at(address, nbytes, size) for address in (send, recv))
        exchange(composition, "exchange between nodes", sends, receives, after)
    elif nbytes:
        composition.collective("alltoall", send, recv, nbytes)


def _alltoall_on_host(composition: Composition, send: int, recv: int, nbytes: int) -> None:
    rank, size = composition.places.rank, composition.places.size
    everyone, blocks = range(size), [Block(each, rank * nbytes, nbytes) for each in range(size)]
    name = "exchange of blocks on the host"
    composition.share(name, send, size * nbytes, to=everyone, sources=everyone, blocks=blocks)
    composition.copy(recv, composition.spanning.host_exchange.gathered, size * nbytes)


def _transformed(size: int, given: Arguments) -> SpanningCall:
    """Return the call with a transform: transform all blocks, then exchange them."""
    recv, nbytes = given.recv.address, given.recv.nbytes

    def compose(composition: Composition) -> None:
        (made,) = composition.memory(size * nbytes)
        after = (composition.transform(given.applied.template, given.rows(made, size * nbytes)),)
        sends, receives = (blocks_at(address, nbytes, size) for address in (made, recv))
        exchange(composition, "exchange between nodes", sends, receives, after)

    return SpanningCall(
        operation="Alltoall", compose=compose, buffers=given.buffers, signature=given.signature, empty=nbytes == 0
    )


def alltoallw(comm: Intracomm, given: Sides) -> SpanningCall:
    """Return the call of Alltoallw or a neighbourhood collective over several nodes."""
    return with_packed(comm, given, to_each)


neighbors = alltoallw


def to_each(operation: str, given: FixedCounts) -> SpanningCall:
    """Return a call over several nodes in which every rank sends bytes to every rank."""
    compose = partial(_compose_to_each, given=given)
    return SpanningCall(operation=operation, compose=compose, buffers=(given.send, given.recv), signature=("static",))


def _compose_to_each(composition: Composition, *, given: FixedCounts) -> None:
    sent = list(zip(given.send_displs, given.send_counts, strict=True))
    received = zip(given.recv_displs, given.recv_counts, strict=True)
    spans = [(displ, displ + count) for displ, count in sent if count]
    begin, end = min(spans, default=(0, 0))[0], max((end for _, end in spans), default=0)
    address, after = apart(composition, given.send.address, given.recv.address, begin, end)
    sends = [Transfer(rank, address + displ, count) for rank, (displ, count) in enumerate(sent)]
    receives = [Transfer(rank, given.recv.address + displ, count) for rank, (displ, count) in enumerate(received)]
    exchange(composition, "exchange between nodes", sends, receives, after)
