"""Requests of mpi4py's whose errors name failed ranks.

They are used for Python objects and calls without device arrays where MPI continues after a failure. MPI's own
exception says only that some process has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..recording.failures import noted
from .host_receive import Undivided


class ExplainedRequest(Undivided):
    """A request that raises RankFailed or Revoked in place of MPI's exceptions."""

    def __new__(cls, request: MPI.Request, *_: Any) -> ExplainedRequest:
        """Return a copy of `request`. mpi4py's constructor takes no other argument."""
        return super().__new__(cls, request)

    def __init__(self, request: MPI.Request, explain: Callable[[MPI.Exception], Exception]) -> None:
        self._explain = explain

    def explained(self, error: MPI.Exception) -> Exception:
        """Return RankFailed or Revoked if that is MPI's reason, otherwise MPI's exception."""
        reason = self._explain(error)
        return error if reason is error else noted(reason)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait for the message and return its object. As mpi4py's `wait`."""
        return self._call(super().wait, status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Return whether the message is complete, and its object. As mpi4py's `test`."""
        result: tuple[bool, Any] = self._call(super().test, status)
        return result

    def Wait(self, status: MPI.Status | None = None) -> Any:
        """Wait for the operation, and return True. As mpi4py's `Wait`."""
        return self._call(super().Wait, status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Complete the request if it has ended; return whether it had."""
        return bool(self._call(super().Test, status))

    def _call(self, method: Callable[..., Any], status: MPI.Status | None) -> Any:
        try:
            return method(status)
        except MPI.Exception as error:
            reason = self.explained(error)
            if reason is error:
                raise
            raise reason from error
