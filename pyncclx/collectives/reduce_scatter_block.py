"""Reduce_scatter_block."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer, on_host, resolve
from ..launch.call import Call, is_in_place
from ..launch.choice import Choice
from ..memory.layout import PACK_NBYTES, Layout
from ..memory.parameters import ReduceArgs
from ..operators import ops
from .ladders import FEW_FOLD, ONE_SHOT_NBYTES, Rung, climb, in_lines, pipeline

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm


MOST_OF_PACKETS = 4 << 10  # longer blocks go as lines, where there are
MOST_OF_LINES = 1536 << 10  # longer blocks go as chunks, or without a copy on the way


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Packets while one rank's block of `nbytes` is short, lines while it fits them, else chunks."""
    limit = MOST_OF_PACKETS if layout.slot_rows else ONE_SHOT_NBYTES
    small = Rung("reduce_scatter_block_one_shot", limit, layout.packet_nbytes, layout.slot_nbytes, layout.peers)
    medium = in_lines(layout, "reduce_scatter_block_one_shot_lines", layout.line_nbytes - PACK_NBYTES)
    medium = medium._replace(chosen=MOST_OF_LINES, few_most=FEW_FOLD // layout.peers)
    return climb(layout, nbytes, (small, medium, pipeline("reduce_scatter_block_two_shot")), algorithm)


def reduce_scatter_block(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Call | None:
    """See `Intracomm.Reduce_scatter_block`."""
    if on_host(sendbuf, recvbuf):
        return None
    send, recv = _buffers(comm, sendbuf, recvbuf)
    reduction = ops.of(op, "Reduce_scatter_block")
    template = ops.template("Reduce_scatter_block", reduction, send)
    return Call(
        operation="Reduce_scatter_block",
        choose=choose,
        sized=(send.nbytes, algorithm),
        template=template,
        arguments=ReduceArgs(send=send.address, recv=recv.address, nbytes=send.nbytes).pack(),
        buffers=(send, recv),
        signature=(send.count, send.datatype.name, reduction.name, algorithm),
        empty=send.nbytes == 0,
    )


def _buffers(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> tuple[Buffer, Buffer]:
    """The send buffer, whose count is that of one block, and the receive buffer."""
    device, name = backends.select(), "Reduce_scatter_block"
    if is_in_place(sendbuf):
        whole = resolve(recvbuf, f"{name}: recvbuf", writable=True, device=device, blocks=comm.size)
        return whole, whole
    send = resolve(sendbuf, f"{name}: sendbuf", writable=False, device=device, blocks=comm.size)
    recv = resolve(recvbuf, f"{name}: recvbuf", writable=True, device=device)
    if send.datatype is not recv.datatype:
        raise ValueError(
            f"{name}: mismatch in datatypes: sendbuf has {send.datatype.name}, recvbuf {recv.datatype.name}; "
            "make them equal"
        )
    if send.count != recv.count:
        raise ValueError(
            f"{name}: mismatch in send count {send.count} (of one of {comm.size} blocks) and receive count "
            f"{recv.count}; make them equal"
        )
    return send, recv
