"""The handle of a persistent request, for mpi4py's own calls, which know nothing but handles."""

from __future__ import annotations

import ctypes
import weakref
from typing import Protocol

from mpi4py import MPI


class Work(Protocol):
    """The part of a persistent operation that mpi4py's calls may have to complete."""

    def finish(self) -> None:
        """Let what is enqueued on the current stream from now on come after it; raise its errors, once."""

    def fill(self, status: MPI.Status) -> None:
        """Set the status to what is known of the message."""


_Word = ctypes.c_void_p if MPI._sizeof(MPI.Request) == ctypes.sizeof(ctypes.c_void_p) else ctypes.c_int


class ShownHandle:
    """Changes the handle that mpi4py reads in a request, when the request is started and when it is completed.

    An inactive one has the handle of an inactive request of MPI's. An active one has that of a generalized request,
    which MPI takes for complete, and which finishes the operation when MPI asks for its status.
    """

    def __init__(self, request: MPI.Request, work: Work) -> None:
        self._word, self._work = _Word.from_address(MPI._addressof(request)), weakref.ref(work)
        self._inactive = self._active = self._word.value
        self._generalized: MPI.Grequest | None = None

    def activate(self) -> None:
        """Show MPI a request that is to be completed."""
        if self._word.value != self._inactive:
            self.deactivate()
        if self._generalized is None:
            self._generalized = MPI.Grequest.Start(_query, None, None, (self._work,))
            self._generalized.Complete()
            self._active = _Word.from_address(MPI._addressof(self._generalized)).value
        self._word.value = self._active

    def deactivate(self) -> None:
        """Show MPI an inactive request."""
        if self._word.value not in (self._inactive, self._active):  # mpi4py has completed it, and set a null handle
            self._generalized = None
        self._word.value = self._inactive

    def free(self) -> None:
        """Show MPI an inactive request for good, and free the other one."""
        self.deactivate()
        if self._generalized is not None:
            self._generalized.Free()


def _query(status: MPI.Status, reference: weakref.ref[Work]) -> None:
    """MPI calls this when the program waits for the request by mpi4py's own methods."""
    work = reference()
    if work is not None:
        work.finish()
        work.fill(status)
    status.Set_cancelled(False)
