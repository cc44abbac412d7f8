"""Alltoallw; neighbourhood collectives use its exchange of typed blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..derived.batches import Part
from ..derived.calls import AnyCall, Packed, reserve, with_copies
from ..derived.typed import Typed, aligned, resolve_each
from ..launch.call import Call, Choice, is_in_place
from ..memory.layout import Layout
from ..team.base import IntraBase as Intracomm
from .calls import FixedCounts, announced_call, choose_exchange
from .lowering import lowered_by


@lru_cache
def choose(layout: Layout, nbytes: int) -> Choice:
    """Choose the exchange of Alltoallv."""
    choice = choose_exchange(layout, nbytes)
    return choice._replace(why=f"{choice.why}; blocks with gaps are packed by a kernel, and unpacked by another")


class Side(NamedTuple):
    """The bytes that this rank sends to each rank, or receives from it."""

    typed: Typed
    # False: each rank's bytes are contiguous in the array.
    is_packed: bool
    counts: list[int]  # bytes of each rank
    displs: list[int]  # offsets in packed memory, or in the array


def arrange(typed: Typed, parts: Iterable[tuple[int, Part]], size: int) -> Side:
    """Sort the parts of an argument by rank; the parts of one rank keep their order.

    `parts` pairs each part with its rank, which may be MPI.PROC_NULL.
    """
    of_rank: list[list[Part]] = [[] for _ in range(size)]
    for rank, part in parts:
        if rank != MPI.PROC_NULL and part.nbytes:
            of_rank[rank].append(part)
    counts = [sum(part.nbytes for part in own) for own in of_rank]
    # Without an array, datatypes have absolute addresses. The exchange needs an array, so these blocks are packed.
    absolute = not typed.buffer.nbytes
    # Kernels check offsets, which must not lie before the array.
    alone = all(len(own) <= 1 and all(part.offset >= 0 for part in own) for own in of_rank)
    if typed.is_contiguous and not absolute and alone:
        return Side(typed, False, counts, [own[0].offset if own else 0 for own in of_rank])
    placed, displs, end = [], [], 0
    for own in of_rank:
        end = aligned(end)
        displs.append(end)
        for part in own:
            placed.append(replace(part, start=end))
            end += part.nbytes
    return Side(replace(typed, parts=tuple(placed), nbytes=end), True, counts, displs)


class Sides(NamedTuple):
    """The checked arguments of an exchange of blocks with datatypes."""

    operation: str
    send: Side | None  # None: in place
    recv: Side


def _in_node(operation: str, given: FixedCounts) -> Call:
    """Return the call inside one node for contiguous bytes."""
    return announced_call(operation, choose, given.pack(), (given.send, given.recv))


def exchange(comm: Intracomm, given: Sides) -> Call:
    """Return the call inside one node that exchanges typed blocks among all ranks."""
    return with_packed(comm, given, _in_node)


def with_packed(comm: Intracomm, given: Sides, make: Callable[[str, FixedCounts], AnyCall]) -> AnyCall:
    """Return the call that `make` returns, with packing and unpacking added.

    `make` gets contiguous bytes. Blocks with gaps are packed before the call, and unpacked after it.
    """
    operation, send, recv = given
    sides = {"recvbuf": recv} if send is None else {"recvbuf": recv, "sendbuf": send}
    packed = reserve(comm, {name: side.typed for name, side in sides.items() if side.is_packed})
    received = _buffer(recv, packed.get("recvbuf"))
    sent = received if send is None else _buffer(send, packed.get("sendbuf"))
    source = recv if send is None else send
    fixed = FixedCounts(sent, received, source.counts, source.displs, recv.counts, recv.displs)
    call = make(operation, fixed)
    read = packed.get("recvbuf" if send is None else "sendbuf")
    written = packed.get("recvbuf")
    return with_copies(call, [read] if read else [], [written] if written else [])


def _buffer(side: Side, packed: Packed | None) -> Buffer:
    return side.typed.at(packed.address, side.typed.nbytes) if packed else side.typed.buffer


@lowered_by(exchange)
def alltoallw(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Sides | None:
    """Check the arguments of `Intracomm.Alltoallw`; return its call."""
    if on_host(sendbuf, recvbuf):
        return None
    device, size = backends.select(), comm.size
    recv = resolve_each(recvbuf, "Alltoallw: recvbuf", size, writable=True, device=device)
    send = None
    if not is_in_place(sendbuf):
        send = _by_rank(resolve_each(sendbuf, "Alltoallw: sendbuf", size, writable=False, device=device), size)
    return Sides("Alltoallw", send, _by_rank(recv, size))


def _by_rank(typed: Typed, size: int) -> Side:
    return arrange(typed, enumerate(typed.parts), size)
