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
_NULL = _Word.from_address(MPI._addressof(MPI.REQUEST_NULL)).value


class ShownHandle:
    """Changes the handle that mpi4py reads in a request, when the request is started and when it is completed.

    An inactive one has the null handle: MPI ignores it where requests are completed, as all that are inactive, and
    refuses to start it. A request of MPI's it would start, but not the operation. An active one has the handle of a
    generalized request, which MPI takes for complete, and which finishes the operation when MPI asks for its status.

    Attributes
    ----------
    own : int
        The handle of the request of MPI's that it was made of, by which it is known.
    """

    def __init__(self, request: MPI.Request, work: Work) -> None:
        self._word, self._work = _Word.from_address(MPI._addressof(request)), weakref.ref(work)
        self.own: int = vars(MPI.Request)["handle"].__get__(request)  # the request's own property needs this object
        self._made_of = self._active = self._word.value
        self._word.value = _NULL
        self._generalized: MPI.Grequest | None = None
        self._is_shown = False

    def activate(self) -> None:
        """Show MPI a request that is to be completed."""
        if self._is_shown:
            self.deactivate()
        if self._generalized is None:
            self._generalized = MPI.Grequest.Start(_query, None, None, (self._work,))
            self._generalized.Complete()
            self._active = _Word.from_address(MPI._addressof(self._generalized)).value
        self._word.value = self._active
        self._is_shown = True

    def deactivate(self) -> None:
        """Show MPI an inactive request."""
        if self._is_shown and self._word.value == _NULL:  # mpi4py has completed it
            self._generalized = None
        self._is_shown = False
        self._word.value = _NULL

    def free(self) -> None:
        """Show MPI the request that it was made of, for good, and free the other one."""
        self.deactivate()
        self._word.value = self._made_of
        if self._generalized is not None:
            self._generalized.Free()


def _query(status: MPI.Status, reference: weakref.ref[Work]) -> None:
    """MPI calls this when the program waits for the request by mpi4py's own methods."""
    work = reference()
    if work is not None:
        work.finish()
        work.fill(status)
    status.Set_cancelled(False)
