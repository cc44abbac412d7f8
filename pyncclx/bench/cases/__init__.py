"""One case for each operation that the benchmark can time."""

from __future__ import annotations

from . import moves, reductions
from .case import FORMS, Case, Options

__all__ = ["CASES", "FORMS", "Case", "Options"]

CASES: dict[str, type[Case]] = {
    case.method.lower(): case
    for case in (
        moves.Allgather,
        moves.Allgatherv,
        reductions.Allreduce,
        moves.Alltoall,
        moves.Alltoallv,
        moves.Bcast,
        reductions.Exscan,
        moves.Gather,
        moves.Gatherv,
        moves.Isend,
        moves.PutSignal,
        reductions.Reduce,
        reductions.ReduceScatter,
        reductions.ReduceScatterBlock,
        reductions.Scan,
        moves.Scatter,
        moves.Scatterv,
        moves.Send,
        moves.Sendrecv,
    )
}
