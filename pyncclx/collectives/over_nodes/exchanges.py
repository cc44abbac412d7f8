"""Alltoall in its forms, Gather, Scatter and neighbourhood collectives over nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...arrays.buffers import Buffer
from ...arrays.places import on_host
from ...derived.calls import BLOCKS, ONE, VECTOR, takes_derived
from ...launch.call import is_in_place
from ...nodes.call import SpanningCall
from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.places import Places
from ...nodes.short_exchange import Block
from ...team.base import IntraBase as Intracomm
from .. import neighbors
from ..alltoallv import counts_on_device, resolve_static
from ..alltoallv_options import DynamicOptions
from ..alltoallw import sides_of
from ..arguments import check_fits, check_root, resolve_recvbuf, resolve_sendbuf, rooted_on_host
from ..blocks import check_room, resolve_blocks
from ..gather import resolve_gather
from ..scatter import resolve_scatter
from ..transformed import Arguments, arguments_of
from ..typed_exchange import Side
from ..typed_exchange import exchange as typed_exchange
from .alltoallv_counts import HOW as BY_COUNTS
from .alltoallv_counts import alltoallv_counts
from .movement import HOW, blocks_at, exchange
from .options import check_no_choice


def explain(places: Places, nbytes: int) -> str:
    """Describe how these operations run, for `Comm.explain`."""
    return HOW


def explain_alltoallv(places: Places, nbytes: int) -> str:
    """Describe how Alltoallv runs, for `Comm.explain`."""
    return f"{HOW}; {BY_COUNTS}"


@takes_derived("Alltoall", BLOCKS, BLOCKS)
def alltoall(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, transform: Any = None
) -> SpanningCall | None:
    """See `Intracomm.Alltoall`."""
    if transform is not None:
        return _transformed(comm.size, arguments_of(comm, "Alltoall", sendbuf, recvbuf, transform, algorithm))
    if on_host(sendbuf, recvbuf):
        return None
    check_no_choice("Alltoall", algorithm)
    recv = resolve_recvbuf("Alltoall", recvbuf, comm.size)
    send = recv if is_in_place(sendbuf) else resolve_sendbuf("Alltoall", sendbuf, comm.size)
    check_fits("Alltoall", send.nbytes, recv.nbytes)
    return SpanningCall(
        operation="Alltoall",
        compose=partial(_compose_blocks, send=send.address, recv=recv.address, nbytes=recv.nbytes),
        buffers=(send, recv),
        signature=(recv.nbytes,),
    )


def _compose_blocks(composition: Composition, *, send: int, recv: int, nbytes: int) -> None:
    """Add the exchange of blocks of one length."""
    size = composition.places.size
    if nbytes and composition.spanning.is_short(size * nbytes):
        _on_host(composition, send, recv, nbytes)
        return
    send, after = _apart(composition, send, recv, 0, size * nbytes)
    engine = composition.spanning.rails.collectives()
    if engine is None:
        sends, receives = (blocks_at(address, nbytes, size) for address in (send, recv))
        exchange(composition, "exchange between nodes", sends, receives, after)
    elif nbytes:
        peers = composition.places.away  # all others: each rank is alone on its node
        enqueue = partial(engine.alltoall, send, recv, nbytes)
        composition.collective(engine, "NCCL's alltoall", enqueue, peers=peers, sent_nbytes=nbytes * len(peers))


def _on_host(composition: Composition, send: int, recv: int, nbytes: int) -> None:
    rank, size = composition.places.rank, composition.places.size
    everyone, blocks = range(size), [Block(each, rank * nbytes, nbytes) for each in range(size)]
    name = "exchange of blocks on the host"
    composition.share(name, send, size * nbytes, to=everyone, sources=everyone, blocks=blocks)
    composition.copy(recv, composition.spanning.short.gathered, size * nbytes)


def _transformed(size: int, given: Arguments) -> SpanningCall:
    recv, nbytes = given.recv.address, given.recv.nbytes

    def compose(composition: Composition) -> None:
        (made,) = composition.memory(size * nbytes)
        after = (composition.transform(given.applied.template, given.rows(made, size * nbytes)),)
        sends, receives = (blocks_at(address, nbytes, size) for address in (made, recv))
        exchange(composition, "exchange between nodes", sends, receives, after)

    return SpanningCall(
        operation="Alltoall", compose=compose, buffers=given.buffers, signature=given.signature, empty=nbytes == 0
    )


@takes_derived("Alltoallv", VECTOR, VECTOR)
def alltoallv(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **options: Any
) -> SpanningCall | None:
    """See `Intracomm.Alltoallv`."""
    given = DynamicOptions(**options, algorithm=algorithm)
    if counts_on_device(sendbuf) or given.given:
        return alltoallv_counts(comm, sendbuf, recvbuf, given)
    if on_host(sendbuf, recvbuf):
        return None
    check_no_choice("Alltoallv", algorithm)
    return _to_each("Alltoallv", *resolve_static(comm, sendbuf, recvbuf), ("static",))


def alltoallw(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> SpanningCall | None:
    """See `Intracomm.Alltoallw`."""
    if on_host(sendbuf, recvbuf):
        return None
    call: SpanningCall = typed_exchange(comm, "Alltoallw", *sides_of(comm, sendbuf, recvbuf), make=_of_sides)
    return call


def _of_sides(operation: str, sent: Buffer, received: Buffer, source: Side, recv: Side) -> SpanningCall:
    return _to_each(operation, sent, received, source.counts, source.displs, recv.counts, recv.displs, ("blocks",))


def _neighbor(name: str) -> Callable[..., Any]:
    return neighbors.operation(name, *neighbors.RESOLVERS[name], partial(typed_exchange, make=_of_sides))


neighbor_allgather = _neighbor("Neighbor_allgather")
neighbor_allgatherv = _neighbor("Neighbor_allgatherv")
neighbor_alltoall = _neighbor("Neighbor_alltoall")
neighbor_alltoallv = _neighbor("Neighbor_alltoallv")
neighbor_alltoallw = _neighbor("Neighbor_alltoallw")


def _to_each(
    operation: str,
    send: Buffer,
    recv: Buffer,
    send_counts: list[int],
    send_displs: list[int],
    recv_counts: list[int],
    recv_displs: list[int],
    signature: tuple[Any, ...],
) -> SpanningCall:
    """Return the call that sends bytes to every rank.

    In place both buffers are one, with the same counts.
    """

    def compose(composition: Composition) -> None:
        spans = [(displ, displ + count) for displ, count in zip(send_displs, send_counts, strict=True) if count]
        begin, end = min(spans, default=(0, 0))[0], max((end for _, end in spans), default=0)
        address, after = _apart(composition, send.address, recv.address, begin, end)
        pairs = enumerate(zip(send_displs, send_counts, strict=True))
        sends = [Transfer(rank, address + displ, count) for rank, (displ, count) in pairs]
        pairs = enumerate(zip(recv_displs, recv_counts, strict=True))
        receives = [Transfer(rank, recv.address + displ, count) for rank, (displ, count) in pairs]
        exchange(composition, "exchange between nodes", sends, receives, after)

    return SpanningCall(operation=operation, compose=compose, buffers=(send, recv), signature=signature)


def _apart(composition: Composition, send: int, recv: int, begin: int, end: int) -> tuple[int, tuple[int, ...]]:
    """Return the address to send from, and the steps to wait for.

    In place, it is a copy of the bytes from `begin` to `end`.
    """
    if send != recv or begin == end:
        return send, ()
    (copy,) = composition.memory(end - begin)
    copied = composition.copy(copy, send + begin, end - begin)
    return copy - begin, (copied,)


@takes_derived("Gather", ONE, BLOCKS, at_root="recvbuf")
def gather(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> SpanningCall | None:
    """See `Intracomm.Gather`."""
    if rooted_on_host(sendbuf, recvbuf):
        return None
    root = check_root(comm, "Gather", root)
    send, recv, address = resolve_gather(comm, sendbuf, recvbuf, root)
    nbytes = send.nbytes
    blocks = [Transfer(rank, recv.address + rank * nbytes, nbytes) for rank in range(comm.size) if comm.rank == root]
    return _rooted("Gather", (send, recv), [Transfer(root, address, nbytes)], blocks, (nbytes, root))


@takes_derived("Gatherv", ONE, VECTOR, at_root="recvbuf")
def gatherv(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> SpanningCall | None:
    """See `Intracomm.Gatherv`."""
    if rooted_on_host(sendbuf, recvbuf):
        return None
    root = check_root(comm, "Gatherv", root)
    if comm.rank != root:
        send, _, address = resolve_gather(comm, sendbuf, recvbuf, root)
        return _rooted("Gatherv", (send,), [Transfer(root, address, send.nbytes)], [], (root,))
    blocks = resolve_blocks(comm, recvbuf, "Gatherv", "recvbuf")
    receives = [Transfer(rank, blocks.address(rank), nbytes) for rank, nbytes in enumerate(blocks.nbytes)]
    if is_in_place(sendbuf):
        return _rooted("Gatherv", (blocks.buffer,), [receives[root]], receives, (root,))
    send = resolve_sendbuf("Gatherv", sendbuf)
    check_room("Gatherv", send.nbytes, blocks.nbytes[root])
    receives[root] = receives[root]._replace(nbytes=send.nbytes)
    return _rooted("Gatherv", (send, blocks.buffer), [Transfer(root, send.address, send.nbytes)], receives, (root,))


@takes_derived("Scatter", BLOCKS, ONE, at_root="sendbuf")
def scatter(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> SpanningCall | None:
    """See `Intracomm.Scatter`."""
    if rooted_on_host(recvbuf, sendbuf):
        return None
    root = check_root(comm, "Scatter", root)
    send, recv, address = resolve_scatter(comm, sendbuf, recvbuf, root)
    nbytes = recv.nbytes
    blocks = [Transfer(rank, send.address + rank * nbytes, nbytes) for rank in range(comm.size) if comm.rank == root]
    return _rooted("Scatter", (send, recv), blocks, [Transfer(root, address, nbytes)], (nbytes, root))


@takes_derived("Scatterv", VECTOR, ONE, at_root="sendbuf")
def scatterv(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> SpanningCall | None:
    """See `Intracomm.Scatterv`."""
    if rooted_on_host(recvbuf, sendbuf):
        return None
    root = check_root(comm, "Scatterv", root)
    if comm.rank != root:
        _, recv, address = resolve_scatter(comm, sendbuf, recvbuf, root)
        return _rooted("Scatterv", (recv,), [], [Transfer(root, address, recv.nbytes)], (root,))
    blocks = resolve_blocks(comm, sendbuf, "Scatterv", "sendbuf")
    sends = [Transfer(rank, blocks.address(rank), nbytes) for rank, nbytes in enumerate(blocks.nbytes)]
    if is_in_place(recvbuf):
        return _rooted("Scatterv", (blocks.buffer,), sends, [sends[root]], (root,))
    recv = resolve_recvbuf("Scatterv", recvbuf)
    check_room("Scatterv", blocks.nbytes[root], recv.nbytes)
    own = Transfer(root, recv.address, blocks.nbytes[root])
    return _rooted("Scatterv", (blocks.buffer, recv), sends, [own], (root,))


def _rooted(
    operation: str,
    buffers: tuple[Buffer, ...],
    sends: list[Transfer],
    receives: list[Transfer],
    signature: tuple[Any, ...],
) -> SpanningCall:
    """Return the call of an operation in which root sends to all or receives from all."""

    def compose(composition: Composition) -> None:
        rank = composition.places.rank
        stays = {each for each in sends if each.peer == rank} & {each for each in receives if each.peer == rank}
        leaving, coming = ([each for each in side if each not in stays] for side in (sends, receives))
        exchange(composition, "exchange with root", leaving, coming)

    return SpanningCall(operation=operation, compose=compose, buffers=buffers, signature=signature)
