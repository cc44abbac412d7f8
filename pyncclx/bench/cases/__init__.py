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
    PutSignal,
    Scatter,
    Scatterv,
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
        PutSignal,
        Reduce,
        ReduceScatter,
        ReduceScatterBlock,
        Scan,
        Scatter,
        Scatterv,
        Sendrecv,
    )
}
