"""Requests of objects that a probe has found and this process sends to itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI


class SentToItself(MPI.Request):
    """Request of an object that a probe has found and this process sends to itself.

    Completing it sets the source and tag of the message that the probe has found.
    """

    def __new__(cls, request: MPI.Request, *_: Any) -> SentToItself:
        """Return a copy of `request`. mpi4py's constructor takes no other argument."""
        return super().__new__(cls, request)

    def __init__(self, request: MPI.Request, source: int, tag: int) -> None:
        self._source, self._tag = source, tag

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait for the object and return it. As mpi4py's `wait`."""
        return self._completed(super().wait, status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Return whether the object is there, and the object. As mpi4py's `test`."""
        result: tuple[bool, Any] = self._completed(super().test, status)
        return result

    def Wait(self, status: MPI.Status | None = None) -> Any:
        """Wait for the message, and return True. As mpi4py's `Wait`."""
        return self._completed(super().Wait, status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Complete the request if it has ended; return whether it had."""
        return bool(self._completed(super().Test, status))

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the request has ended, without completing it."""
        is_over = super().Get_status(status)
        if is_over and self:
            self._set_origin(status)
        return is_over

    def get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the request has ended, without completing it."""
        return self.Get_status(status)

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
