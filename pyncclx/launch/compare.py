"""The comparison of a call among the ranks, which PYNCCLX_CHECK=1 asks for."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..errors import CollectiveMismatch


def compare(comm: MPI.Comm, operation: str, signature: tuple[Any, ...]) -> None:
    """Raise CollectiveMismatch on all ranks if they called different operations, or with different arguments."""
    calls = MPI.Comm.allgather(comm, (operation, *signature))
    if any(call != calls[0] for call in calls):
        text = "; ".join(f"rank {rank}: {call[0]}{call[1:]}" for rank, call in enumerate(calls))
        raise CollectiveMismatch(f"ranks disagree about the call: {text}")
