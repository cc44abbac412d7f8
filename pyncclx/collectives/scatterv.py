"""Scatterv: blocks of any length, which root alone knows."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..derived.calls import ONE, VECTOR, takes_derived
from ..launch.call import Call, check_root, is_in_place
from ..launch.choice import Choice
from ..memory.layout import Layout
from .blocks import check_room, pack_blocks, resolve_blocks, resolve_elsewhere, rooted_on_host
from .ladders import as_announced, most_of

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int) -> Choice:
    """All channels: a rank knows its own block's length only."""
    return as_announced(layout, "scatterv", nbytes)


@takes_derived("Scatterv", VECTOR, ONE, at_root="sendbuf")
def scatterv(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call | None:
    """See `Intracomm.Scatterv`."""
    if rooted_on_host(comm, root, recvbuf, sendbuf):
        return None
    root = check_root(comm, "Scatterv", root)
    buffers, arguments = _arguments(comm, sendbuf, recvbuf, root)
    return Call(
        operation="Scatterv",
        choose=choose,
        sized=(most_of(buffers),),
        arguments=arguments,
        buffers=buffers,
        signature=(root,),
    )


def _arguments(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int) -> tuple[tuple[Buffer, ...], bytes]:
    """The buffers in use, and what the kernel is told."""
    if comm.rank != root:
        recv = resolve_elsewhere(comm, recvbuf, "Scatterv", "recvbuf")
        return (recv,), pack_blocks(None, send=recv.address, recv=recv.address, nbytes=recv.nbytes, root=root)
    blocks = resolve_blocks(comm, sendbuf, "Scatterv", "sendbuf")
    send = blocks.buffer
    if is_in_place(recvbuf):
        nbytes = blocks.nbytes[root]
        return (send,), pack_blocks(blocks, send=send.address, recv=blocks.address(root), nbytes=nbytes, root=root)
    recv = resolve(recvbuf, "Scatterv: recvbuf", writable=True, device=backends.select())
    check_room("Scatterv", blocks.nbytes[root], recv.nbytes)
    return (send, recv), pack_blocks(blocks, send=send.address, recv=recv.address, nbytes=recv.nbytes, root=root)
