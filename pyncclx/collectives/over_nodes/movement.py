"""Exchange bytes among all ranks: by an engine between nodes, by kernels inside."""

from __future__ import annotations

from collections.abc import Iterable

from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.rails import NodeMap
from ..arguments import Blocks
from .inside import Span, alltoallv_call, blocks_from

HOW = "each rank sends what goes to other nodes to its receiver, while a kernel moves what stays in the node"


def blocks_at(address: int, nbytes: int, size: int) -> list[Transfer]:
    """Return one transfer for each rank, of equal length, in contiguous memory."""
    return [Transfer(rank, address + rank * nbytes, nbytes) for rank in range(size)]


def apart(composition: Composition, send: int, recv: int, begin: int, end: int) -> tuple[int, tuple[int, ...]]:
    """Return the address to send from, and the steps to wait for.

    If the call is in place, a step copies the bytes from `begin` to `end`, and the address is that of the copy.
    """
    if send != recv or begin == end:
        return send, ()
    (copy,) = composition.memory(end - begin)
    copied = composition.copy(copy, send + begin, end - begin)
    return copy - begin, (copied,)


def exchange(
    composition: Composition,
    name: str,
    sends: Iterable[Transfer],
    receives: Iterable[Transfer],
    after: tuple[int, ...] = (),
    *,
    drops: bool = False,
) -> int:
    """Add an exchange to a composition; return the index of the step between nodes.

    A rank sends at most one piece to each rank of its node. Sent and received memory must not overlap. With `drops`, a
    rank of the node may send more than fits, and the excess is dropped.
    """
    places = composition.places
    leaving, staying = _split(places, sends)
    coming, from_here = _split(places, receives)
    _move_inside(composition, staying, from_here, drops=drops)
    # A rank alone on its node only copies its own piece. A second stream would cost the host more time than that copy.
    aside = places.local_size > 1
    return composition.exchange(name, leaving, coming, on_rail=False, aside=aside, after=after)


def _split(places: NodeMap, transfers: Iterable[Transfer]) -> tuple[list[Transfer], dict[int, Transfer]]:
    """Return the transfers with other nodes, and those inside the node by local rank."""
    other, own = [], {}
    for each in transfers:
        if places.node_of(each.peer) == places.node:
            own[places.local_of(each.peer)] = each
        else:
            other.append(each)
    return other, own


def _move_inside(
    composition: Composition, sends: dict[int, Transfer], receives: dict[int, Transfer], *, drops: bool
) -> None:
    places = composition.places
    if places.local_size == 1:
        if 0 in sends and sends[0].nbytes and sends[0].address != receives[0].address:
            fitting = min(sends[0].nbytes, receives[0].nbytes) if drops else sends[0].nbytes
            composition.copy(receives[0].address, sends[0].address, fitting)
        return
    send, recv = (_blocks(side, places.local_size) for side in (sends, receives))
    composition.kernel(alltoallv_call(send, recv, drops=drops))


def _blocks(transfers: dict[int, Transfer], size: int) -> Blocks:
    """Return transfers inside the node as blocks that start at the lowest address."""
    base = min((each.address for each in transfers.values() if each.nbytes), default=0)
    spans = [Span(0, 0)] * size
    for index, each in transfers.items():
        if each.nbytes:
            spans[index] = Span(each.address - base, each.nbytes)
    return blocks_from(base, spans)
