"""What the benchmark can run: one case for each operation."""

from __future__ import annotations

from .case import Case, Options
from .moves import (
    Allgather,
    Allgatherv,
    Alltoall,
    Alltoallv,
    Bcast,
    Gather,
    Gatherv,
    Isend,
    PutSignal,
    Scatter,
    Scatterv,
    Send,
    Sendrecv,
)
from .reductions import Allreduce, Exscan, Reduce, ReduceScatter, ReduceScatterBlock, Scan

__all__ = ["CASES", "Case", "Options"]

CASES: dict[str, type[Case]] = {
    case.method.lower(): case
    for case in (
        Allgather,
        Allgatherv,
        Allreduce,
        Alltoall,
        Alltoallv,
        Bcast,
        Exscan,
        Gather,
        Gatherv,
        Isend,
        PutSignal,
        Reduce,
        ReduceScatter,
        ReduceScatterBlock,
        Scan,
        Scatter,
        Scatterv,
        Send,
        Sendrecv,
    )
}
