"""Reduce_scatter: blocks of any length; all ranks have all counts."""

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
from ..memory.layout import Layout
from ..operators import ops
from ..team.base import IntraBase as Intracomm
from ..team.plans import Plan
from ..team.team import Team
from .algorithms import ONE_SHOT_NBYTES, choose_from, chunks, packets
from .arguments import check_same_type, resolve_recvbuf, resolve_sendbuf
from .blocks import Blocks, blocks_of, pack_blocks
from .lowering import lowered_by
from .reduction import Reduction, reduction_call


@lru_cache
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Choose packets if the longest block, of `nbytes`, is short, else chunks."""
    one_shot = packets(layout, "reduce_scatter_one_shot", ONE_SHOT_NBYTES, layout.peers)
    return choose_from(
        (one_shot, chunks(layout, "reduce_scatter_two_shot")), "reduce_scatter", layout, nbytes, algorithm
    )


def _lower(comm: Intracomm, given: Reduction) -> Call:
    send, recv, blocks = given.send, given.recv, given.blocks
    assert blocks is not None
    # In place, writing the result to the beginning at once would overwrite data that is still to be sent.
    nbytes = blocks.nbytes[comm.rank]
    moved = send is recv and blocks.begins[comm.rank] > 0 and nbytes > 0
    result = replace(recv, address=comm.team.scratch.address(nbytes)) if moved else recv
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
    """See `Intracomm.Reduce_scatter`."""
    if on_host(sendbuf, recvbuf):
        return None
    blocks, recv = _resolve(comm, sendbuf, recvbuf, recvcounts)
    return Reduction("Reduce_scatter", blocks.buffer, recv, ops.of(op, "Reduce_scatter"), algorithm, blocks=blocks)


def _resolve(comm: Intracomm, sendbuf: Any, recvbuf: Any, recvcounts: Any) -> tuple[Blocks, Buffer]:
    """Return the send buffer's blocks and the receive buffer; in place they are one."""
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
