"""Gatherv: blocks of any length; only root has all counts."""

from __future__ import annotations

from typing import Any

from ..arrays.buffers import Buffer
from ..derived.calls import ONE, VECTOR, takes_derived
from ..launch.call import Call, is_in_place
from ..team.base import IntraBase as Intracomm
from .arguments import check_not_in_place, check_root, resolve_sendbuf, rooted_on_host
from .blocks import check_room, pack_blocks, resolve_blocks
from .calls import announced_call
from .transports import choose_announced

# Only root has all counts, so messages carry their lengths.
choose = choose_announced("gatherv")


@takes_derived("Gatherv", ONE, VECTOR, at_root="recvbuf")
def gatherv(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call | None:
    """See `Intracomm.Gatherv`."""
    if rooted_on_host(sendbuf, recvbuf):
        return None
    root = check_root(comm, "Gatherv", root)
    buffers, arguments = _arguments(comm, sendbuf, recvbuf, root)
    return announced_call("Gatherv", choose, arguments, buffers, (f"root {root}",), root)


def _arguments(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int) -> tuple[tuple[Buffer, ...], bytes]:
    """Return the buffers in use, and the kernel's arguments."""
    if comm.rank != root:
        check_not_in_place(comm, "Gatherv", "sendbuf", sendbuf)
        send = resolve_sendbuf("Gatherv", sendbuf)
        return (send,), pack_blocks(None, send=send.address, recv=send.address, nbytes=send.nbytes, root=root)
    blocks = resolve_blocks(comm, recvbuf, "Gatherv", "recvbuf")
    recv = blocks.buffer
    if is_in_place(sendbuf):
        nbytes = blocks.nbytes[root]
        return (recv,), pack_blocks(blocks, send=blocks.address(root), recv=recv.address, nbytes=nbytes, root=root)
    send = resolve_sendbuf("Gatherv", sendbuf)
    check_room("Gatherv", send.nbytes, blocks.nbytes[root])
    return (send, recv), pack_blocks(blocks, send=send.address, recv=recv.address, nbytes=send.nbytes, root=root)
