"""Bcast inside a node."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..arrays.places import on_host
from ..derived.calls import ONE
from ..launch.call import Call, Choice
from ..memory.layout import Layout
from ..memory.parameters import MoveArgs
from ..team.base import IntraBase as Intracomm
from .algorithms import CHAIN_LINES_RANKS, chain, chain_of_lines, choose_from, lines, packets
from .arguments import check_root
from .copy_engine import Copy, Rounds, copy_engine_call, peers_of, piece_of
from .lowering import lowered_by
from .transports import as_chunks

# Root sends the message directly, size - 1 times, if at most so many bytes leave root, because that saves a trip. Set
# on 2026-11-21 without a stored measurement; a measured table (tuning/) takes precedence.
DIRECT_NBYTES = 384 << 10
# Limits for 3 and 4 ranks. For the longest messages a chain of pieces is faster than a chain of LL128 lines, because
# one sixteenth of the lines' bytes are flags. 4 × H200, 2026-11-30.
TWO_SHOT_LINES_NBYTES = 1 << 20
CHAIN_LINES_NBYTES = 64 << 20


@lru_cache
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Choose direct sends for short messages or two ranks, then two shots or a chain.

    In two shots, root scatters the message, and the peers pass on their pieces. A chain goes from rank to rank.
    """
    peers = max(1, layout.size - 1)
    if peers == 1 and nbytes > layout.packet_nbytes and algorithm is None:
        return as_chunks(layout, "bcast_direct_long", nbytes)
    direct = packets(layout, "bcast_direct", DIRECT_NBYTES // peers if peers > 1 else layout.packet_nbytes)
    channel_nbytes = (layout.line_nbytes - 32) * peers  # 32 bytes for rounding pieces up
    two_shot_lines = lines(layout, "bcast_two_shot_lines", channel_nbytes)
    is_short = layout.size <= CHAIN_LINES_RANKS
    if is_short:
        two_shot_lines = two_shot_lines._replace(limit_nbytes=TWO_SHOT_LINES_NBYTES)
    chain_lines = chain_of_lines(layout, "bcast_chain_lines", CHAIN_LINES_NBYTES if is_short else 0)
    table = direct, two_shot_lines, chain_lines, chain(layout, "bcast_chain")
    return choose_from(table, "bcast", layout, nbytes, algorithm)


class Broadcast(NamedTuple):
    """The checked arguments of Bcast."""

    buffer: Buffer
    root: int
    algorithm: str | None


def _lower(comm: Intracomm, given: Broadcast) -> Call:
    buffer, root, algorithm = given
    nbytes = buffer.nbytes

    def rounds_of(bases: list[int]) -> Rounds:
        """Return two rounds of copies: pieces from root to peers, then among the peers."""
        others = [rank for rank in range(comm.size) if rank != root]
        copies = []
        for to in peers_of(comm):
            if to != root:
                piece = others.index(to if comm.rank == root else comm.rank)
                begin, length = piece_of(nbytes, len(others), piece)
                copies.append(Copy(bases[to] + begin, buffer.address + begin, length))
        return [copies, []] if comm.rank == root else [[], copies]

    copied = copy_engine_call(
        comm, "Bcast", algorithm, nbytes=nbytes, buffers=(buffer,), rounds_of=rounds_of, also_equal=(f"root {root}",)
    )
    return copied or Call(
        operation="Bcast",
        choose=choose,
        sized=(nbytes, algorithm),
        arguments=MoveArgs(send=buffer.address, recv=buffer.address, nbytes=nbytes, root=root).pack(),
        buffers=(buffer,),
        signature=(f"{nbytes} bytes", f"root {root}", algorithm),
        root=root,
        moves=True,
    )


@lowered_by(_lower, ONE)
def bcast(comm: Intracomm, buf: Any, root: int = 0, *, algorithm: str | None = None) -> Broadcast | None:
    """Check the arguments of `Intracomm.Bcast`; return its call."""
    if on_host(buf):
        return None
    root = check_root(comm, "Bcast", root)
    buffer = resolve(buf, "Bcast: buf", writable=comm.rank != root, device=backends.select())
    return Broadcast(buffer, root, algorithm)
