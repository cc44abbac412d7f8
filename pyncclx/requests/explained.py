"""Requests of mpi4py's whose errors name failed ranks.

They are used for Python objects and calls without device arrays where MPI continues after a failure. MPI's own
exception says only that some process has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..recording.failures import noted
from .host_receive import Wrapped


class ExplainedRequest(Wrapped):
    """A request that raises RankFailed or Revoked in place of MPI's exceptions."""

    def __init__(self, request: MPI.Request, explain: Callable[[MPI.Exception], Exception]) -> None:
        self._explain = explain

    def explained(self, error: MPI.Exception) -> Exception:
        """Return RankFailed or Revoked if that is MPI's reason, otherwise MPI's exception."""
        reason = self._explain(error)
        return error if reason is error else noted(reason)

    def _completed(self, method: Callable[..., Any], status: MPI.Status | None) -> Any:
        try:
            return method(status)
        except MPI.Exception as error:
            reason = self.explained(error)
            if reason is error:
                raise
            raise reason from error
