"""Gather inside a node."""

from __future__ import annotations

from typing import Any

from ..arrays.buffers import Buffer
from ..derived.calls import BLOCKS, ONE, takes_derived
from ..launch.call import Call, is_in_place
from ..memory.parameters import MoveArgs
from ..team.base import IntraBase as Intracomm
from .arguments import check_fits, check_not_in_place, check_root, resolve_recvbuf, resolve_sendbuf, rooted_on_host
from .calls import move_call
from .transports import choose_spans

choose = choose_spans("gather", both_ways=False)


@takes_derived("Gather", ONE, BLOCKS, at_root="recvbuf")
def gather(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call | None:
    """See `Intracomm.Gather`."""
    if rooted_on_host(sendbuf, recvbuf):
        return None
    root = check_root(comm, "Gather", root)
    send, recv, address = resolve_gather(comm, sendbuf, recvbuf, root)
    args = MoveArgs(send=address, recv=recv.address, nbytes=send.nbytes, root=root)
    return move_call("Gather", choose, args, (send, recv), root)


def resolve_gather(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int) -> tuple[Buffer, Buffer, int]:
    """Return send buffer, receive buffer and the address of this rank's block.

    On non-root ranks both buffers are the send buffer.
    """
    if comm.rank != root:
        check_not_in_place(comm, "Gather", "sendbuf", sendbuf)
        send = resolve_sendbuf("Gather", sendbuf)
        return send, send, send.address
    recv = resolve_recvbuf("Gather", recvbuf, comm.size)
    if is_in_place(sendbuf):
        return recv, recv, recv.address + root * recv.nbytes
    send = resolve_sendbuf("Gather", sendbuf)
    check_fits("Gather", send.nbytes, recv.nbytes)
    return send, recv, send.address
