"""Neighbourhood collectives: exchanges in which most pairs of ranks send nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .. import backends
from ..arrays.places import on_host
from ..derived.batches import Part
from ..derived.typed import Typed, resolve_blocks, resolve_each, resolve_typed
from ..launch.call import Call
from ..team.base import IntraBase as Intracomm
from .edges import edges_of
from .lowering import lowered_by
from .typed_exchange import Sides, arrange, choose, exchange

__all__ = [
    "choose",
    "neighbor_allgather",
    "neighbor_allgatherv",
    "neighbor_alltoall",
    "neighbor_alltoallv",
    "neighbor_alltoallw",
]

_Resolve = Callable[..., Typed]


def _same_for_each(spec: Any, name: str, neighbors: int, *, writable: bool, device: Any) -> Typed:
    """Resolve a buffer that goes to each neighbour as a whole."""
    typed = resolve_typed(spec, name, writable=writable, device=device)
    return replace(typed, parts=typed.parts * neighbors)


def _block_for_each(spec: Any, name: str, neighbors: int, *, writable: bool, device: Any) -> Typed:
    """Resolve a buffer that has a block for each neighbour, all of one length."""
    # A rank without neighbours may pass any buffer.
    blocks = max(neighbors, 1)
    typed = resolve_typed(spec, name, writable=writable, device=device, blocks=blocks)
    whole = typed.parts[0]
    each = whole.count // blocks
    step = each * whole.typemap.extent
    parts = tuple(Part(whole.typemap, each, whole.offset + n * step, 0) for n in range(neighbors))
    return replace(typed, parts=parts)


def _operation(name: str, resolve_send: _Resolve, resolve_recv: _Resolve) -> Callable[..., Call | None]:
    """Return the function that makes the calls of an operation."""

    def describe(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Sides | None:
        edges = edges_of(comm)
        if edges is None or on_host(sendbuf, recvbuf):
            return None
        device, sources, destinations = backends.select(), edges.sources, edges.destinations
        send = resolve_send(sendbuf, f"{name}: sendbuf", len(destinations), writable=False, device=device)
        recv = resolve_recv(recvbuf, f"{name}: recvbuf", len(sources), writable=True, device=device)
        sent = [(destinations[edge], send.parts[edge]) for edge in edges.order]
        received = zip(sources, recv.parts, strict=True)
        return Sides(name, arrange(send, sent, comm.size), arrange(recv, received, comm.size))

    describe.__name__ = name.lower()
    describe.__doc__ = f"See `Topocomm.{name}`."
    return lowered_by(exchange)(describe)


neighbor_allgather = _operation("Neighbor_allgather", _same_for_each, _block_for_each)
neighbor_allgatherv = _operation("Neighbor_allgatherv", _same_for_each, resolve_blocks)
neighbor_alltoall = _operation("Neighbor_alltoall", _block_for_each, _block_for_each)
neighbor_alltoallv = _operation("Neighbor_alltoallv", resolve_blocks, resolve_blocks)
neighbor_alltoallw = _operation("Neighbor_alltoallw", resolve_each, resolve_each)
