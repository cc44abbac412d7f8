"""Requests of mpi4py's with an additional step at their completion.

`SentToItself`: a probe that finds a Python object sends it again, from this process to itself, so the status needs the
original source and tag. `ExplainedRequest`: if MPI continues after a failure, its exception says only that some process
has failed. For Python objects and host arrays, this class raises RankFailed, which names the rank, or Revoked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..recording.failures import noted
from .host_receive import Undivided


class Wrapped(Undivided):
    """A request of mpi4py's whose completing methods are called by `_completed`."""

    def __new__(cls, request: MPI.Request, *_: Any) -> Wrapped:
        """Return a copy of `request`. mpi4py's constructor takes no other argument."""
        return super().__new__(cls, request)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait for the object and return it, like mpi4py's `wait`."""
        return self._completed(super().wait, status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Return whether the object has arrived, and the object, like mpi4py's `test`."""
        result: tuple[bool, Any] = self._completed(super().test, status)
        return result

    def Wait(self, status: MPI.Status | None = None) -> Any:
        """Wait for the operation, and return True, like mpi4py's `Wait`."""
        return self._completed(super().Wait, status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Complete the request if it has ended; return whether it had."""
        return bool(self._completed(super().Test, status))

    def _completed(self, method: Callable[..., Any], status: MPI.Status | None) -> Any:
        """Call a method of mpi4py's that may complete the request."""
        raise NotImplementedError


class SentToItself(Wrapped):
    """Request of an object that a probe found and that this process sends to itself.

    When it completes, its status has source and tag of the message that the probe found.
    """

    def __init__(self, request: MPI.Request, source: int, tag: int) -> None:
        self._source, self._tag = source, tag

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the request has ended, without completing it."""
        is_over = super().Get_status(status)
        if is_over and self:
            self._set_origin(status)
        return is_over

    get_status = Get_status

    def _completed(self, method: Callable[..., Any], status: MPI.Status | None) -> Any:
        is_active = bool(self)
        result = method(status)
        if is_active and not self:
            self._set_origin(status)
        return result

    def _set_origin(self, status: MPI.Status | None) -> None:
        if status is not None:
            status.Set_source(self._source)
            status.Set_tag(self._tag)


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
