"""Allgatherv inside a node."""

from __future__ import annotations

from typing import Any

from ..arrays.places import on_host
from ..derived.calls import ONE, VECTOR, takes_derived
from ..launch.call import Call, is_in_place
from ..team.base import IntraBase as Intracomm
from .arguments import check_fits, resolve_sendbuf
from .blocks import pack_blocks, resolve_blocks
from .transports import choose_spans

choose = choose_spans("allgatherv")


@takes_derived("Allgatherv", ONE, VECTOR)
def allgatherv(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Call | None:
    """See `Intracomm.Allgatherv`."""
    if on_host(sendbuf, recvbuf):
        return None
    blocks = resolve_blocks(comm, recvbuf, "Allgatherv", "recvbuf")
    send, address, mine = blocks.buffer, blocks.address(comm.rank), blocks.nbytes[comm.rank]
    if not is_in_place(sendbuf):
        send = resolve_sendbuf("Allgatherv", sendbuf)
        address = send.address
        check_fits("Allgatherv", send.nbytes, mine)
    arguments = pack_blocks(blocks, send=address, recv=blocks.buffer.address, nbytes=mine)
    longest, buffers = max(blocks.nbytes), (send, blocks.buffer)
    return Call(
        operation="Allgatherv",
        choose=choose,
        sized=(longest,),
        arguments=arguments,
        buffers=buffers,
        signature=(f"{blocks.nbytes} bytes",),
    )
