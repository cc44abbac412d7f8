"""Scatter inside a node."""

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

choose = choose_spans("scatter", both_ways=False)


@takes_derived("Scatter", BLOCKS, ONE, at_root="sendbuf")
def scatter(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call | None:
    """See `Intracomm.Scatter`."""
    if rooted_on_host(recvbuf, sendbuf):
        return None
    root = check_root(comm, "Scatter", root)
    send, recv, address = resolve_scatter(comm, sendbuf, recvbuf, root)
    args = MoveArgs(send=send.address, recv=address, nbytes=recv.nbytes, root=root)
    return move_call("Scatter", choose, args, (send, recv), root)


def resolve_scatter(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int) -> tuple[Buffer, Buffer, int]:
    """Return send buffer, receive buffer and the address for this rank's block.

    On non-root ranks both buffers are the receive buffer.
    """
    if comm.rank != root:
        check_not_in_place(comm, "Scatter", "recvbuf", recvbuf)
        recv = resolve_recvbuf("Scatter", recvbuf)
        return recv, recv, recv.address
    send = resolve_sendbuf("Scatter", sendbuf, comm.size)
    if is_in_place(recvbuf):
        return send, send, send.address + root * send.nbytes
    recv = resolve_recvbuf("Scatter", recvbuf)
    check_fits("Scatter", send.nbytes, recv.nbytes)
    return send, recv, recv.address
