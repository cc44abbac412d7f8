"""Alltoall over nodes.

Short blocks go through a host exchange. If each rank is alone on its node, NCCL's alltoall moves the rest. Otherwise an
engine moves blocks between nodes, and kernels those inside them.
"""

from __future__ import annotations

from functools import partial

from ...nodes.composition import Composition
from ...nodes.program import SpanningCall
from ...nodes.short_exchange import Block
from ...team.base import IntraBase as Intracomm
from ..alltoall import Exchange
from ..transformed import Arguments
from .movement import apart, blocks_at, exchange

ON_HOST = "all of each rank's blocks go to all others"


def alltoall(comm: Intracomm, given: Exchange | Arguments) -> SpanningCall:
    """Lower Alltoall."""
    if isinstance(given, Arguments):
        return _transformed(comm.size, given)
    send, recv, _ = given
    return SpanningCall(
        operation="Alltoall",
        compose=partial(_compose, send=send.address, recv=recv.address, nbytes=recv.nbytes),
        buffers=(send, recv),
        signature=(recv.nbytes,),
    )


def _compose(composition: Composition, *, send: int, recv: int, nbytes: int) -> None:
    """Add the exchange of blocks of one length."""
    size = composition.places.size
    if nbytes and composition.spanning.is_short(size * nbytes):
        _on_host(composition, send, recv, nbytes)
        return
    send, after = apart(composition, send, recv, 0, size * nbytes)
    if not composition.has_collectives:
        sends, receives = (blocks_at(address, nbytes, size) for address in (send, recv))
        exchange(composition, "exchange between nodes", sends, receives, after)
    elif nbytes:
        composition.collective("alltoall", send, recv, nbytes, sent_nbytes=nbytes * (size - 1))


def _on_host(composition: Composition, send: int, recv: int, nbytes: int) -> None:
    rank, size = composition.places.rank, composition.places.size
    everyone, blocks = range(size), [Block(each, rank * nbytes, nbytes) for each in range(size)]
    name = "exchange of blocks on the host"
    composition.share(name, send, size * nbytes, to=everyone, sources=everyone, blocks=blocks)
    composition.copy(recv, composition.spanning.short.gathered, size * nbytes)


def _transformed(size: int, given: Arguments) -> SpanningCall:
    """Return the call with a transform: ranks transform their blocks and send them."""
    recv, nbytes = given.recv.address, given.recv.nbytes

    def compose(composition: Composition) -> None:
        (made,) = composition.memory(size * nbytes)
        after = (composition.transform(given.applied.template, given.rows(made, size * nbytes)),)
        sends, receives = (blocks_at(address, nbytes, size) for address in (made, recv))
        exchange(composition, "exchange between nodes", sends, receives, after)

    return SpanningCall(
        operation="Alltoall", compose=compose, buffers=given.buffers, signature=given.signature, empty=nbytes == 0
    )
