"""Scatterv: blocks of any length; only root has all counts."""

from __future__ import annotations

from typing import Any

from ..arrays.buffers import Buffer
from ..derived.calls import ONE, VECTOR, takes_derived
from ..launch.call import Call, is_in_place
from ..team.base import IntraBase as Intracomm
from .arguments import check_not_in_place, check_root, resolve_recvbuf, rooted_on_host
from .blocks import check_room, pack_blocks, resolve_blocks
from .calls import announced_call
from .transports import choose_announced

# Only root has all counts, so messages carry their lengths.
choose = choose_announced("scatterv")


@takes_derived("Scatterv", VECTOR, ONE, at_root="sendbuf")
def scatterv(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call | None:
    """See `Intracomm.Scatterv`."""
    if rooted_on_host(recvbuf, sendbuf):
        return None
    root = check_root(comm, "Scatterv", root)
    buffers, arguments = _arguments(comm, sendbuf, recvbuf, root)
    return announced_call("Scatterv", choose, arguments, buffers, (f"root {root}",), root)


def _arguments(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int) -> tuple[tuple[Buffer, ...], bytes]:
    """Return the buffers in use, and the kernel's arguments."""
    if comm.rank != root:
        check_not_in_place(comm, "Scatterv", "recvbuf", recvbuf)
        recv = resolve_recvbuf("Scatterv", recvbuf)
        return (recv,), pack_blocks(None, send=recv.address, recv=recv.address, nbytes=recv.nbytes, root=root)
    blocks = resolve_blocks(comm, sendbuf, "Scatterv", "sendbuf")
    send = blocks.buffer
    if is_in_place(recvbuf):
        nbytes = blocks.nbytes[root]
        return (send,), pack_blocks(blocks, send=send.address, recv=blocks.address(root), nbytes=nbytes, root=root)
    recv = resolve_recvbuf("Scatterv", recvbuf)
    check_room("Scatterv", blocks.nbytes[root], recv.nbytes)
    return (send, recv), pack_blocks(blocks, send=send.address, recv=recv.address, nbytes=recv.nbytes, root=root)
