"""Exscan: the kernels of Scan, which leave this rank's own contribution out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..launch.call import Call
from .scan import choose, prefix

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

__all__ = ["choose", "exscan"]


def exscan(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Call | None:
    """See `Intracomm.Exscan`."""
    return prefix("Exscan", sendbuf, recvbuf, op, algorithm)
