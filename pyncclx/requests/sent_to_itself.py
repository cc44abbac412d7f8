"""Requests of objects that a probe has found, and that this process has sent to itself since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI


class SentToItself(MPI.Request):
    """The request of such an object. Each way to complete it sets the source and tag of the message that was found."""

    def __new__(cls, request: MPI.Request, *_: Any) -> SentToItself:
        """As mpi4py's, which takes the request alone."""
        return super().__new__(cls, request)

    def __init__(self, request: MPI.Request, source: int, tag: int) -> None:
        self._source, self._tag = source, tag

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As mpi4py's."""
        return self._completed(super().wait, status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """As mpi4py's."""
        result: tuple[bool, Any] = self._completed(super().test, status)
        return result

    def Wait(self, status: MPI.Status | None = None) -> Any:
        """As mpi4py's."""
        return self._completed(super().Wait, status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """As mpi4py's."""
        return bool(self._completed(super().Test, status))

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """As mpi4py's."""
        is_over = super().Get_status(status)
        if is_over and self:
            self._set_origin(status)
        return is_over

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
