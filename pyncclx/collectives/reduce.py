"""Reduce inside a node."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

from mpi4py import MPI

from ..arrays.datatypes import Datatype
from ..launch.call import Call, Choice
from ..memory.layout import PACK_NBYTES, Layout
from ..operators import bound_op, ops
from ..operators.linked import HALVES
from ..team.base import IntraBase as Intracomm
from .algorithms import (
    BESIDE_WINDOWS_NBYTES,
    CHAIN_LINES_RANKS,
    Algorithm,
    chain,
    chain_of_lines,
    choose_from,
    chunks,
    lines,
    packets,
)
from .arguments import check_not_in_place, check_root, resolve_pair, resolve_sendbuf, rooted_on_host
from .lowering import lowered_by
from .reduction import Reduction, reduction_call

# In one shot, root receives the vector size - 1 times. One shot saves a trip, and is chosen if at most so many bytes
# reach root. Set on 2026-11-21 for 4 ranks without a stored measurement; a measured table (tuning/) takes precedence.
ONE_SHOT_NBYTES = 1200 << 10
# Limits where a chain is possible. 3 or 4 ranks use a chain of LL128 lines for longer vectors (4 × H200, 2026-11-30),
# more ranks two shots and then a chain of pieces (4 × H200, 2026-11-22).
TWO_SHOT_LINES_NBYTES = 4 << 20
TWO_SHOT_NBYTES = 48 << 20


@lru_cache
def choose(layout: Layout, nbytes: int, algorithm: str | None = None, chained: bool = True) -> Choice:
    """Choose one shot, two shots or, for long vectors and if `chained`, a chain."""
    one_shot = packets(layout, "reduce_one_shot", ONE_SHOT_NBYTES // max(1, layout.size - 1))
    two_shot_lines = lines(
        layout,
        "reduce_two_shot_lines",
        (layout.line_nbytes - 32) * layout.peers,  # 32 bytes for rounding parts up
        beside_windows_nbytes=BESIDE_WINDOWS_NBYTES,
    )
    long: tuple[Algorithm, ...] = (chunks(layout, "reduce_two_shot"),)
    if chained and layout.size > 2:
        is_short = layout.size <= CHAIN_LINES_RANKS
        if is_short:
            two_shot_lines = two_shot_lines._replace(limit_nbytes=TWO_SHOT_LINES_NBYTES)
        chain_lines = chain_of_lines(layout, "reduce_chain_lines", sys.maxsize if is_short else 0)
        long = chain_lines, chunks(layout, "reduce_two_shot", TWO_SHOT_NBYTES), chain(layout, "reduce_chain")
    choice = choose_from((one_shot, two_shot_lines, *long), "reduce", layout, nbytes, algorithm)
    of_two = layout.size == 2 and choice.kernel == "reduce_two_shot"
    return choice._replace(kernel="reduce_two_shot_to_root") if of_two else choice


def can_chain(size: int, root: int, datatype: Datatype, template: tuple[str, ...]) -> bool:
    """Return whether a chain can do the reduction (cuda/collectives/reduce_chain.cu).

    In a chain, partial results move from rank to rank, once over each link.
    """
    operator = bound_op.named(template)
    whole = operator is None or operator.group_nbytes == PACK_NBYTES
    return root in (0, 1, size - 1) and whole and datatype.name not in HALVES


def _lower(comm: Intracomm, given: Reduction) -> Call:
    assert given.root is not None
    chained = can_chain(comm.size, given.root, given.send.datatype, given.template)
    return reduction_call(given, choose, also_sized=(chained,))


@lowered_by(_lower)
def reduce(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0, *, algorithm: str | None = None
) -> Reduction | None:
    """Check the arguments of `Intracomm.Reduce`; return its call."""
    if rooted_on_host(sendbuf, recvbuf):
        return None
    root = check_root(comm, "Reduce", root)
    if comm.rank == root:
        send, recv = resolve_pair("Reduce", sendbuf, recvbuf)
    else:
        check_not_in_place(comm, "Reduce", "sendbuf", sendbuf)
        send = recv = resolve_sendbuf("Reduce", sendbuf)
    return Reduction("Reduce", send, recv, ops.of(op, "Reduce"), algorithm, root)
