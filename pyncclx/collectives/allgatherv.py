"""Allgatherv inside a node."""

from __future__ import annotations

from typing import Any

from ..arrays.places import on_host
from ..derived.calls import ONE, VECTOR
from ..launch.call import Call
from ..team.base import IntraBase as Intracomm
from .allgather import Gathering, gathering_of
from .blocks import pack_blocks, resolve_blocks
from .lowering import lowered_by
from .transports import choose_spans

choose = choose_spans("allgatherv")


def _lower(comm: Intracomm, given: Gathering) -> Call:
    blocks = given.blocks
    recv, lengths, _ = blocks
    return Call(
        operation="Allgatherv",
        choose=choose,
        sized=(max(lengths),),
        arguments=pack_blocks(blocks, send=given.address, recv=recv.address, nbytes=lengths[comm.rank]),
        buffers=(given.send, recv),
        signature=(f"{lengths} bytes",),
    )


@lowered_by(_lower, ONE, VECTOR)
def allgatherv(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Gathering | None:
    """See `Intracomm.Allgatherv`."""
    if on_host(sendbuf, recvbuf):
        return None
    blocks = resolve_blocks(comm, recvbuf, "Allgatherv", "recvbuf")
    return gathering_of(comm, "Allgatherv", sendbuf, blocks)
