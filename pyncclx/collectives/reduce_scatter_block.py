"""Reduce_scatter_block inside a node."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..launch.call import Call, Choice, is_in_place
from ..memory.layout import PACK_NBYTES, Layout
from ..operators import ops
from ..team.base import IntraBase as Intracomm
from .algorithms import FEW_THREADS_NBYTES, ONE_SHOT_NBYTES, choose_from, chunks, lines, packets
from .arguments import check_same_type, resolve_recvbuf, resolve_sendbuf
from .lowering import lowered_by
from .reduction import Reduction, reduction_call

# Longest block that goes as packets where ranks have lines, and as lines. Longer blocks go as chunks, or straight from
# windows. Since 2026-11-22; no measurement is kept.
PACKETS_NBYTES = 4 << 10
LINES_NBYTES = 1536 << 10


@lru_cache
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Choose packets if a block, of `nbytes`, is short, then lines, then chunks."""
    limit_nbytes = PACKETS_NBYTES if layout.slot_rows else ONE_SHOT_NBYTES
    one_shot = packets(layout, "reduce_scatter_block_one_shot", limit_nbytes, layout.peers)
    one_shot_lines = lines(
        layout,
        "reduce_scatter_block_one_shot_lines",
        layout.line_nbytes - PACK_NBYTES,
        limit_nbytes=LINES_NBYTES,
        few_threads_nbytes=FEW_THREADS_NBYTES // layout.peers,
    )
    two_shot = chunks(layout, "reduce_scatter_block_two_shot")
    return choose_from((one_shot, one_shot_lines, two_shot), "reduce_scatter_block", layout, nbytes, algorithm)


def _lower(comm: Intracomm, given: Reduction) -> Call:
    return reduction_call(given, choose)


@lowered_by(_lower)
def reduce_scatter_block(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Reduction | None:
    """See `Intracomm.Reduce_scatter_block`."""
    if on_host(sendbuf, recvbuf):
        return None
    send, recv = _resolve(comm, sendbuf, recvbuf)
    return Reduction("Reduce_scatter_block", send, recv, ops.of(op, "Reduce_scatter_block"), algorithm)


def _resolve(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> tuple[Buffer, Buffer]:
    """Return the send buffer, whose count is one block's, and the receive buffer."""
    name = "Reduce_scatter_block"
    if is_in_place(sendbuf):
        whole = resolve_recvbuf(name, recvbuf, comm.size)
        return whole, whole
    send = resolve_sendbuf(name, sendbuf, comm.size)
    recv = resolve_recvbuf(name, recvbuf)
    check_same_type(name, send, recv)
    if send.count != recv.count:
        raise ValueError(
            f"{name}: mismatch in send count {send.count} (of one of {comm.size} blocks) and receive count "
            f"{recv.count}; make them equal"
        )
    return send, recv
