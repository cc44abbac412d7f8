"""Reduce_scatter and Reduce_scatter_block inside a node.

The blocks of Reduce_scatter have any length, and all ranks have all counts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from mpi4py import MPI

import mpi_bootstrap

from ..arrays import vectors
from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..errors import MPIError
from ..launch.call import Call, Choice, is_in_place
from ..memory.layout import PACK_NBYTES, Layout
from ..operators import ops
from ..team.base import IntraBase as Intracomm
from ..team.plans import Plan
from ..team.team import Team
from .algorithms import FEW_THREADS_NBYTES, ONE_SHOT_NBYTES, choose_from, chunks, lines, packets
from .arguments import Blocks, blocks_of, check_same_type, pack_blocks, resolve_recvbuf, resolve_sendbuf
from .lowering import lowered_by
from .reduction import Reduction, reduction_call

# Longest block that is sent as packets if ranks have slots for lines, and longest one sent as LL128 lines. Longer
# blocks are sent as chunks, or read in place from windows. Set on 2026-11-22 without a stored measurement.
PACKETS_NBYTES = 4 << 10
LINES_NBYTES = 1536 << 10


@lru_cache
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Choose packets if the longest block (`nbytes`) is short, otherwise chunks."""
    one_shot = packets(layout, "reduce_scatter_one_shot", ONE_SHOT_NBYTES, layout.peers)
    return choose_from(
        (one_shot, chunks(layout, "reduce_scatter_two_shot")), "reduce_scatter", layout, nbytes, algorithm
    )


@lru_cache
def choose_block(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Choose packets for short blocks (`nbytes`), lines for longer ones, then chunks."""
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


CHOOSE = {"Reduce_scatter": choose, "Reduce_scatter_block": choose_block}


def _lower(comm: Intracomm, given: Reduction) -> Call:
    send, recv, blocks = given.send, given.recv, given.blocks
    if blocks is None:
        return reduction_call(given, choose_block)
    # In place, a result written to the beginning too early would overwrite data that is still to be sent.
    nbytes = blocks.nbytes[comm.rank]
    moved = send is recv and blocks.begins[comm.rank] > 0 and nbytes > 0
    result = replace(recv, address=comm.scratch.address(nbytes)) if moved else recv
    arguments = pack_blocks(blocks, send=send.address, recv=result.address, nbytes=0)
    call = reduction_call(given._replace(recv=result), choose, arguments)
    if moved:
        call.after = partial(_move, result.address, recv.address, nbytes)
    return call


def _move(source: int, to: int, nbytes: int, team: Team, plan: Plan, stream: Any) -> None:
    team.device.copy(to, source, nbytes, stream)


@lowered_by(_lower)
def reduce_scatter(
    comm: Intracomm,
    sendbuf: Any,
    recvbuf: Any,
    recvcounts: Any = None,
    op: Any = MPI.SUM,
    *,
    algorithm: str | None = None,
) -> Reduction | None:
    """Check the arguments of `Intracomm.Reduce_scatter`; return its call."""
    if on_host(sendbuf, recvbuf):
        return None
    blocks, recv = _resolve(comm, sendbuf, recvbuf, recvcounts)
    return Reduction("Reduce_scatter", blocks.buffer, recv, ops.of(op, "Reduce_scatter"), algorithm, blocks=blocks)


def _resolve(comm: Intracomm, sendbuf: Any, recvbuf: Any, recvcounts: Any) -> tuple[Blocks, Buffer]:
    """Return the send buffer's blocks and the receive buffer, which may be the same."""
    name = "Reduce_scatter"
    recv = resolve_recvbuf(name, recvbuf)
    if is_in_place(sendbuf):
        counts = _counts(comm, recvcounts)
        _check_sum("recvbuf", recv, counts)
        return blocks_of(recv, counts, vectors.packed(counts)), recv
    send = resolve_sendbuf(name, sendbuf)
    check_same_type(name, send, recv)
    counts = mpi_bootstrap.allgather_objects(comm, recv.count) if recvcounts is None else _counts(comm, recvcounts)
    _check_sum("sendbuf", send, counts)
    if recv.count != counts[comm.rank]:
        raise ValueError(
            f"{name}: mismatch in receive count {recv.count} and recvcounts[{comm.rank}] {counts[comm.rank]}; "
            "make them equal"
        )
    return blocks_of(send, counts, vectors.packed(counts)), recv


def _counts(comm: Intracomm, recvcounts: Any) -> list[int]:
    if not hasattr(recvcounts, "__len__"):
        raise TypeError(f"Reduce_scatter: recvcounts is {recvcounts!r}; expecting a list with a count for each rank")
    counts = vectors.integers(recvcounts, "Reduce_scatter: recvcounts", comm.size, stride=False)
    if min(counts) < 0:
        text = f"recvcounts has {min(counts)} for rank {counts.index(min(counts))}; it cannot be negative"
        raise MPIError(MPI.ERR_COUNT, f"Reduce_scatter: {text}")
    return counts


def _check_sum(argument: str, buffer: Buffer, counts: list[int]) -> None:
    if buffer.count != sum(counts):
        raise ValueError(
            f"Reduce_scatter: mismatch in count {buffer.count} of {argument} and the sum {sum(counts)} of recvcounts; "
            "make them equal"
        )


@lowered_by(_lower)
def reduce_scatter_block(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Reduction | None:
    """Check the arguments of `Intracomm.Reduce_scatter_block`; return its call."""
    if on_host(sendbuf, recvbuf):
        return None
    send, recv = _resolve_block(comm, sendbuf, recvbuf)
    return Reduction("Reduce_scatter_block", send, recv, ops.of(op, "Reduce_scatter_block"), algorithm)


def _resolve_block(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> tuple[Buffer, Buffer]:
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
